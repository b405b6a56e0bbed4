"""The worker: reads requests from stdin, runs scripts concurrently, answers on stdout, one message per line.

Before any script runs, the two descriptors of the protocol are moved away: prints, also those of native code and of
child processes, go to stderr, and a script that reads stdin reads nothing. Standard library only, and little of it:
this file starts in environments without Windlass.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from .line import LINE_MAX, LineReader, LineWriter, TooLong
from .running import Task
from .wire import AUTO, MARK, TYPE, encoder

INIT = "APPOSE_INIT_SCRIPT"
GONE_MS = 200  # the pipes of a client that dies are closed one after another, within this time
IDLE_MAX = 32  # threads that are kept for the next requests
_ID = re.compile(rb'"task"\s*:\s*"([^"\\]{1,200})"')


def main() -> None:
    """Entry point: exits with 0 once stdin has ended and every accepted request is answered."""
    requests, responses = take_descriptors()
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the client, which then closes our stdin
    Worker(requests, responses).run()


def take_descriptors() -> tuple[int, int]:
    """Move the protocol's descriptors out of reach of scripts; child processes do not inherit them."""
    requests, responses = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return requests, responses


class Worker:
    """Any idle thread may read. It runs the request that it has read while another thread continues to read, so that
    requests are not handed from one thread to another."""

    def __init__(self, requests: int, responses: int) -> None:
        longest = int(os.environ.get("WINDLASS_STDIO_LINE_MAX") or LINE_MAX)
        self.exports: dict[str, Any] = {}
        self._responses, self._descriptor = LineWriter(responses), responses
        self._reader = LineReader(requests, longest)
        self._reading = threading.Lock()
        self._state = threading.Lock()
        self._tasks: dict[str, Task] = {}
        self._idle = 0
        self._at_end = False
        self._main: list[Task] = []
        self._something = threading.Condition(self._state)  # for the main queue, or the end
        self._exported = 0
        self._collecting = threading.Lock()
        self._pid = os.getpid()
        self._spell = encoder(self._export_value)

    # ----------------------------------------------------------------------------------------- lifecycle

    def run(self) -> None:
        """The main thread runs the queue `main`, in order, until all accepted tasks have ended."""
        self._init()
        threading.Thread(target=self._watch_client, name="windlass-watch", daemon=True).start()
        self._spawn()
        while True:
            with self._something:
                while not self._main and not (self._at_end and not self._tasks):
                    self._something.wait()
                if not self._main:
                    break
                task = self._main.pop(0)
            if not task.ended:  # cancelled while it waited
                self._run(task)
        with suppress(OSError):
            self._responses.flush()
        if _leaves_something() and _reader_is_gone(self._descriptor, GONE_MS):
            self._end_now()  # our stdin ended because its writer died
        if (shm := _loaded_shm()) is not None:
            shm.leave_owned()

    def _init(self) -> None:
        """Run the init script of the client before the first request, and export its public names."""
        path = os.environ.pop(INIT, None)
        if not path:
            return
        names: dict[str, Any] = {"__name__": "__main__"}
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes longer to import than we to start
                text = file.read()
            exec(compile(text, "<init script>", "exec"), names)  # noqa: S102
            os.remove(path)  # noqa: PTH107
        except BaseException as error:
            log_line(f"[WARNING] Init script failed: {type(error).__name__}: {error}")
        self.exports.update({name: value for name, value in names.items() if not name.startswith("_")})

    def _watch_client(self) -> None:
        """When the client has died, end at once, with our blocks and the processes that scripts started."""
        while not _reader_is_gone(self._descriptor, None):
            pass
        self._end_now()

    def _end_now(self) -> None:
        with suppress(Exception):
            if (shm := _loaded_shm()) is not None:
                shm.unlink_names()
        if os.getsid(0) == os.getpid():  # started as we start them: all of the session is ours
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    # ----------------------------------------------------------------------------------------- reading

    def _spawn(self) -> None:
        """Count the thread before it runs: it may take a request, and need a successor, at once."""
        self._idle += 1
        try:
            threading.Thread(target=self._read_and_run, name="windlass-task", daemon=True).start()
        except RuntimeError:
            self._idle -= 1
            raise

    def _read_and_run(self) -> None:
        while True:
            task = self._next_task()
            if task is None:
                return
            self._run(task)
            del task
            with self._state:
                if self._idle >= IDLE_MAX:
                    return
                self._idle += 1

    def _next_task(self) -> Task | None:
        """The next task for this thread to run; other requests are handled here. None at the end."""
        with self._reading:
            while not self._at_end:
                task = self._next_request()
                if task is not None:
                    with self._state:
                        self._idle -= 1
                        if self._idle == 0:
                            with suppress(RuntimeError):  # no more threads: this one reads on when its task has ended
                                self._spawn()
                    return task
        return None

    def _next_request(self) -> Task | None:
        line = b""
        try:
            read = self._reader.read()
            if read is None:
                self._end()
                return None
            line = read.strip()
            return self._take(line) if line else None
        except json.JSONDecodeError as error:
            if line[:1] == b"{" and error.msg == "Extra data":  # a client that writes from several threads
                whole, rest = line.decode()[: error.pos], line.decode()[error.pos :]
                self._reader.put_back([whole.encode(), rest.encode()])
            else:
                self._reject(line, f"{type(error).__name__}: {error}")
        except TooLong as long:
            self._reject(long.head, "the line is too long")
        except OSError:
            self._end()
        except (ValueError, RecursionError, MemoryError, TypeError) as error:
            self._reject(line, f"{type(error).__name__}: {error}")
        return None

    def _take(self, line: bytes) -> Task | None:
        request = json.loads(line)
        if not isinstance(request, dict):
            raise TypeError("a request must be an object")
        task_id, kind = request.get("task"), request.get("requestType")
        if not isinstance(task_id, str):
            raise TypeError("`task` must be a string")
        if kind == "CANCEL":
            self._cancel(task_id)
            return None
        if kind != "EXECUTE":
            raise ValueError(f"there is no request type {kind!r}")
        if not isinstance(request.get("script"), str):
            raise TypeError("`script` must be a string")
        if not isinstance(request.get("inputs") or {}, dict):
            raise TypeError("`inputs` must be an object")
        return self._accept(Task(self, request, MARK in line), to_main=request.get("queue") == "main")

    def _accept(self, task: Task, *, to_main: bool) -> Task | None:
        with self._something:
            if task.uuid in self._tasks and not self._tasks[task.uuid].ended:
                log_line(f"the task {task.uuid} is already running here: the second request is ignored")
                return None
            self._tasks[task.uuid] = task
            if not to_main:
                return task
            self._main.append(task)
            self._something.notify()
        return None

    def _cancel(self, task_id: str) -> None:
        with self._state:
            task = self._tasks.get(task_id)
            waits = task in self._main
            if task is not None:
                task.cancel_requested = True
        if task is None:
            log_line(f"No such task: {task_id}")
        elif waits:
            task.cancel()

    def _reject(self, line: bytes, why: str) -> None:
        """Log it on stderr, and fail the task if its id can be read and it is not one that runs."""
        log_line(f"cannot read a request: {why}: {line[:200]!r}")
        found = _ID.search(line[:65536])
        task_id = found[1].decode(errors="replace") if found else None
        if task_id is not None and task_id not in self._tasks:
            response = {"error": f"the request cannot be run: {why}", "task": task_id, "responseType": "FAILURE"}
            self.send(self.encode(response))

    def _end(self) -> None:
        with self._something:
            self._at_end = True
            self._something.notify()

    # ----------------------------------------------------------------------------------------- running

    def _run(self, task: Task) -> None:
        try:
            task.run()
        finally:
            with self._something:
                if self._tasks.get(task.uuid) is task:  # else another one with the same id has come since its end
                    del self._tasks[task.uuid]
                if self._at_end:
                    self._something.notify()
        for _ in range(3):  # a collection does nothing while another one runs
            if not task.release_memory():
                break
            import gc

            with self._collecting:
                gc.collect()

    def encode(self, response: dict[str, Any]) -> bytes:
        if os.getpid() != self._pid:
            os._exit(0)  # a script has forked, and its child came back here: only the parent may answer
        return f"{self._spell(response)}\n".encode("ascii")

    def send(self, line: bytes) -> None:
        try:
            self._responses.write(line)
        except OSError:
            self._end_now()

    def _export_value(self, value: object) -> dict[str, Any]:
        """Export a value that JSON cannot carry; the client gets its name."""
        with self._state:
            name = f"{AUTO}{self._exported}"
            self._exported += 1
        self.exports[name] = value
        return {TYPE: "worker_object", "var_name": name}


def _reader_is_gone(descriptor: int, within_ms: int | None) -> bool:
    """Whether the reader of this pipe has closed it, or closes it within this time."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(within_ms))


def _leaves_something() -> bool:
    """Whether blocks or processes would outlive us. True where children cannot be listed."""
    shm = _loaded_shm()
    if shm is not None and shm.owns_any():
        return True
    try:
        threads = os.listdir("/proc/self/task")  # noqa: PTH208
        for thread in threads:
            with open(f"/proc/self/task/{thread}/children") as children:  # noqa: PTH123
                if children.read(1):
                    return True
    except OSError:
        return True
    return False


def log_line(text: str) -> None:
    with suppress(Exception):
        sys.stderr.write(f"{text}\n")


def _loaded_shm() -> Any:
    """The module `shm`; None if no script has needed it."""
    return sys.modules.get(f"{__package__}.shm")
