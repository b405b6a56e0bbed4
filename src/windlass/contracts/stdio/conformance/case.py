"""The cases: each starts a worker and checks one duty, which is printed when the worker breaks it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from windlass.contracts.stdio.conformance.script import Scripts
from windlass.contracts.stdio.conformance.trial import ENDS, Trial
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Broken, Kit, Level, Result, expect, ignore

KIT = Kit[Trial]("stdio")
required, hardening = KIT.required, KIT.hardening


def check_worker(
    command: Sequence[str],
    scripts: Scripts,
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    timeout_s: float = 10.0,
    parallel: int = 1,
    on_result: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Run the cases against the program that `command` starts; `on_result` is called with each result."""

    @contextmanager
    def start() -> Iterator[Trial]:
        with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as folder:
            try:
                trial = Trial(command, scripts, timeout_s, Path(folder))
            except OSError as error:
                raise Invalid(f"cannot be started: {error}", field="command") from None
            try:
                yield trial
            finally:
                trial.end()

    return KIT.run(KIT.select(only, level), start, parallel=parallel, on_result=on_result)


# --------------------------------------------------------------------------------------------- tasks and their ends


@required(
    "launches and completes a task",
    "Answer EXECUTE with LAUNCH, and with COMPLETION and `outputs` when the script ends.",
)
def _completes(trial: Trial) -> None:
    task = trial.execute(trial.scripts.echo, {"x": "hello"})
    expect("the result", "hello", trial.result(task))
    expect("the messages", ["LAUNCH", "COMPLETION"], [each["responseType"] for each in trial.messages[task]])
    trial.lives()  # and nothing more comes about a task that has ended


@required(
    "receives inputs unchanged",
    "Decode any JSON text, including escapes, characters outside ASCII, and long strings.",
)
def _inputs(trial: Trial) -> None:
    for text in ('"quotes" \\ and / \t tabs', "äöü € 𝄞 \u2028", "x" * 20_000):
        expect("the result", text, trial.result(trial.execute(trial.scripts.echo, {"x": text})))


@required("accepts a request without inputs", "Treat missing `inputs` as empty, and ignore unknown fields.")
def _no_inputs(trial: Trial) -> None:
    expect("the result", "x" * 100_000, trial.result(trial.execute(trial.scripts.big)))
    task = trial.execute(trial.scripts.big, {}, queue=None, unheard_of={"a": [1]})
    expect("the result", "x" * 100_000, trial.result(task))


@required("reports progress", "Send UPDATE with `message`, `current` and `maximum` before the task ends.")
def _updates(trial: Trial) -> None:
    if trial.scripts.update is None:
        return
    task = trial.execute(trial.scripts.update, {})
    update = trial.until(task, "UPDATE")
    values = [update.get("message"), update.get("current"), update.get("maximum")]
    expect("message, current and maximum", ["half", 1, 2], values)
    trial.until(task, "COMPLETION")
    trial.lives()


@required("reports a failed script", "When a script fails, send FAILURE with the reason in `error`, and continue.")
def _fails(trial: Trial) -> None:
    failure = trial.until(trial.execute(trial.scripts.fail, {}), "FAILURE")
    if "no good" not in str(failure.get("error")):
        raise Broken(f"`error` does not say why: {json.dumps(failure)[:300]}")
    trial.lives()


@required("reports an invalid script", "When a script cannot be parsed, send FAILURE, and continue.")
def _broken(trial: Trial) -> None:
    trial.until(trial.execute(trial.scripts.broken, {}), "FAILURE")
    trial.lives()


@required(
    "cancels a running script",
    "Pass CANCEL on to the running script, and send CANCELATION when it stops because of it.",
)
def _cancels(trial: Trial) -> None:
    task = trial.execute(trial.scripts.wait, {})
    trial.until(task, "LAUNCH")
    trial.cancel(task)
    trial.until(task, "CANCELATION")
    trial.lives()


@required("ignores a cancel without a running task", "Ignore CANCEL for a task that is unknown or has ended.")
def _cancels_nothing(trial: Trial) -> None:
    task = trial.execute(trial.scripts.echo, {"x": "done"})
    trial.result(task)
    trial.cancel(task)
    trial.cancel("no-such-task")
    trial.lives()
    expect("messages about an unknown task", [], trial.messages.get("no-such-task", []))


@hardening("runs tasks in parallel", "Run a task while another one runs.")
def _side_by_side(trial: Trial) -> None:
    file = str(trial.folder / "meet")
    waiting = trial.execute(trial.scripts.await_file, {"x": file})
    trial.until(waiting, "LAUNCH")
    trial.until(trial.execute(trial.scripts.touch, {"x": file}), "COMPLETION")
    expect("the result", file, trial.result(waiting))


@required(
    "runs the queue `main` in order",
    'Run tasks with `"queue": "main"` one at a time, in the order in which they arrive.',
)
def _main_in_order(trial: Trial) -> None:
    file = trial.folder / "order"
    words = [chr(ord("a") + number) for number in range(12)]
    tasks = [trial.execute(trial.scripts.append, {"x": word, "file": str(file)}, queue="main") for word in words]
    for task in tasks:
        trial.until(task, "COMPLETION")
    expect("the order", "".join(words), file.read_text())


# --------------------------------------------------------------------------------------------- one message per line


@hardening(
    "separates printed text from messages",
    "Keep the output of scripts, with or without a newline, out of the messages.",
)
def _prints(trial: Trial) -> None:
    for number in range(5):
        expect("the result", str(number), trial.result(trial.execute(trial.scripts.noise, {"x": str(number)})))


@hardening("keeps requests away from scripts", "Do not let scripts read the worker's stdin.")
def _eats(trial: Trial) -> None:
    eater = trial.execute(trial.scripts.eat, {"x": "fed"})
    others = [trial.execute(trial.scripts.echo, {"x": str(number)}) for number in range(10)]
    expect("the results", [str(number) for number in range(10)], [trial.result(task) for task in others])
    trial.until(eater, *ENDS)


@required(
    "writes large messages whole",
    "Write every message as one line, even when many tasks with large results end at once.",
)
def _large(trial: Trial) -> None:
    tasks = [trial.execute(trial.scripts.big, {}) for _ in range(16)]
    expect("the results", {"x" * 100_000}, {trial.result(task) for task in tasks})


@hardening("reads large requests", "Read lines of one megabyte.")
def _large_requests(trial: Trial) -> None:
    task = trial.execute(trial.scripts.big, {"ignored": "y" * 1_000_000})
    expect("the result", "x" * 100_000, trial.result(task))


# --------------------------------------------------------------------------------------------- what goes wrong


@hardening("survives malformed lines", "Report a line that is not JSON on stderr, and continue.")
def _malformed(trial: Trial) -> None:
    trial.send(b"this is no JSON")
    trial.send(b'{"task": ')
    trial.lives()


@hardening("ignores blank lines", "Ignore blank lines.")
def _blank(trial: Trial) -> None:
    trial.send(b"")
    trial.send(b"  ")
    trial.lives()


@hardening(
    "survives invalid requests",
    "Continue after JSON that is not an object, or that has no valid task or no known type.",
)
def _no_request(trial: Trial) -> None:
    for line in (b"[1, 2]", b"null", b'"text"', b"{}", b'{"task": 5, "requestType": "EXECUTE"}'):
        trial.send(line)
    trial.send(b'{"task": "odd", "requestType": "PAUSE"}')
    trial.lives()


@hardening("isolates a running task from errors", "Let an error affect only the task that it belongs to.")
def _unharmed(trial: Trial) -> None:
    file = str(trial.folder / "go")
    waiting = trial.execute(trial.scripts.await_file, {"x": file})
    trial.until(waiting, "LAUNCH")
    trial.until(trial.execute(trial.scripts.fail, {}), "FAILURE")
    trial.send(b"nonsense")
    trial.cancel("no-such-task")
    trial.until(trial.execute(trial.scripts.touch, {"x": file}), "COMPLETION")
    expect("the result", file, trial.result(waiting))


@hardening(
    "finishes its tasks at the end of stdin",
    "At the end of stdin, finish all accepted tasks, and exit with code 0.",
)
def _ends(trial: Trial) -> None:
    tasks = [trial.execute(trial.scripts.echo, {"x": str(number)}) for number in range(5)]
    tasks += [trial.execute(trial.scripts.echo, {"x": str(number)}, queue="main") for number in range(5)]
    trial.close()
    unanswered = [task for task in tasks if not any(m["responseType"] in ENDS for m in trial.messages.get(task, ()))]
    expect("tasks without an answer", 0, len(unanswered))
