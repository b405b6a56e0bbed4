"""One program under trial: its environment, its process, and what it did to the servers of its environment."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from windlass.core.error import Invalid
from windlass.testing.conformance import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.machine.stand_in import Callback, StandIn, Stored, as_json
from windlass.testing.machine.subject import SUBJECTS, Ask, Subject
from windlass.testing.memory import peak_bytes
from windlass.testing.program import Program

TASK, BATCH, SIGNATURE = "export_mods_1704857234567_a3f8c2d1", "batch_17", "sig=5ignature0f7his7ask"
BUCKET = "arke-exports"
SECRETS = {"R2_ACCESS_KEY_ID": "conformanceaccesskey", "R2_SECRET_ACCESS_KEY": "conformance/secret+key"}
CALLBACK_PATIENCE_MS = "6000"

Store = Literal["s3", "url"]


class Trial:
    """A program, started once for a case or more often, and all that it did."""

    def __init__(
        self, servers: StandIn, subject: Subject, store: Store, folder: Path, patience_s: float, stack: ExitStack,
        command: Sequence[str],
    ) -> None:  # fmt: skip
        self.servers, self.subject, self.folder, self.patience_s = servers, subject, folder, patience_s
        self._store, self._stack, self._command = store, stack, command
        self._program: Program | None = None
        self.peak_bytes = 0

    def environment(self, ask: Ask) -> dict[str, str]:
        base = self.servers.url
        told = {
            "TASK_ID": TASK, "PI": ask.pi, "EXPORT_FORMAT": "mods", "EXPORT_OPTIONS": as_json(ask.options),
            "BATCH_ID": BATCH, "CALLBACK_URL": f"{base}/callback/{TASK}?{SIGNATURE}",
            "CALLBACK_PATIENCE_MS": CALLBACK_PATIENCE_MS, "TMPDIR": str(self.folder),
            "WINDLASS_MODS_API_URL": base, "WINDLASS_MODS_GATEWAY_URL": base,
        }  # fmt: skip
        if self._store == "url":
            return {**told, "UPLOAD_URL": f"{base}/upload/{TASK}/?{SIGNATURE}"}
        return {**told, **SECRETS, "R2_ACCOUNT_ID": "conformance", "R2_BUCKET": BUCKET, "R2_ENDPOINT": base}

    def start(self, ask: Ask, **changes: str | None) -> Program:
        """With variables changed; None leaves one out."""
        changed: dict[str, str | None] = {**os.environ, **self.environment(ask), **changes}
        program = Program(self._command, {name: value for name, value in changed.items() if value is not None})
        self._program = self._stack.enter_context(program)
        self.servers.on_callback = lambda: self._measure(program)
        return program

    def run(self, ask: Ask, **changes: str | None) -> tuple[int, Program]:
        program = self.start(ask, **changes)
        return program.wait(self.patience_s), program

    def _measure(self, program: Program) -> None:
        self.peak_bytes = max(self.peak_bytes, peak_bytes(program.pid))

    @property
    def required(self) -> tuple[str, ...]:
        """Variables without which a program cannot do anything."""
        return ("TASK_ID", "PI", "UPLOAD_URL") if self._store == "url" else ("TASK_ID", "PI", "R2_SECRET_ACCESS_KEY")

    def called_back(self, count: int = 1) -> Callback:
        """The last callback, of exactly so many."""
        came = self.servers.callbacks
        if len(came) != count:
            raise Broken(f"{count} callback{'s' * (count > 1)} expected, {len(came)} came{self._last_words()}")
        return came[-1]

    def object(self) -> Stored:
        """The one that was stored."""
        if len(self.servers.stored) != 1:
            stored = [stored.key for stored in self.servers.stored]
            raise Broken(f"one object expected, stored were {stored}{self._last_words()}")
        return self.servers.stored[0]

    def succeeds(self, ask: Ask, **changes: str | None) -> Program:
        code, program = self.run(ask, **changes)
        if code != 0:
            raise Broken(f"the exit code is {code}, not 0{program.last_words()}")
        return program

    def fails(self, ask: Ask, **changes: str | None) -> Program:
        code, program = self.run(ask, **changes)
        expect("the exit code", 1, code)
        return program

    def told_error(self) -> str:
        """The text of the one callback, which says that it failed."""
        body = self.called_back().body
        if body.get("status") != "error":
            raise Broken(f"the callback does not say error: {body!r:.300}")
        expect("task_id", TASK, body.get("task_id"))
        if not isinstance(body.get("error"), str) or not body["error"].strip():
            raise Broken(f"the callback does not say why: {body!r:.300}")
        return str(body["error"])

    def works(self, program: Program) -> None:
        """Until it has begun: its temporary file is there, and stays."""
        until_s, before = time.monotonic() + self.patience_s, list[str]()
        while not before or before != self.left():
            if program.ended or time.monotonic() > until_s:
                raise Broken(f"it made no file in TMPDIR while it worked{program.last_words()}")
            before = self.left()
            time.sleep(0.1)

    def stop(self, program: Program) -> None:
        program.tell(signal.SIGTERM)

    def left(self) -> list[str]:
        """Files that it has left behind."""
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())

    def _last_words(self) -> str:
        return "" if self._program is None else self._program.last_words()


KIT = Kit[Trial]("machine")


def check_program(
    command: Sequence[str],
    *,
    subject: str = "any",
    store: Store = "s3",
    only: Collection[int] = (),
    level: Level | None = None,
    patience_s: float = 20.0,
    parallel: int = 1,
    told: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Hold the cases against the program that `command` starts; `told` hears of each as it ends."""
    if subject not in SUBJECTS:
        raise Invalid(f"must be {' or '.join(SUBJECTS)}", field="program")
    chosen = SUBJECTS[subject]

    @contextmanager
    def start() -> Iterator[Trial]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-conformance-")))
            servers = stack.enter_context(StandIn(bucket=BUCKET, archive=chosen.archive))
            yield Trial(servers, chosen, store, folder, patience_s, stack, command)

    return KIT.run(KIT.select(only, level), start, parallel=parallel, told=told)
