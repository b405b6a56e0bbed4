"""A pool of processes for CPU-bound handlers. Each runs one attempt at a time and is then reused.

To cancel an attempt, its process is killed; a process that dies fails its attempt. Neither affects other attempts. A
process is a fresh interpreter that imports the handler's module: nothing is forked and nothing is pickled.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from windlass.core.command import Claimed
from windlass.core.failure import Category, Failure
from windlass.core.validation import LARGE_MAX_BYTES
from windlass.errors import WindlassError
from windlass.sdk.processes.frames import (
    LENGTH,
    CheckpointAnswer,
    Done,
    Failed,
    FromProcess,
    ProgressMessage,
    Run,
    Stopped,
    decode_from,
    frame,
)
from windlass.sdk.signals import Cancel
from windlass.sdk.worker.progress import ProgressSink, Saved

LAST_LINES, LAST_OUTPUT = 20, 8192
MESSAGE_MAX_BYTES = LARGE_MAX_BYTES + 1024 * 1024
TERMINATE_S = 1.0  # between SIGTERM and SIGKILL
BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from windlass.sdk.processes.child import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class RemoteFailure(Exception):
    """An attempt failed in another process, with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def run_request(function: Callable[..., Any], kind: str, claimed: Claimed, checkpoint: bytes | None) -> Run:
    """The message that makes a process run this attempt. The process finds the function by its name."""
    script, module = None, function.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        module, script = (spec.name, None) if spec is not None else (module, getattr(main, "__file__", None))
    return Run(module, function.__qualname__, kind, script, claimed.task, claimed.payload, checkpoint)


class ProcessPool:
    """At most `most` processes at a time; further attempts wait for one."""

    def __init__(self, most: int) -> None:
        self._slots = asyncio.Semaphore(most)
        self._free: list[Process] = []

    async def run(self, run: Run, sink: ProgressSink) -> bytes:
        """The handler's result, as JSON. Raises Cancel or RemoteFailure, the latter also if the process dies."""
        async with self._slots:
            self._free = [process for process in self._free if process.alive]
            process = self._free.pop() if self._free else await Process.start()
            try:
                return await process.run(run, sink)
            finally:
                if process.busy:
                    await process.kill()
                else:
                    self._free.append(process)

    async def close(self) -> None:
        free, self._free = self._free, []
        for process in free:
            await process.kill()


class Process:
    """A process of the pool, seen from the worker."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._last_output = ""
        self._stderr = asyncio.create_task(self._read_stderr())
        self._saving: set[asyncio.Task[None]] = set()
        self.busy = False

    @classmethod
    async def start(cls) -> Process:
        """Start it in its own session, so that Ctrl-C reaches the worker alone, which drains."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", BEGIN, json.dumps(sys.path), str(theirs.fileno()), str(os.getpid()),
                stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None and not self._reader.at_eof()

    async def run(self, run: Run, sink: ProgressSink) -> bytes:
        self.busy = True
        try:
            self._writer.write(frame(run))
            while True:
                message = await self._next()
                if isinstance(message, ProgressMessage):
                    self._forward(message, sink)
                    continue
                self.busy = False
                match message:
                    case Done():
                        return message.result
                    case Failed():
                        raise RemoteFailure(message.failure)
                    case Stopped():
                        raise Cancel(message.message)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise RemoteFailure(await self._exit_failure()) from None

    async def kill(self) -> None:
        """Terminate it, and kill it if it does not end. When this returns, it has ended."""
        self._writer.close()
        with suppress(ProcessLookupError):
            self._process.terminate()
            try:
                async with asyncio.timeout(TERMINATE_S):
                    await self._process.wait()
            except (TimeoutError, asyncio.CancelledError) as over:
                self._process.kill()
                if isinstance(over, asyncio.CancelledError):
                    raise
        await self._process.wait()
        await asyncio.wait({self._stderr}, timeout=TERMINATE_S)
        self._stderr.cancel()

    async def _next(self) -> FromProcess:
        [size] = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
        try:
            if size <= MESSAGE_MAX_BYTES:
                message: FromProcess = decode_from(await self._reader.readexactly(size))
                return message
        except msgspec.MsgspecError:
            pass
        problem = "the process of the handler sent its worker a message that cannot be read"
        raise RemoteFailure(Failure(Category.INFRASTRUCTURE, problem, "PROCESS_BROKEN"))

    def _forward(self, message: ProgressMessage, sink: ProgressSink) -> None:
        if message.progress is not None:
            sink.progress(message.progress)
        if message.level is not None:
            sink.line(message.level, message.message)
        if message.checkpoint is not None:
            waiting = asyncio.create_task(self._answer(sink.checkpoint(message.checkpoint)))
            self._saving.add(waiting)
            waiting.add_done_callback(self._saving.discard)

    async def _answer(self, saved: Saved) -> None:
        error = None
        try:
            await saved
        except WindlassError as problem:
            error = problem.message
        self._writer.write(frame(CheckpointAnswer(error)))

    async def _read_stderr(self) -> None:
        """Copy its stderr to ours, and keep the last lines for the failure that is reported if it dies."""
        assert self._process.stderr is not None
        while output := await self._process.stderr.read(65536):
            text = output.decode(errors="replace")
            self._last_output = (self._last_output + text)[-LAST_OUTPUT:]
            with suppress(Exception):  # a handler may have closed or replaced ours; the pipe must still be read
                sys.stderr.write(text)

    async def _exit_failure(self) -> Failure:
        code = await self._process.wait()
        await asyncio.wait({self._stderr}, timeout=TERMINATE_S)  # a child of its own may hold the pipe open
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        trace = "\n".join(self._last_output.splitlines()[-LAST_LINES:])
        return Failure(Category.INFRASTRUCTURE, f"the process of the handler {how}", "PROCESS_DIED", trace)
