"""One program under test: its environment, its process, and the requests that it made."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from windlass.contracts.machine.conformance.stand_in import Callback, StandIn, Stored
from windlass.contracts.machine.conformance.subject import SUBJECTS, ExportRequest, Subject
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.conformance.program import Program, peak_bytes

TASK, BATCH, SIGNATURE = "export_mods_1704857234567_a3f8c2d1", "batch_17", "sig=5ignature0f7his7ask"
BUCKET = "arke-exports"
SECRETS = {"R2_ACCESS_KEY_ID": "conformanceaccesskey", "R2_SECRET_ACCESS_KEY": "conformance/secret+key"}
CALLBACK_RETRY_MS = "6000"

Store = Literal["s3", "url"]


class Trial:
    """A program that a case starts once or more often, and all requests that it made."""

    def __init__(
        self, servers: StandIn, subject: Subject, store: Store, folder: Path, timeout_s: float, stack: ExitStack,
        command: Sequence[str],
    ) -> None:  # fmt: skip
        self.servers, self.subject, self.folder, self.timeout_s = servers, subject, folder, timeout_s
        self._store, self._stack, self._command = store, stack, command
        self._program: Program | None = None
        self.peak_bytes = 0

    def environment(self, ask: ExportRequest) -> dict[str, str]:
        base = self.servers.url
        common = {
            "TASK_ID": TASK, "PI": ask.pi, "EXPORT_FORMAT": "mods", "EXPORT_OPTIONS": json.dumps(ask.options),
            "BATCH_ID": BATCH, "CALLBACK_URL": f"{base}/callback/{TASK}?{SIGNATURE}",
            "CALLBACK_PATIENCE_MS": CALLBACK_RETRY_MS, "TMPDIR": str(self.folder),
            "WINDLASS_MODS_API_URL": base, "WINDLASS_MODS_GATEWAY_URL": base,
        }  # fmt: skip
        if self._store == "url":
            return {**common, "UPLOAD_URL": f"{base}/upload/{TASK}/?{SIGNATURE}"}
        return {**common, **SECRETS, "R2_ACCOUNT_ID": "conformance", "R2_BUCKET": BUCKET, "R2_ENDPOINT": base}

    def start(self, ask: ExportRequest, **changes: str | None) -> Program:
        """Start the program with changed variables; None removes one."""
        changed: dict[str, str | None] = {**os.environ, **self.environment(ask), **changes}
        program = Program(self._command, {name: value for name, value in changed.items() if value is not None})
        self._program = self._stack.enter_context(program)

        def measure() -> None:
            self.peak_bytes = max(self.peak_bytes, peak_bytes(program.pid))

        self.servers.on_callback = measure
        return program

    def run(self, ask: ExportRequest, **changes: str | None) -> tuple[int, Program]:
        program = self.start(ask, **changes)
        return program.wait(self.timeout_s), program

    @property
    def required(self) -> tuple[str, ...]:
        """Variables without which a program cannot do anything."""
        return ("TASK_ID", "PI", "UPLOAD_URL") if self._store == "url" else ("TASK_ID", "PI", "R2_SECRET_ACCESS_KEY")

    def called_back(self, count: int = 1) -> Callback:
        """The last of exactly `count` callbacks."""
        came = self.servers.callbacks
        if len(came) != count:
            raise Broken(f"{count} callback{'s' * (count > 1)} expected, {len(came)} came{self._last_output()}")
        return came[-1]

    def object(self) -> Stored:
        """The only object that was stored."""
        if len(self.servers.stored) != 1:
            stored = [stored.key for stored in self.servers.stored]
            raise Broken(f"one object expected, {len(stored)} were stored: {stored}{self._last_output()}")
        return self.servers.stored[0]

    def succeeds(self, ask: ExportRequest, **changes: str | None) -> Program:
        code, program = self.run(ask, **changes)
        if code != 0:
            raise Broken(f"the exit code is {code}, not 0{program.last_output()}")
        return program

    def fails(self, ask: ExportRequest, **changes: str | None) -> Program:
        code, program = self.run(ask, **changes)
        expect("the exit code", 1, code)
        return program

    def reported_error(self) -> str:
        """The error of the only callback, which must report a failure."""
        body = self.called_back().body
        if body.get("status") != "error":
            raise Broken(f"the status of the callback is not error: {body!r:.300}")
        expect("task_id", TASK, body.get("task_id"))
        if not isinstance(body.get("error"), str) or not body["error"].strip():
            raise Broken(f"the callback gives no reason: {body!r:.300}")
        return str(body["error"])

    def works(self, program: Program) -> None:
        """Wait until the program works: its temporary file exists and stays."""
        until_s, before = time.monotonic() + self.timeout_s, list[str]()
        while not before or before != self.left():
            if program.ended or time.monotonic() > until_s:
                raise Broken(f"it made no file in TMPDIR while it worked{program.last_output()}")
            before = self.left()
            time.sleep(0.1)

    def left(self) -> list[str]:
        """Files that it has left behind."""
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())

    def _last_output(self) -> str:
        return "" if self._program is None else self._program.last_output()


KIT = Kit[Trial]("machine")


def check_program(
    command: Sequence[str],
    *,
    subject: str = "any",
    store: Store = "s3",
    only: Collection[int] = (),
    level: Level | None = None,
    timeout_s: float = 20.0,
    parallel: int = 1,
    on_result: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Run the cases against the program that `command` starts; `on_result` is called with each result, in order."""
    if subject not in SUBJECTS:
        raise Invalid(f"must be {' or '.join(SUBJECTS)}", field="program")
    chosen = SUBJECTS[subject]

    @contextmanager
    def start() -> Iterator[Trial]:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-conformance-")))
            servers = stack.enter_context(StandIn(bucket=BUCKET, archive=chosen.archive))
            yield Trial(servers, chosen, store, folder, timeout_s, stack, command)

    return KIT.run(KIT.select(only, level), start, parallel=parallel, on_result=on_result)
