"""A client that knows nothing: it sends lines to a worker and reads lines from it, and never waits for ever."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.shape.source import ROOT

START = str(ROOT / "src/windlass/contracts/stdio/protocol/start.py")
WORKER = [sys.executable, START]
PATIENCE_S = 60.0
OURS = f"wlt{os.getpid()}_"


class WorkerProcess:
    """A worker at the other end of two pipes."""

    def __init__(self, command: list[str] | None = None, **env: str) -> None:
        self.process = subprocess.Popen(
            command or WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **env}, start_new_session=True,
        )  # fmt: skip
        self.lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.errors: list[str] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line.decode(errors="replace"))

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line if line.endswith(b"\n") else line + b"\n")
        self.process.stdin.flush()

    def execute(self, task: str, script: str, inputs: dict[str, Any] | None = None, **more: Any) -> None:
        request = {"task": task, "requestType": "EXECUTE", "script": script, "inputs": inputs or {}, **more}
        self.send(json.dumps(request).encode())

    def cancel(self, task: str) -> None:
        self.send(json.dumps({"task": task, "requestType": "CANCEL"}).encode())

    def next(self) -> dict[str, Any] | None:
        """The next response; None at the end. What is not one whole JSON object fails here."""
        line = self.lines.get(timeout=PATIENCE_S)
        if line is None:
            return None
        assert line.endswith(b"\n")
        found: dict[str, Any] = json.loads(line)
        assert isinstance(found, dict)
        return found

    def until(self, task: str, *kinds: str) -> dict[str, Any]:
        """The next response about this task of one of these kinds."""
        wanted = kinds or ("COMPLETION", "FAILURE", "CANCELATION")
        while (response := self.next()) is not None:
            if response["task"] == task and response["responseType"] in wanted:
                return response
        raise AssertionError(f"the worker ended before {wanted} of {task}: {''.join(self.errors)}")

    def run(self, task: str, script: str, inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        self.execute(task, script, inputs, **more)
        return self.until(task)

    def result(self, script: str, inputs: dict[str, Any] | None = None) -> Any:
        return self.run("one", script, inputs)["outputs"].get("result")

    def close(self) -> list[dict[str, Any]]:
        """No more requests: everything that it still said. It has ended with 0."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        rest = []
        while (response := self.next()) is not None:
            rest.append(response)
        assert self.process.wait(PATIENCE_S) == 0
        for thread in self._threads:
            thread.join(PATIENCE_S)
        return rest

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        for thread, stream in zip(self._threads, (self.process.stdout, self.process.stderr), strict=True):
            thread.join(PATIENCE_S)  # a stream that is closed while it is read fails its reader
            assert stream is not None
            stream.close()


def blocks() -> set[str]:
    """Names of the blocks of shared memory that there are of this process and those that it started."""
    return {file.name for file in Path("/dev/shm").iterdir() if file.name.startswith(OURS)}
