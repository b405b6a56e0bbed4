"""What a case is, and how all of them are held against one worker.

A case waits for what has to happen, with patience, and for a short while that nothing happens which must not. Cases are
independent of each other, so that any few of them can be run, one after the other or side by side.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from windlass.core.check import check_count, check_url
from windlass.core.error import Invalid, Unavailable
from windlass.testing.callback.stand_in import Fault, Heard, Pushed, Reply, Script, StandIn
from windlass.wire.signature import signing_key

LONG = 10  # intervals


def as_usual(_what: str, _before: int) -> Reply | None:
    """Everything is accepted."""
    return None


class Trial:
    """One worker, as a case sees it."""

    def __init__(self, engine: StandIn, kind: str) -> None:
        self.engine, self.kind = engine, kind
        self.interval_s = engine.interval_ms / 1000

    def envelope(self, intervals: float = 0, outcome: str = "SUCCEEDED", **changes: object) -> dict[str, Any]:
        """A task that works for so many heartbeat intervals and then ends like this."""
        payload = {"work_ms": int(intervals * self.engine.interval_ms), "outcome": outcome}
        return self.engine.envelope(self.kind, payload, **changes)

    def push(self, envelope: dict[str, Any], script: Script = as_usual) -> Pushed:
        """Push it, and see it accepted; not when it is one that a worker may refuse."""
        pushed = self.engine.push(envelope, script)
        with self.engine.lock:
            begun = self.engine.news.wait_for(
                lambda: pushed.status is not None or bool(pushed.heard), self.engine.patience_s
            )
        if not begun:
            raise Fault(f"the push was not answered within {self.engine.patience_s:g} s")
        if pushed.status == -1:
            raise Fault("the push was not answered: the connection was refused or broken")
        if pushed.status is not None and not (200 <= pushed.status < 300 or pushed.status == 409):
            hint = (
                ": redirects are not followed; does the URL end with a slash there?"
                if pushed.status // 100 == 3
                else ""
            )
            raise Fault(f"the push was answered with {pushed.status}{hint}")
        return pushed

    def quiet(self, pushed: Pushed, after: Heard | None, intervals: float = 4) -> None:
        """Nothing more may be said."""
        pushed.quiet(intervals * self.interval_s, after)


class Case(msgspec.Struct, frozen=True):
    """`title` is what a good worker does; `duty` says it in full, for the author of one that does not."""

    number: int
    title: str
    duty: str
    check: Callable[[Trial], None]


class Result(msgspec.Struct, frozen=True):
    """How one case went. `problem` is what the worker did instead."""

    number: int
    title: str
    passed: bool
    duty: str
    problem: str
    seconds: float


CASES: list[Case] = []


def case(title: str, duty: str) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    def add(check: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CASES.append(Case(len(CASES) + 1, title, duty, check))
        return check

    return add


def check_worker(
    url: str,
    secret: str,
    *,
    kind: str = "conformance",
    only: Sequence[int] = (),
    interval_ms: int = 250,
    patience_s: float = 10.0,
    parallel: int = 1,
    callback_url: str | None = None,
    told: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Hold the cases against a worker; `told` hears of each as soon as it is over, in the order of their numbers."""
    import windlass.testing.callback.cases  # noqa: F401 (they add themselves)

    check_url("url", url)
    signing_key(secret)
    check_count("parallel", parallel, least=1, most=64)
    check_count("interval_ms", interval_ms, least=10, most=60_000)
    unknown = [number for number in only if not 1 <= number <= len(CASES)]
    if unknown:
        raise Invalid(f"there is no case {unknown[0]}: they are 1 to {len(CASES)}", field="only")
    chosen = [case for case in CASES if not only or case.number in only]
    with (
        StandIn(url, secret, interval_ms=interval_ms, patience_s=patience_s, callback_url=callback_url) as engine,
        ThreadPoolExecutor(parallel) as threads,
    ):
        _check_reachable(engine)
        results = []
        for result in threads.map(lambda case: _run(case, Trial(engine, kind)), chosen):
            told(result)
            results.append(result)
    return results


def _check_reachable(engine: StandIn) -> None:
    try:
        engine.send(b"{}", message_id="reach", headers={})
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the worker at {engine.worker_url} does not answer: {error}") from None


def _run(case: Case, trial: Trial) -> Result:
    began_s, problem = time.monotonic(), ""
    try:
        case.check(trial)
    except Fault as fault:
        problem = str(fault)
    except (OSError, http.client.HTTPException) as error:
        problem = f"the connection to the worker broke: {type(error).__name__}: {error}"
    return Result(case.number, case.title, not problem, case.duty, problem, round(time.monotonic() - began_s, 3))
