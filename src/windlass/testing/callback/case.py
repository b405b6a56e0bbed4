"""What a case can do with a worker, and how all cases are held against one.

A case waits for what has to happen, with patience, and for a short while that nothing happens which must not. Cases are
independent of each other, so that any few of them can be run, one after the other or side by side.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

from windlass.core.check import check_count, check_url
from windlass.core.error import Unavailable
from windlass.testing.callback.stand_in import Heard, Pushed, Script, StandIn
from windlass.testing.conformance import Broken, Kit, Level, Result, ignore
from windlass.testing.listener import Reply
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
            raise Broken(f"the push was not answered within {self.engine.patience_s:g} s")
        if pushed.status == -1:
            raise Broken("the push was not answered: the connection was refused or broken")
        if pushed.status is not None and not (200 <= pushed.status < 300 or pushed.status == 409):
            hint = (
                ": redirects are not followed; does the URL end with a slash there?"
                if pushed.status // 100 == 3
                else ""
            )
            raise Broken(f"the push was answered with {pushed.status}{hint}")
        return pushed

    def quiet(self, pushed: Pushed, after: Heard | None, intervals: float = 4) -> None:
        """Nothing more may be said."""
        pushed.quiet(intervals * self.interval_s, after)


KIT = Kit[Trial]("callback", breaks=(OSError, http.client.HTTPException))


def check_worker(
    url: str,
    secret: str,
    *,
    kind: str = "conformance",
    only: Collection[int] = (),
    level: Level | None = None,
    interval_ms: int = 250,
    patience_s: float = 10.0,
    parallel: int = 1,
    callback_url: str | None = None,
    told: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Hold the cases against a worker; `told` hears of each as soon as it is over, in the order of their numbers."""
    check_url("url", url)
    signing_key(secret)
    check_count("interval_ms", interval_ms, least=10, most=60_000)
    chosen = KIT.select(only, level)
    with StandIn(url, secret, interval_ms=interval_ms, patience_s=patience_s, callback_url=callback_url) as engine:
        _check_reachable(engine)
        return KIT.run(chosen, lambda: nullcontext(Trial(engine, kind)), parallel=parallel, told=told)


def _check_reachable(engine: StandIn) -> None:
    try:
        engine.send(b"{}", message_id="reach", headers={})
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the worker at {engine.worker_url} does not answer: {error}") from None
