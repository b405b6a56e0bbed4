"""One run of a program: its task goes in by stdin, what it says comes by stdout, and nothing of it is left afterwards.

A line of stdout with `say` in it is said while it works; all the rest together is its answer, one JSON value. It is
killed with all that it has started when it takes too long, says too much, or is no longer wanted.
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

from windlass.wrapper.group import Groups
from windlass.wrapper.isolation import CALL, NONE, Isolation, any_user, cage_command, orders_for, read_notes
from windlass.wrapper.operator import Answer, Operator, OperatorFailed, Speech, answer_of

CHUNK = 65536
FOLDERS = "windlass-wrapper-"
STDERR_BYTES = 16 * 1024
AFTER_DEATH_S = 2.0
LOOK_S = 0.05
SAYINGS = ("events", "publish")
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")  # of our environment, for those whom we trust
BARE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


class TooMuch(Exception):
    """It says more than it may."""


class Programs:
    """Runs programs, each with a folder, and where it is not trusted a user id, of its own."""

    def __init__(self, isolation: Isolation, groups: Groups | None = None) -> None:
        """Without `groups`, the keeper of each cage adds up what its processes use."""
        self.isolation, self._groups = isolation, groups
        _sweep(Path(tempfile.gettempdir()))
        self._base = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
        self._base.chmod(0o711)  # those who run as somebody else pass through, and see nothing
        self._taken: set[int] = set()

    def close(self) -> None:
        shutil.rmtree(self._base, ignore_errors=True)

    async def run(
        self, operator: Operator, task: Mapping[str, Any], speech: Speech, secrets: Mapping[str, str]
    ) -> Answer:
        """Raises OperatorFailed. To cancel it is to kill the program: told first, then by force."""
        way = NONE if operator.trusted else self.isolation.way
        if way is None:
            why = "; ".join(self.isolation.reasons)
            raise OperatorFailed(f"refused: this machine cannot isolate untrusted code: {why}", retryable=False)
        folder = Path(tempfile.mkdtemp(dir=self._base))
        user = next(user for user in iter(any_user, None) if user not in self._taken)
        self._taken.add(user)
        try:
            environment = _environment(operator, task, secrets, folder)
            with self._group(operator, way) as group:
                return await _Run(operator, way, folder, user, group).run(task, speech, environment)
        finally:
            self._taken.discard(user)
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
    """Nothing of ours, but for those whom we trust a few ordinary things, and the secrets of their queue."""
    trace = {"TRACEPARENT": str(task["traceparent"])} if task.get("traceparent") else {}
    if not operator.trusted:
        return {**BARE, **trace, **operator.env}
    ours = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**BARE, **ours, "TMPDIR": str(folder), **trace, **operator.env, **secrets}


class _Run:
    def __init__(self, operator: Operator, way: str, folder: Path, user: int, group: Path | None) -> None:
        self._operator, self._way, self._folder, self._user = operator, way, folder, user
        self._group = group
        self._limits = operator.enforced
        self._rest: list[bytes] = []
        self._errors = b""

    async def run(self, task: Mapping[str, Any], speech: Speech, environment: Mapping[str, str]) -> Answer:
        reading, writing = os.pipe()
        try:
            process = await self._start(writing, environment)
        except OSError as error:
            os.close(reading)
            raise OperatorFailed(f"it cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        with os.fdopen(reading, "rb") as notes:
            try:
                why = await self._talk(process, msgspec.json.encode(task), speech)
            finally:
                kill_group(process, signal.SIGKILL)  # whoever is left of it
                await asyncio.shield(_reaped(process))
                process._transport.close()  # type: ignore[attr-defined]  # whoever got away may hold its pipes
            os.set_blocking(reading, False)
            said = read_notes(notes.read(CHUNK) or b"")
        return self._answer(why, said, process.returncode)

    async def _start(self, notes: int, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
        limits = msgspec.structs.asdict(self._limits)
        orders = orders_for(
            self._way, command_of(self._operator), folder=self._folder, notes=notes, user=self._user, limits=limits,
            read=self._operator.read, group=None if self._group is None else str(self._group),
        )  # fmt: skip
        return await asyncio.create_subprocess_exec(
            *cage_command(orders), env=dict(environment), cwd="/", pass_fds=(notes,), start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def _talk(self, process: asyncio.subprocess.Process, task: bytes, speech: Speech) -> str | None:
        """Until it has ended. Why it had to be killed, or None."""
        pumps = asyncio.gather(
            _feed(process, task), self._listen(process, speech), self._listen_to_errors(process), process.wait()
        )
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._until_it_ends(process, pumps)
        except TimeoutError:
            return f"it ran longer than {self._limits.timeout_s:g} s"
        except TooMuch as error:
            return str(error)
        except asyncio.CancelledError:
            kill_group(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(_gone(process), self._limits.grace_s)
            raise
        finally:
            pumps.cancel()
            await asyncio.gather(pumps, return_exceptions=True)
        return None

    async def _until_it_ends(self, process: asyncio.subprocess.Process, pumps: asyncio.Future[Any]) -> None:
        """What it started may hold its pipes open: once it is gone, so are they, and what was said is read."""
        ended = asyncio.ensure_future(_gone(process))
        try:
            await asyncio.wait({ended, pumps}, return_when=asyncio.FIRST_COMPLETED)
            if not pumps.done():
                kill_group(process, signal.SIGKILL)
                await asyncio.wait({pumps}, timeout=AFTER_DEATH_S)
            if pumps.done():
                await pumps
        finally:
            ended.cancel()

    async def _listen(self, process: asyncio.subprocess.Process, speech: Speech) -> None:
        assert process.stdout is not None
        left, total = b"", 0
        while chunk := await process.stdout.read(CHUNK):
            total += len(chunk)
            if total > self._limits.output_bytes:
                raise TooMuch(f"it said more than {self._limits.output_bytes} bytes")
            *lines, left = (left + chunk).split(b"\n")
            for line in lines:
                self._hear(line, speech)
        if left:
            self._hear(left, speech)

    def _hear(self, line: bytes, speech: Speech) -> None:
        if b'"say"' in line:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                message = msgspec.json.decode(line)
                if isinstance(message, dict) and message.get("say") in SAYINGS:
                    speech.say(message)
                    return
        self._rest.append(line)

    async def _listen_to_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(CHUNK):
            self._errors = (self._errors + chunk)[-STDERR_BYTES:]

    def _answer(self, why: str | None, said: Mapping[str, Any], code: int | None) -> Answer:
        why = why or said.get("killed")
        if why is None and self._group is not None and Groups.ran_out_of_memory(self._group):
            why = f"it used more than {self._limits.memory_bytes} bytes of memory, all of its processes together"
        if why is not None:
            raise OperatorFailed(why)
        if "refused" in said:
            # It could when the wrapper started, so that another try may find it mended.
            raise OperatorFailed(f"refused: this machine cannot isolate untrusted code now: {said['refused']}")
        if "cannot_start" in said:
            raise OperatorFailed(f"it cannot be started: {said['cannot_start']}", retryable=False)
        code = said.get("ended", code)
        answer = self._said(strict=code == 0)
        if code != 0:
            if answer.get("error") is not None:
                answer_of(answer)
            raise OperatorFailed(self._death(code or 0))
        return answer_of(answer)

    def _said(self, *, strict: bool) -> dict[str, Any]:
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

    def _death(self, code: int) -> str:
        last = self._errors.decode(errors="replace").strip()[-2000:]
        said = f": {last}" if last else ""
        if code >= 0:
            return f"it ended with exit code {code}{said}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        limits = {"SIGXCPU": f"more than {self._limits.cpu_s} s of CPU", "SIGXFSZ": "a file that is too large"}
        return f"it was killed by {name}{f' ({limits[name]})' if name in limits else ''}{said}"


ANSWER = {"outputs", "events", "result", "error", "retryable"}


def _sweep(parent: Path) -> None:
    """What wrappers left behind that were killed."""
    for folder in parent.glob(f"{FOLDERS}*-*"):
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.geteuid() and not _is_there(int(folder.name.split("-")[2])):
                shutil.rmtree(folder, ignore_errors=True)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


async def _feed(process: asyncio.subprocess.Process, task: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read what it is told
        process.stdin.write(task)
        await process.stdin.drain()
    process.stdin.close()


def kill_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Everything that it has started goes with it: the process leads a group that those in a cage cannot leave."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


async def _gone(running: asyncio.subprocess.Process) -> None:
    """Until the process itself has ended; asyncio would wait for its pipes as well."""
    try:
        process = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # not Linux, or one that is old or strict
        while running.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        return
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(process)
        os.close(process)


async def _reaped(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), AFTER_DEATH_S)
