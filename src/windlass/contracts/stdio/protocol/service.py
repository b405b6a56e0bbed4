"""The client of a worker process: starts it, sends it tasks, reads its responses, and notices when it ends.

May be used from any number of threads and coroutines. Only the methods that say so wait for a worker: a request that
does not fit into the pipe waits in a separate thread. A worker that ends, or closes its stdout, fails its tasks.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import subprocess
import tempfile
import termios
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .call import function_inputs, function_script
from .environment import Environment
from .line import LINE_MAX, LineReader, LineWriter, TooLong
from .message import NO_ENDS, Unreadable, read_line
from .proxy import RESULT, Proxy, call_function, check_identifier, check_path
from .shm import PREFIX, SharedMemory, decode_array, decode_block, unlink_beginning_with
from .task import CRASHED, ENDS, FAILED, Task, TaskError
from .wire import MARK, decode, encoder, refuse
from .worker import INIT

log = logging.getLogger("windlass.stdio")

LINES_MAX, LINE_SHOWN = 1000, 4096  # of output beside the protocol
LAST_LINES = 20
SETTLE_S = 1.0  # to read what is still in the pipes of a worker that has ended
CLOSE_S = 10.0
_encode = encoder(refuse)


class Service:
    """A worker in an environment: by default ours, in this interpreter. It is started with its first task."""

    def __init__(
        self,
        environment: Environment | Sequence[str] | None = None,
        *,
        init: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str | None] | None = None,
        base_env: Mapping[str, str] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        close_timeout_s: float = CLOSE_S,
    ) -> None:
        """`env` changes variables of `base_env` for the worker (None: unset); `base_env` is by default all of ours."""
        if isinstance(environment, str):
            raise TypeError("a command is a list of words")
        if environment is None:
            environment = Environment.python()
        elif not isinstance(environment, Environment):
            environment = Environment.of(*environment)
        self.environment, self._init, self._cwd, self._env = environment, init, cwd, dict(env or {})
        self._base_env = base_env
        self._on_stderr, self._close_timeout_s = on_stderr, close_timeout_s
        self._prefix = f"{os.environ.get(PREFIX, 'wl_')}{secrets.token_hex(6)}_"
        self._lock = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._invalid: deque[str] = deque(maxlen=LINES_MAX)
        self._errors: deque[str] = deque(maxlen=LINES_MAX)
        self._exited = threading.Event()  # the process has ended
        self._over = threading.Event()  # and its output was read
        self._why = ""  # why it accepts no more tasks
        self._fault = ""  # why we ended it
        self.killed = False  # by us
        self.unneeded: deque[str] = deque()  # generated names without a proxy

    # ----------------------------------------------------------------------------------------- lifecycle

    def start(self) -> Service:
        """Start the worker now; otherwise its first task does."""
        with self._lock:
            if self._process is None:
                self._start()
        return self

    def _start(self) -> None:
        environment = {**(os.environ if self._base_env is None else self._base_env), PREFIX: self._prefix}
        for name, value in {**self.environment.variables, **self._env}.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        init: str | None = None
        if self._init is not None:
            # Only this user can read the file; the worker reads and deletes it.
            descriptor, init = tempfile.mkstemp(prefix="windlass-init-", suffix=".txt")
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(self._init)
            environment[INIT] = init
        try:
            self._process = process = subprocess.Popen(
                self.environment.command, cwd=self._cwd, env=environment, bufsize=0, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError:
            if init is not None:
                Path(init).unlink(missing_ok=True)
            raise
        stdin, stdout, stderr = (_detach(stream) for stream in (process.stdin, process.stdout, process.stderr))
        self._stderr = stderr
        self._requests = LineWriter(stdin, nonblocking=True)
        self._reader = self._thread(self._read, stdout)
        self._stderr_reader = self._thread(self._read_errors, stderr)
        self._thread(self._monitor, init)

    def _thread(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, name=f"windlass-stdio-{work.__name__}", daemon=True)
        thread.start()
        return thread

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the service was not started")
        return self._process

    @property
    def pid(self) -> int:
        return self._running().pid

    def close(self) -> None:
        """Close the worker's stdin: it finishes its tasks, and ends. Does not wait for that."""
        self._why = self._why or "the service was closed"
        if self._process is not None:
            self._requests.close()

    def kill(self) -> None:
        """End the worker and the processes that it started, at once; its tasks crash."""
        process = self._process
        if process is not None and not self._over.is_set():
            self._why, self.killed = self._why or "the worker was killed", True
            _kill_group(process.pid)

    def wait_for(self, timeout: float | None = None) -> int:
        """Wait until the worker has ended and its output is read; its exit code. Raises TimeoutError."""
        process = self._running()
        if not self._over.wait(timeout):
            raise TimeoutError(f"the worker still runs after {timeout} s")
        return int(process.returncode)

    def is_alive(self) -> bool:
        return self._process is not None and not self._over.is_set()

    def __enter__(self) -> Service:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        """Let the worker finish, for a while; after an exception, do not."""
        if self._process is None:
            self.close()
            return
        if kind is None:
            self.close()
            if self._over.wait(self._close_timeout_s):
                return
        self.kill()
        self._over.wait()

    async def __aenter__(self) -> Service:
        return self.start()

    async def __aexit__(self, kind: object, *_: object) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, kind)

    def invalid_lines(self) -> list[str]:
        """The last lines on the worker's stdout that were not messages."""
        return list(self._invalid)

    def error_lines(self) -> list[str]:
        """The last lines on its stderr."""
        return list(self._errors)

    def has_errors_to_read(self) -> bool:
        """Whether something on its stderr was not read yet."""
        if self._process is None or self._over.is_set():
            return False
        waiting = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self._stderr, termios.FIONREAD, waiting)
        return any(waiting)

    # ----------------------------------------------------------------------------------------- tasks

    def task(self, script: str, inputs: dict[str, Any] | None = None, queue: str | None = None) -> Task:
        """A task that runs a script. `queue="main"` runs it in the worker's main thread, in order."""
        if not isinstance(script, str):
            raise TypeError("a script is text")
        self.start()
        return Task(self, script, inputs, queue)

    def submit(self, function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Task:
        """Start a task that calls a function of a module that the worker can import (the function, or
        `module:function`), or one of `__main__`, whose source is sent."""
        inputs = function_inputs(function, args, kwargs)
        return self.task(function_script(function), inputs).start()

    def call(self, function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function (see `submit`), or one that the worker has under this name, and return its result."""
        if isinstance(function, str) and ":" not in function:
            return call_function(self, function, args, kwargs)
        return self.submit(function, *args, **kwargs).result()

    def get_var(self, name: str) -> Any:
        """The value that a task has exported by this name."""
        return self.evaluate(RESULT + check_path(name)).get("result")

    def put_var(self, name: str, value: Any) -> None:
        """Export a value to all later tasks."""
        self.evaluate(f"task.export({check_identifier(name)}=_value)", {"_value": value})

    def proxy(self, name: str, queue: str | None = None) -> Any:
        """A proxy of the object that a task has exported by this name."""
        return Proxy(self, name, queue)

    def evaluate(
        self, script: str, inputs: dict[str, Any] | None = None, *, queue: str | None = None
    ) -> dict[str, Any]:
        """The outputs of a generated script."""
        if not self.environment.speaks_python:
            raise ValueError("the worker may not run Python: set speaks_python if its scripts are Python")
        if self.unneeded:
            names = [self.unneeded.popleft() for _ in range(len(self.unneeded))]
            forget = "getattr(task, 'forget', lambda *_: None)"  # other workers may lack it
            self.task(f"{forget}(*{names!r})").start()
        return self.task(script, inputs, queue).wait_for().outputs

    def send_task(self, task: Task) -> None:
        """Called by `Task.start`. Raises TaskError if it cannot be sent."""
        request = {"task": task.uuid, "requestType": "EXECUTE", "script": task.script, "inputs": task.inputs,
                   "queue": task.queue}  # fmt: skip
        if task.traceparent is not None:
            request["traceparent"] = task.traceparent
        line = f"{_encode(request)}\n".encode("ascii")
        self._tasks[task.uuid] = task
        try:
            if self._why:
                raise BrokenPipeError(self._why)
            self._requests.write(line)
        except OSError as error:
            self._tasks.pop(task.uuid, None)
            task.end("CRASH", CRASHED, error=f"it was not sent: {self._why or error}")
            raise TaskError(task) from None
        if self._over.is_set():  # it ended after the check above, and this task may have been missed
            self._crash()

    def send_cancel(self, task: Task) -> None:
        with suppress(OSError):
            request = {"task": task.uuid, "requestType": "CANCEL"}
            self._requests.write(f"{_encode(request)}\n".encode("ascii"))

    # ----------------------------------------------------------------------------------------- reading

    def _read(self, descriptor: int) -> None:
        reader = LineReader(descriptor)
        try:
            while True:
                try:
                    line = reader.read()
                except TooLong as long:
                    text = (long.head + long.tail).decode("utf-8", "replace")
                    self._handle_unreadable(Unreadable(text, f"a line has more than {LINE_MAX} bytes"))
                    continue
                if line is None:
                    break
                if line.strip():
                    for message in read_line(line, "responseType"):
                        self._handle(message, line)
        finally:
            os.close(descriptor)
        self._why = self._why or "the worker closed its stdout"
        if not self._exited.wait(SETTLE_S) and self._tasks:
            self.kill()  # it runs, and can never answer

    def _handle(self, message: dict[str, Any] | Unreadable, line: bytes) -> None:
        """Handle any output of a worker. Raises nothing."""
        if isinstance(message, Unreadable):
            self._handle_unreadable(message)
            return
        name, kind = message["task"], message.get("responseType")
        if not isinstance(name, str) or not isinstance(kind, str):
            self._invalid.append(_shown(line))
            return
        task = self._tasks.get(name)
        if kind in ENDS and task is not None:
            self._tasks.pop(task.uuid, None)
            self._end(task, kind, message, MARK in line)
        elif kind in NO_ENDS:
            if task is not None:
                task.on_response(kind, message)
        elif kind not in ENDS:
            self._invalid.append(_shown(line))

    def _handle_unreadable(self, unreadable: Unreadable) -> None:
        """Keep the text for people. If it may be the end of one task, that task fails, since its answer will not come
        again. If it may be the end of any of several tasks, end the worker: all of them fail."""
        self._invalid.append(unreadable.text[:LINE_SHOWN].rstrip("\r\n"))
        if not unreadable.ends_something:
            return
        error = f"the worker wrote a message that cannot be read: {unreadable.why}"
        concerned = [task for name in unreadable.tasks if (task := self._tasks.pop(name, None)) is not None]
        for task in concerned:
            task.end("FAILURE", FAILED, error=error)
        if concerned or unreadable.tasks or not self._tasks:
            return
        if len(self._tasks) == 1:
            with suppress(KeyError):
                _, task = self._tasks.popitem()
                task.end("FAILURE", FAILED, error=error)
            return
        log.error("%s, and may be the end of any of %d tasks: ending the worker", error, len(self._tasks))
        self._why = self._why or error
        self._fault = error
        _kill_group(self._running().pid)

    def _end(self, task: Task, kind: str, message: dict[str, Any], has_types: bool) -> None:
        error = message.get("error")
        try:
            outputs = message.get("outputs") or {}
            outputs = self._decode(outputs) if has_types else dict(outputs)
        except Exception as problem:
            task.end("FAILURE", FAILED, error=f"its outputs cannot be read: {type(problem).__name__}: {problem}")
            return
        task.end(kind, ENDS[kind], outputs=outputs, error=None if error is None else str(error))

    def _decode(self, outputs: Any) -> dict[str, Any]:
        """From here on, this process unlinks blocks that the worker made."""

        def block(value: dict[str, Any]) -> SharedMemory:
            shm = decode_block(value)
            shm.take_over()
            return shm

        decoders = {
            "shm": block, "ndarray": decode_array, "worker_object": lambda value: Proxy(self, str(value["var_name"])),
        }  # fmt: skip
        return dict(decode(outputs, decoders))

    def _read_errors(self, descriptor: int) -> None:
        reader = LineReader(descriptor, longest=1 << 20)
        while True:
            try:
                line = reader.read()
            except TooLong as long:
                line = long.head
            if line is None:
                break
            shown = _shown(line)
            self._errors.append(shown)
            if self._on_stderr is not None:
                try:
                    self._on_stderr(shown)
                except Exception:
                    log.exception("a listener to stderr failed")
        os.close(descriptor)

    # ----------------------------------------------------------------------------------------- the end

    def _monitor(self, init: str | None) -> None:
        """Wait for the process itself, since other processes may hold its pipes open."""
        process = self._running()
        with suppress(ChildProcessError):
            status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its id is not reused before `wait`
            if status is not None and status.si_status != 0:
                _kill_group(process.pid)
        self._why = self._why or "the worker has ended"
        self._exited.set()
        self._reader.join(SETTLE_S)
        self._stderr_reader.join(SETTLE_S)
        process.wait()
        unlink_beginning_with(self._prefix)
        if init is not None:
            Path(init).unlink(missing_ok=True)
        self._requests.close()
        self._over.set()
        self._crash()

    def _crash(self) -> None:
        while self._tasks:
            with suppress(KeyError):
                _, task = self._tasks.popitem()
                task.end("CRASH", CRASHED, error=self.exit_message())

    def exit_message(self) -> str:
        """How the worker ended, with its last output."""
        code = self._running().returncode
        how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"
        if self._fault:
            how = f"was ended: {self._fault}"
        stdout = "\n".join(list(self._invalid)[-LAST_LINES:]) or "<none>"
        stderr = "\n".join(list(self._errors)[-LAST_LINES:]) or "<none>"
        return f"The worker {how}.\n\n[stdout]\n{stdout}\n\n[stderr]\n{stderr}"


def _detach(stream: Any) -> int:
    """The descriptor of a pipe, without the object that would close it when collected."""
    descriptor = os.dup(stream.fileno())
    stream.close()
    return descriptor


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _shown(line: bytes) -> str:
    return line[:LINE_SHOWN].decode("utf-8", "replace").rstrip("\r\n")
