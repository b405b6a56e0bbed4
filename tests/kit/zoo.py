"""Hostile handlers: what they raise, return and say is the worst that we could think of. Standard library only, so that
workers of any kind can run them. `BEASTS` can be let out anywhere; `WILD` do harm to the whole process they run in.
"""

# ruff: noqa: PLE0303, PLE0307, PLW0108

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MEGABYTE = 1024 * 1024
words_may_come = threading.Event()  # the exception that takes its time waits for it


class Odd(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__


class Leaver(Exception):
    def __str__(self) -> str:
        sys.exit("in the middle of a word")


class Slow(Exception):
    def __str__(self) -> str:
        words_may_come.wait(60)
        return "at last"


class Endless(Exception):
    def __str__(self) -> str:
        while True:
            time.sleep(0.05)


class Liar(str):
    __slots__ = ()

    def __len__(self) -> int:
        return -1

    def __getitem__(self, key: Any) -> Any:
        raise IndexError("no")

    encode = replace = isprintable = __getitem__  # type: ignore[assignment]


class Lies(Exception):
    def __str__(self) -> str:
        return Liar("a lie")


class Numeric(Exception):
    def __str__(self) -> Any:
        return 7


class Locked(Exception):
    """Cannot be pickled, nor made again from its arguments."""

    def __init__(self, *, lock: Any) -> None:
        super().__init__("locked")
        self.lock = lock

    def __reduce__(self) -> Any:
        raise TypeError("not to be taken away")


class Instance(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("do not ask")

    def __getattribute__(cls, name: str) -> Any:
        if name in ("__module__", "__str__"):
            raise RuntimeError("do not look")
        return super().__getattribute__(name)


class Secretive(Exception, metaclass=Instance):
    pass


class Nothing:
    def __repr__(self) -> str:
        raise RuntimeError("nothing to see")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("nothing to go through")


class Trap(dict[str, Any]):
    def keys(self) -> Any:
        raise RuntimeError("no keys")

    def items(self) -> Any:
        raise RuntimeError("no items")


@dataclass
class Record:
    value: float


def raises(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def beast() -> Any:
        raise error if isinstance(error, BaseException) else error()

    return beast


def cyclic() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    raise one


def chained() -> None:
    last: BaseException | None = None
    for number in range(3000):
        error = ValueError(f"number {number}")
        error.__cause__ = last
        last = error
    assert last is not None
    raise last


def nested_group() -> None:
    error: Exception = ValueError("the innermost")
    for _ in range(500):
        error = ExceptionGroup("around it", [error, Mute()])
    raise error


def recursion() -> None:
    recursion()


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def noted(note: Any) -> Callable[[], Any]:
    def beast() -> None:
        error = ValueError("with a note")
        error.__notes__ = note
        raise error

    return beast


def from_thread() -> None:
    """A thread of its own that dies badly, and goes on after its handler has ended."""

    def work() -> None:
        time.sleep(0.01)
        raise Mute

    threading.Thread(target=work, daemon=True).start()
    raise ValueError("and so do I")


# What each of them must end as: True, failed; False, done; None, either.
BEASTS: dict[str, tuple[Callable[[], Any], bool | None]] = {
    "a surrogate": (raises(ValueError(os.fsdecode(b"caf\xe9"))), True),
    "a NUL": (raises(ValueError("a\x00b")), True),
    "control characters": (raises(ValueError("\x1b[31mred\x07\x9b")), True),
    "words that raise": (raises(Mute), True),
    "words that exit": (raises(Leaver), True),
    "words that lie": (raises(Lies), True),
    "words that are a number": (raises(Numeric), True),
    "arguments without a repr": (raises(ValueError(Nothing(), Nothing())), True),
    "a class that is not to be asked": (raises(Secretive), True),
    "a BaseException": (raises(Odd("odd")), True),
    "KeyboardInterrupt": (raises(KeyboardInterrupt), True),
    "GeneratorExit": (raises(GeneratorExit), True),
    "StopIteration": (raises(StopIteration(1)), True),
    "StopAsyncIteration": (raises(StopAsyncIteration), True),
    "sys.exit": (lambda: sys.exit(3), True),
    "sys.exit with words": (lambda: sys.exit("caf\udce9"), True),
    "MemoryError": (raises(MemoryError), True),
    "RecursionError": (recursion, True),
    "20 MB of words": (lambda: raises(ValueError("x" * 20 * MEGABYTE))(), True),
    "10 MB of surrogates": (lambda: raises(ValueError("\udce9" * 10 * MEGABYTE))(), True),
    "causes in a circle": (cyclic, True),
    "3000 causes": (chained, True),
    "500 groups in each other": (nested_group, True),
    "a group of 2000": (lambda: raises(ExceptionGroup("many", [ValueError(str(n)) for n in range(2000)]))(), True),
    "an exception that cannot be pickled": (lambda: raises(Locked(lock=threading.Lock()))(), True),
    "notes with a surrogate": (noted(["\udce9"]), True),
    "notes that are none": (noted(Nothing()), True),
    "a long name": (lambda: raises(type("X" * 100_000, (Exception,), {}))(), True),
    "a name in Greek": (lambda: raises(type("Λάθος", (Exception,), {})("λ"))(), True),
    "a thread that dies": (from_thread, True),
    "NaN": (lambda: math.nan, True),
    "infinity deep inside": (lambda: {"rows": [1, None, {"mean": -math.inf}]}, True),
    "NaN in a record": (lambda: Record(math.nan), True),
    "a surrogate returned": (lambda: "caf\udce9", True),
    "a surrogate as a key": (lambda: {"caf\udce9": 1}, True),
    "a number of 5000 digits": (lambda: 10**5000, True),
    "100,000 lists in each other": (deep, True),
    "a list in itself": (cycle, True),
    "an object": (object, True),
    "a generator": (lambda: (n for n in range(3)), True),
    "a lock": (threading.Lock, True),
    "a function": (lambda: recursion, True),
    "a trap": (lambda: Trap(a=1), None),
    "bytes": (lambda: b"\xff\x00", None),
    "a set": (lambda: {1, 2}, None),
    "a NUL returned": (lambda: "a\x00b", None),
    "2**70": (lambda: 2**70, None),
}


# --------------------------------------------------------------------------------------------- to the whole process


def close_files() -> str:
    os.closerange(3, 512)
    return "closed"


def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


def stop_loop() -> None:
    asyncio.get_running_loop().stop()


def take_signals() -> str:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return "deaf"


def break_output() -> str:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    with suppress(OSError):
        os.close(1)
    return "mute"


def break_logging() -> str:
    def refuse(_: logging.LogRecord) -> bool:
        raise RuntimeError("no logs")

    for handler in logging.getLogger().handlers:
        handler.addFilter(refuse)
    logging.getLogger("windlass.worker").addFilter(refuse)
    return "unlogged"


def leave_thread() -> str:
    threading.Thread(target=time.sleep, args=(3600,), name="left-behind").start()
    return "left"


def exit_elsewhere() -> None:
    """In a task of its own, and in a callback of the loop."""

    async def leave() -> None:
        sys.exit(4)

    loop = asyncio.get_running_loop()
    exit_elsewhere.task = loop.create_task(leave())  # type: ignore[attr-defined]
    loop.call_soon(sys.exit, 5)


def few_files() -> str:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return "few"


def shallow() -> str:
    sys.setrecursionlimit(200)
    return "shallow"


def change_place() -> str:
    os.chdir("/")
    os.environ.clear()
    with suppress(Exception):
        import locale

        locale.setlocale(locale.LC_ALL, "C")
    gc.disable()
    return "elsewhere"


# What the worker process does afterwards: True, it goes on; False, it ends, and others take over.
WILD: dict[str, tuple[Callable[[], Any], bool]] = {
    "closes files": (close_files, False),
    "cancels all tasks": (cancel_all, False),
    "stops the loop": (stop_loop, False),
    "exits at once": (lambda: os._exit(7), False),
    "kills": (lambda: os.kill(os.getpid(), signal.SIGKILL), False),
    "takes the signals": (take_signals, True),
    "breaks the output": (break_output, True),
    "breaks logging": (break_logging, True),
    "leaves a thread": (leave_thread, True),
    "exits in another task": (exit_elsewhere, True),
    "limits files": (few_files, True),
    "is shallow": (shallow, True),
    "changes its place": (change_place, True),
}


def let_out(name: str) -> Any:
    """Whichever it is."""
    return (BEASTS[name] if name in BEASTS else WILD[name])[0]()
