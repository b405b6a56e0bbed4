"""Virtual time. The event loop's clock stands still while anything runs, and jumps to the next timer when all wait.

Owns time and nothing else. Real input and output happens only inside `outside`, where the clock is frozen: what takes
long on this machine takes no time in the simulation, and a run depends on nothing but its seed.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stuck(Exception):
    """Everybody waits, and for nothing that will ever come."""


class _Selector(selectors.DefaultSelector):
    """Is asked whenever nobody can go on."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return super().select(0)
        if self.loop.outside_count > 0:
            return super().select(None)
        self.loop.jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep`, `call_later` and `wait_for` are all in virtual seconds."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.virtual_s = 0.0
        self.outside_count = 0
        super().__init__(selector)

    def time(self) -> float:
        return self.virtual_s

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """At once: a thread would end whenever it likes."""
        done = self.create_future()
        try:
            done.set_result(function(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def jump(self, by_s: float | None) -> None:
        if by_s is None:
            raise Stuck("everybody waits and no timer is set")
        self.virtual_s += by_s

    @contextmanager
    def outside(self) -> Iterator[None]:
        """For real input and output, such as one statement: virtual time stands still meanwhile."""
        self.outside_count += 1
        try:
            yield
        finally:
            self.outside_count -= 1
