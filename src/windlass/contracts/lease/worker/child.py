"""One run of a program: it reads its task from stdin, writes to stdout, and leaves nothing behind.

A line of stdout with a field `say` is a message that is forwarded while the program runs. The rest of stdout is its
answer, one JSON value. The program is killed with all that it has started when it runs too long, writes too much, or is
cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from windlass.contracts.lease.worker.control_group import Groups
from windlass.contracts.lease.worker.isolation import (
    CALL,
    NONE,
    Isolation,
    any_user,
    read_status,
    sandbox_command,
    sandbox_spec,
)
from windlass.contracts.lease.worker.operator import Answer, MessageSink, Operator, OperatorFailed, answer_of

CHUNK = 65536
FOLDERS = "windlass-wrapper-"
STDERR_BYTES = 16 * 1024
AFTER_EXIT_S = 2.0
POLL_S = 0.05
MESSAGE_KINDS = ("events", "publish")
ANSWER = {"outputs", "events", "result", "error", "retryable"}
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")  # from the wrapper's environment, for trusted operators
MINIMAL_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class OutputTooLong(Exception):
    """The program wrote more than it may."""


class Programs:
    """Runs programs, each with its own folder and, where it is untrusted, its own user id."""

    def __init__(self, isolation: Isolation, groups: Groups | None = None) -> None:
        """Without `groups`, the supervisor of each sandbox adds up what its processes use."""
        self.isolation, self._groups = isolation, groups
        _sweep(Path(tempfile.gettempdir()))
        self._base = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
        self._base.chmod(0o711)  # programs of other users pass through, and see no names
        self._users_in_use: set[int] = set()

    def close(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)

    async def run(
        self, operator: Operator, task: Mapping[str, Any], messages: MessageSink, secrets: Mapping[str, str]
    ) -> Answer:
        """Run the program. Cancelling sends SIGTERM, and SIGKILL after the grace period. Raises OperatorFailed."""
        way = NONE if operator.trusted else self.isolation.way
        if way is None:
            reasons = "; ".join(self.isolation.reasons)
            raise OperatorFailed(f"refused: this machine cannot isolate untrusted code: {reasons}", retryable=False)
        folder = Path(tempfile.mkdtemp(dir=self._base))
        user = next(user for user in iter(any_user, None) if user not in self._users_in_use)
        self._users_in_use.add(user)
        try:
            environment = _environment(operator, task, secrets, folder)
            with self._group(operator, way) as group:
                return await _Run(operator, way, folder, user, group).run(task, messages, environment)
        finally:
            self._users_in_use.discard(user)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    @contextlib.contextmanager
    def _group(self, operator: Operator, way: str) -> Iterator[Path | None]:
        if self._groups is None or way == NONE:
            yield None
            return
        limits = operator.enforced
        group = self._groups.make(memory_bytes=limits.memory_bytes, processes=limits.processes)
        try:
            yield group
        finally:
            self._groups.remove(group)


def command_of(operator: Operator) -> list[str]:
    if operator.command is not None:
        return operator.command
    folders = [str(path.resolve()) for path in operator.read] or ([os.getcwd()] if operator.trusted else [])  # noqa: PTH109
    return [sys.executable, CALL, operator.function or "", *folders]


def _environment(
    operator: Operator, task: Mapping[str, Any], secrets: Mapping[str, str], folder: Path
) -> dict[str, str]:
    """An untrusted operator gets nothing of the wrapper's environment. A trusted one gets a few plain variables and the
    secrets of its queue."""
    trace = {"TRACEPARENT": str(task["traceparent"])} if task.get("traceparent") else {}
    if not operator.trusted:
        return {**MINIMAL_ENVIRONMENT, **trace, **operator.env}
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**MINIMAL_ENVIRONMENT, **inherited, "TMPDIR": str(folder), **trace, **operator.env, **secrets}


class _Run:
    def __init__(self, operator: Operator, way: str, folder: Path, user: int, group: Path | None) -> None:
        self._operator, self._way, self._folder, self._user = operator, way, folder, user
        self._group = group
        self._limits = operator.enforced
        self._rest: list[bytes] = []
        self._errors = b""

    async def run(self, task: Mapping[str, Any], messages: MessageSink, environment: Mapping[str, str]) -> Answer:
        reading, writing = os.pipe()
        try:
            process = await self._start(writing, environment)
        except OSError as error:
            os.close(reading)
            raise OperatorFailed(f"it cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb") as status_file:
            try:
                killed = await self._communicate(process, msgspec.json.encode(task), messages)
            finally:
                kill_group(process, signal.SIGKILL)  # what is left of it
                await asyncio.shield(_reap(process))
                # A process that got away may hold its pipes.
                process._transport.close()  # type: ignore[attr-defined]
            os.set_blocking(reading, False)
            status = read_status(status_file.read(CHUNK) or b"")
        return self._answer(killed, status, process.returncode)

    async def _start(self, status_fd: int, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        spec = sandbox_spec(
            self._way, command_of(self._operator), folder=self._folder, status_fd=status_fd, user=self._user,
            limits=msgspec.structs.asdict(self._limits), read=self._operator.read,
            group=None if self._group is None else str(self._group),
        )  # fmt: skip
        return await asyncio.create_subprocess_exec(
            *sandbox_command(spec), env=dict(environment), cwd="/", pass_fds=(status_fd,), start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def _communicate(self, process: asyncio.subprocess.Process, task: bytes, messages: MessageSink) -> str | None:
        """Wait until the program has ended. Returns why it had to be killed, or None."""
        pumps = asyncio.gather(
            _feed(process, task), self._read_stdout(process, messages), self._read_stderr(process), process.wait()
        )
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._wait_for_end(process, pumps)
        except TimeoutError:
            return f"it ran longer than {self._limits.timeout_s:g} s"
        except OutputTooLong as error:
            return str(error)
        except asyncio.CancelledError:
            kill_group(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_process_end(process), self._limits.grace_s)
            raise
        finally:
            pumps.cancel()
            await asyncio.gather(pumps, return_exceptions=True)
        return None

    async def _wait_for_end(self, process: asyncio.subprocess.Process, pumps: asyncio.Future[Any]) -> None:
        """Wait for the program and read the rest of its output. Its children may hold its pipes open, so kill them
        once the program has ended."""
        ended = asyncio.ensure_future(_process_end(process))
        try:
            await asyncio.wait({ended, pumps}, return_when=asyncio.FIRST_COMPLETED)
            if not pumps.done():
                kill_group(process, signal.SIGKILL)
                await asyncio.wait({pumps}, timeout=AFTER_EXIT_S)
            if pumps.done():
                await pumps
        finally:
            ended.cancel()

    async def _read_stdout(self, process: asyncio.subprocess.Process, messages: MessageSink) -> None:
        assert process.stdout is not None
        left, total = b"", 0
        while chunk := await process.stdout.read(CHUNK):
            total += len(chunk)
            if total > self._limits.output_bytes:
                raise OutputTooLong(f"it wrote more than {self._limits.output_bytes} bytes")
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                self._take_line(line, messages)
        if left:
            self._take_line(left, messages)

    def _take_line(self, line: bytes, messages: MessageSink) -> None:
        if b'"say"' in line:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                message = msgspec.json.decode(line)
                if isinstance(message, dict) and message.get("say") in MESSAGE_KINDS:
                    messages.send(message)
                    return
        self._rest.append(line)

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(CHUNK):
            self._errors = (self._errors + chunk)[-STDERR_BYTES:]

    def _answer(self, killed: str | None, status: Mapping[str, Any], code: int | None) -> Answer:
        killed = killed or status.get("killed")
        if killed is None and self._group is not None and Groups.ran_out_of_memory(self._group):
            killed = f"it used more than {self._limits.memory_bytes} bytes of memory, all of its processes together"
        if killed is not None:
            raise OperatorFailed(killed)
        if "refused" in status:
            # Isolation worked when the wrapper started, so it may work at the next attempt.
            raise OperatorFailed(f"refused: this machine cannot isolate untrusted code now: {status['refused']}")
        if "cannot_start" in status:
            raise OperatorFailed(f"it cannot be started: {status['cannot_start']}", retryable=False)
        code = status.get("ended", code)
        answer = self._read_answer(strict=code == 0)
        if code != 0:
            if answer.get("error") is not None:
                answer_of(answer)
            raise OperatorFailed(self._describe_exit(code or 0))
        return answer_of(answer)

    def _read_answer(self, *, strict: bool) -> dict[str, Any]:
        text = b"\n".join(self._rest).strip()
        if not text:
            return {}
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            if not strict:
                return {}
            raise OperatorFailed(f"its answer is not JSON: {error}", retryable=False) from None
        return value if isinstance(value, dict) and value and value.keys() <= ANSWER else {"result": value}

    def _describe_exit(self, code: int) -> str:
        last = self._errors.decode(errors="replace").strip()[-2000:]
        stderr = f": {last}" if last else ""
        if code >= 0:
            return f"it ended with exit code {code}{stderr}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        limits = {"SIGXCPU": f"more than {self._limits.cpu_s} s of CPU", "SIGXFSZ": "a file that is too large"}
        return f"it was killed by {name}{f' ({limits[name]})' if name in limits else ''}{stderr}"


def _sweep(parent: Path) -> None:
    """Remove the folders of wrappers that were killed."""
    for folder in parent.glob(f"{FOLDERS}*-*"):
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.geteuid() and not _is_running(int(folder.name.split("-")[2])):
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


async def _feed(process: asyncio.subprocess.Process, task: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a program need not read its task
        process.stdin.write(task)
        await process.stdin.drain()
    process.stdin.close()


def kill_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal the program and all that it has started. Sandboxed processes cannot leave its process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _process_end(running: asyncio.subprocess.Process) -> None:
    """Wait until the process itself has ended. asyncio would wait for its pipes as well."""
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or a kernel without pidfd_open
        while running.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        return
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


async def _reap(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), AFTER_EXIT_S)
