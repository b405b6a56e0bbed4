"""The cases: each starts a worker of its own and asks one thing of it. `duty` is the sentence that it broke."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from windlass.core.error import Invalid
from windlass.testing.conformance import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.stdio.script import Scripts
from windlass.testing.stdio.trial import ENDS, Trial

KIT = Kit[Trial]("stdio")
required, hardening = KIT.required, KIT.hardening


def check_worker(
    command: Sequence[str],
    scripts: Scripts,
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    patience_s: float = 10.0,
    parallel: int = 1,
    told: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Hold the cases against the program that `command` starts; `told` hears of each as it ends."""

    @contextmanager
    def start() -> Iterator[Trial]:
        with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as folder:
            try:
                trial = Trial(command, scripts, patience_s, Path(folder))
            except OSError as error:
                raise Invalid(f"cannot be started: {error}", field="command") from None
            try:
                yield trial
            finally:
                trial.end()

    return KIT.run(KIT.select(only, level), start, parallel=parallel, told=told)


# --------------------------------------------------------------------------------------------- tasks and their ends


@required(
    "a task is launched and completed", "answer EXECUTE with LAUNCH, and with COMPLETION and `outputs` at its end"
)
def _completes(trial: Trial) -> None:
    task = trial.execute(trial.scripts.echo, {"x": "hello"})
    expect("the result", "hello", trial.result(task))
    expect("the messages", ["LAUNCH", "COMPLETION"], [each["responseType"] for each in trial.said[task]])
    trial.lives()  # and nothing more comes about a task that has ended


@required("inputs arrive as they were sent", "decode JSON as it is, also escaped, outside of ASCII, and long")
def _inputs(trial: Trial) -> None:
    for text in ('"quotes" \\ and / \t tabs', "äöü € 𝄞 \u2028", "x" * 20_000):
        expect("the result", text, trial.result(trial.execute(trial.scripts.echo, {"x": text})))


@required("a request without inputs is fine", "take missing `inputs` as none, and ignore fields that are not known")
def _no_inputs(trial: Trial) -> None:
    expect("the result", "x" * 100_000, trial.result(trial.execute(trial.scripts.big)))
    task = trial.execute(trial.scripts.big, {}, queue=None, unheard_of={"a": [1]})
    expect("the result", "x" * 100_000, trial.result(task))


@required("progress is told", "send UPDATE with `message`, `current` and `maximum`, before the end")
def _updates(trial: Trial) -> None:
    if trial.scripts.update is None:
        return
    task = trial.execute(trial.scripts.update, {})
    update = trial.until(task, "UPDATE")
    told = [update.get("message"), update.get("current"), update.get("maximum")]
    expect("message, current and maximum", ["half", 1, 2], told)
    trial.until(task, "COMPLETION")
    trial.lives()


@required("a script that fails, fails its task", "send FAILURE with the reason in `error`, and live on")
def _fails(trial: Trial) -> None:
    failure = trial.until(trial.execute(trial.scripts.fail, {}), "FAILURE")
    if "no good" not in str(failure.get("error")):
        raise Broken(f"`error` does not say why: {json.dumps(failure)[:300]}")
    trial.lives()


@required("what is no script fails its task", "send FAILURE for a script that cannot be understood, and live on")
def _broken(trial: Trial) -> None:
    trial.until(trial.execute(trial.scripts.broken, {}), "FAILURE")
    trial.lives()


@required("a cancel reaches the script", "tell a running script of CANCEL, and send CANCELATION when it stops for that")
def _cancels(trial: Trial) -> None:
    task = trial.execute(trial.scripts.wait, {})
    trial.until(task, "LAUNCH")
    trial.cancel(task)
    trial.until(task, "CANCELATION")
    trial.lives()


@required("a cancel of nothing harms nothing", "ignore CANCEL of a task that is unknown or has ended")
def _cancels_nothing(trial: Trial) -> None:
    task = trial.execute(trial.scripts.echo, {"x": "done"})
    trial.result(task)
    trial.cancel(task)
    trial.cancel("no-such-task")
    trial.lives()
    expect("messages about an unknown task", [], trial.said.get("no-such-task", []))


@hardening("tasks run side by side", "let a task run while another one does")
def _side_by_side(trial: Trial) -> None:
    file = str(trial.folder / "meet")
    waiting = trial.execute(trial.scripts.await_file, {"x": file})
    trial.until(waiting, "LAUNCH")
    trial.until(trial.execute(trial.scripts.touch, {"x": file}), "COMPLETION")
    expect("the result", file, trial.result(waiting))


@required("the queue `main` keeps its order", 'run tasks with `"queue": "main"` one after the other, first come first')
def _main_in_order(trial: Trial) -> None:
    file = trial.folder / "order"
    words = [chr(ord("a") + number) for number in range(12)]
    tasks = [trial.execute(trial.scripts.append, {"x": word, "file": str(file)}, queue="main") for word in words]
    for task in tasks:
        trial.until(task, "COMPLETION")
    expect("the order", "".join(words), file.read_text())


# --------------------------------------------------------------------------------------------- one message per line


@hardening("prints do not disturb", "keep what scripts print, with or without a newline, away from the messages")
def _prints(trial: Trial) -> None:
    for number in range(5):
        expect("the result", str(number), trial.result(trial.execute(trial.scripts.noise, {"x": str(number)})))


@hardening("a script cannot eat requests", "keep stdin away from scripts")
def _eats(trial: Trial) -> None:
    eater = trial.execute(trial.scripts.eat, {"x": "fed"})
    others = [trial.execute(trial.scripts.echo, {"x": str(number)}) for number in range(10)]
    expect("the results", [str(number) for number in range(10)], [trial.result(task) for task in others])
    trial.until(eater, *ENDS)


@required("large answers stay whole", "write every message as one line, also when many large ones end at once")
def _large(trial: Trial) -> None:
    tasks = [trial.execute(trial.scripts.big, {}) for _ in range(16)]
    expect("the results", {"x" * 100_000}, {trial.result(task) for task in tasks})


@hardening("large requests are read", "read lines of a megabyte")
def _large_requests(trial: Trial) -> None:
    task = trial.execute(trial.scripts.big, {"ignored": "y" * 1_000_000})
    expect("the result", "x" * 100_000, trial.result(task))


# --------------------------------------------------------------------------------------------- what goes wrong


@hardening("malformed lines are survived", "report a line that is not JSON on stderr, and live on")
def _malformed(trial: Trial) -> None:
    trial.send(b"this is no JSON")
    trial.send(b'{"task": ')
    trial.lives()


@hardening("blank lines are survived", "ignore blank lines")
def _blank(trial: Trial) -> None:
    trial.send(b"")
    trial.send(b"  ")
    trial.lives()


@hardening(
    "what is no request is survived", "live on after JSON that is no object, or names no task or type that is known"
)
def _no_request(trial: Trial) -> None:
    for line in (b"[1, 2]", b"null", b'"text"', b"{}", b'{"task": 5, "requestType": "EXECUTE"}'):
        trial.send(line)
    trial.send(b'{"task": "odd", "requestType": "PAUSE"}')
    trial.lives()


@hardening("a running task is not harmed by others", "let what goes wrong concern only the task that it is about")
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
    "it ends with its input, and not before its work", "at the end of stdin finish what was accepted, and end with 0"
)
def _ends(trial: Trial) -> None:
    tasks = [trial.execute(trial.scripts.echo, {"x": str(number)}) for number in range(5)]
    tasks += [trial.execute(trial.scripts.echo, {"x": str(number)}, queue="main") for number in range(5)]
    trial.close()
    unanswered = [task for task in tasks if not any(m["responseType"] in ENDS for m in trial.said.get(task, ()))]
    expect("tasks without an answer", 0, len(unanswered))
