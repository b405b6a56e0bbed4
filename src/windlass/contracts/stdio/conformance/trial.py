"""One worker under test: sends it requests, and checks every line that it writes against the protocol."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from windlass.contracts.stdio.conformance.script import Scripts
from windlass.testing.conformance.kit import Broken, expect

ENDS = ("COMPLETION", "CANCELATION", "FAILURE")
KNOWN = ("LAUNCH", "UPDATE", *ENDS)
LAST_LINES_S = 2.0


class Trial:
    """A worker, started for one case, and the messages about each of its tasks."""

    def __init__(self, command: Sequence[str], scripts: Scripts, timeout_s: float, folder: Path) -> None:
        self.scripts, self.folder, self._timeout_s = scripts, folder, timeout_s
        self.messages: dict[str, list[dict[str, Any]]] = {}
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._errors = folder / "stderr"
        with self._errors.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._stdout:
            self._lines.put(line)
        self._lines.put(None)

    # ----------------------------------------------------------------------------------------- requests

    def send(self, line: bytes) -> None:
        try:
            self._stdin.write(line + b"\n")
            self._stdin.flush()
        except OSError:
            raise Broken(f"it has closed its stdin{self._last_errors()}") from None

    def execute(self, script: str, inputs: dict[str, Any] | None = None, **more: Any) -> str:
        """Send a task, and return its id."""
        task = str(uuid.uuid4())
        request = {"task": task, "requestType": "EXECUTE", "script": script, **more}
        self.send(json.dumps(request if inputs is None else {**request, "inputs": inputs}).encode())
        return task

    def cancel(self, task: str) -> None:
        self.send(json.dumps({"task": task, "requestType": "CANCEL"}).encode())

    # ----------------------------------------------------------------------------------------- messages

    def next_message(self) -> dict[str, Any] | None:
        """The next message, checked; None at the end."""
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            raise Broken(f"nothing came within {self._timeout_s:g} s{self._last_errors()}") from None
        if line is None:
            return None
        message = _parse(line)
        earlier = self.messages.setdefault(message["task"], [])
        if any(each["responseType"] in ENDS for each in earlier):
            raise Broken(f"a {message['responseType']} came for a task after its end: {line[:200]!r}")
        earlier.append(message)
        return message

    def until(self, task: str, *kinds: str) -> dict[str, Any]:
        """The first message of these kinds about this task, received before or now."""
        for message in self.messages.get(task, ()):
            if message["responseType"] in kinds:
                return message
        while (received := self.next_message()) is not None:
            if received["task"] == task and received["responseType"] in kinds:
                return received
            if received["task"] == task and received["responseType"] in ENDS:
                raise Broken(f"instead of {' or '.join(kinds)} came {json.dumps(received)[:300]}")
        raise Broken(f"the worker ended before it answered{self._last_errors()}")

    def result(self, task: str) -> Any:
        outputs = self.until(task, "COMPLETION").get("outputs")
        if not isinstance(outputs, dict):
            raise Broken(f"`outputs` of a COMPLETION is {json.dumps(outputs)[:200]}")
        return outputs.get("result")

    def lives(self) -> None:
        """Check that it still answers."""
        expect("the result of a task afterwards", "alive", self.result(self.execute(self.scripts.echo, {"x": "alive"})))

    def close(self) -> None:
        """Send no more requests, and check that it answers the rest and exits with 0."""
        self._stdin.close()
        while self.next_message() is not None:
            pass
        try:
            code = self._process.wait(self._timeout_s)
        except subprocess.TimeoutExpired:
            raise Broken(f"it has not ended {self._timeout_s:g} s after the end of its stdin") from None
        expect("the exit code", 0, code)

    def end(self) -> None:
        """Kill what is left of it."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with suppress(OSError):
            self._stdin.close()
        self._reader.join(LAST_LINES_S)
        if not self._reader.is_alive():  # a child in another session may hold it open
            self._stdout.close()

    def _last_errors(self) -> str:
        time.sleep(0.05)  # for what it writes while it ends
        errors = self._errors.read_bytes().decode(errors="replace").strip()
        return f"; its stderr: {errors[-300:]}" if errors else ""


def _parse(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        raise Broken(f"a line on stdout is not one JSON message: {line[:200]!r}") from None
    if not isinstance(message, dict) or not line.endswith(b"\n"):
        raise Broken(f"a line on stdout is not one JSON object: {line[:200]!r}")
    if not isinstance(message.get("task"), str) or message.get("responseType") not in KNOWN:
        raise Broken(f"a message without a task, or of an unknown type: {line[:200]!r}")
    return message
