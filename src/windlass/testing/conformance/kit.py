"""Shared by all conformance kits: numbered cases with a level, their selection, their run, and their results.

A kit knows one contract. It takes the place of the engine, runs one worker per case, and raises `Broken` with what the
worker did wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from windlass.core.validation import check_count
from windlass.errors import Invalid, WindlassError

T = TypeVar("T")
PARALLEL_MAX = 64


class Level(StrEnum):
    """How much a case matters."""

    REQUIRED = "required"
    HARDENING = "hardening"


class Broken(Exception):
    """The worker did something wrong, or did not do something."""


class Case(msgspec.Struct, Generic[T], frozen=True):
    """`title` says what a correct worker does; `duty` is the full rule, shown when a worker breaks it."""

    number: int
    title: str
    duty: str
    level: Level
    check: Callable[[T], None]


class Result(msgspec.Struct, frozen=True):
    """The result of one case. `problem` is what the worker did instead."""

    number: int
    title: str
    level: Level
    passed: bool
    duty: str
    problem: str
    seconds: float


def ignore(_result: Result) -> None:
    """The default of `on_result`."""


class Kit(Generic[T]):
    """The cases of one contract. People quote their numbers, so new cases are added at the end."""

    def __init__(self, contract: str, breaks: tuple[type[Exception], ...] = ()) -> None:
        """`breaks`: errors in a case that mean that the connection to the worker broke."""
        self.contract, self.cases = contract, list[Case[T]]()
        self._breaks = breaks

    def required(self, title: str, duty: str) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
        return self._case(title, duty, Level.REQUIRED)

    def hardening(self, title: str, duty: str) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
        return self._case(title, duty, Level.HARDENING)

    def _case(self, title: str, duty: str, level: Level) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
        def add(check: Callable[[T], None]) -> Callable[[T], None]:
            self.cases.append(Case(len(self.cases) + 1, title, duty, level, check))
            return check

        return add

    def select(self, only: Collection[int] = (), level: Level | None = None) -> list[Case[T]]:
        """The cases with these numbers, of this level; by default all. Raises Invalid for an unknown number."""
        unknown = set(only) - {case.number for case in self.cases}
        if unknown:
            raise Invalid(f"there is no case {min(unknown)}: they are 1 to {len(self.cases)}", field="only")
        chosen = [case for case in self.cases if not only or case.number in only]
        return [case for case in chosen if level is None or case.level == level]

    def run(
        self,
        cases: Sequence[Case[T]],
        start: Callable[[], AbstractContextManager[T]],
        *,
        parallel: int = 1,
        on_result: Callable[[Result], None] = ignore,
    ) -> list[Result]:
        """Run each case with what `start` opens; `on_result` is called with each result, in the order of the cases."""
        check_count("parallel", parallel, least=1, most=PARALLEL_MAX)
        results, threads, over = list[Result](), ThreadPoolExecutor(parallel), threading.Event()

        def try_next(case: Case[T]) -> Result:
            if over.is_set():
                raise CancelledError
            try:
                return self._try(case, start)
            except BaseException:
                over.set()
                raise

        try:
            for result in threads.map(try_next, cases):
                on_result(result)
                results.append(result)
        finally:  # after Ctrl-C, or if a worker cannot be started, do not start the others
            over.set()
            threads.shutdown(cancel_futures=True)
        return results

    def _try(self, case: Case[T], start: Callable[[], AbstractContextManager[T]]) -> Result:
        began_s, problem = time.monotonic(), ""
        try:
            with start() as trial:
                case.check(trial)
        except Broken as broken:
            problem = str(broken)
        except self._breaks as error:
            problem = f"the connection to the worker broke: {type(error).__name__}: {error}"
        except WindlassError:  # the case could not be run at all
            raise
        except Exception as error:
            problem = f"the case cannot read what the worker sent: {type(error).__name__}: {error}"
        seconds = round(time.monotonic() - began_s, 3)
        return Result(case.number, case.title, case.level, not problem, case.duty, problem, seconds)


def expect(what: str, expected: object, actual: object) -> None:
    """Raises Broken unless both are equal."""
    if expected != actual:
        raise Broken(f"{what}: expected {expected!r:.200}, got {actual!r:.200}")
