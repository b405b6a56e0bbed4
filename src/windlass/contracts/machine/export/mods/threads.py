"""A pool of daemon threads. Those of `concurrent.futures` keep a program from ending while one of them waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ThreadPool:
    """Runs calls in order of arrival, one per thread at a time."""

    def __init__(self, size: int, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._size = size
        for _ in range(size):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        self._work.put(work)
        return future

    def close(self) -> None:
        """End the threads after the calls that were submitted. Does not wait for them."""
        for _ in range(self._size):
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # it holds the result, which may be large
