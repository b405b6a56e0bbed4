"""What a case can do with a worker, and how all cases are run against one.

A case waits long for what must happen, and briefly for what must not. Cases are independent of each other, so that any
of them can be run, in sequence or in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import nullcontext
from typing import Any

from windlass.contracts.callback.conformance.stand_in import Callback, Pushed, Script, StandIn
from windlass.core.validation import check_count, check_url
from windlass.errors import Unavailable
from windlass.net.http import Unreachable
from windlass.net.signature import signing_key
from windlass.testing.conformance.kit import Broken, Kit, Level, Result, ignore

LONG = 10  # intervals


class Trial:
    """One worker, as a case sees it."""

    def __init__(self, engine: StandIn, kind: str) -> None:
        self.engine, self.kind = engine, kind
        self.interval_s = engine.interval_ms / 1000

    def envelope(self, intervals: float = 0, outcome: str = "SUCCEEDED", **changes: object) -> dict[str, Any]:
        """A task that works for some heartbeat intervals and then ends with this outcome."""
        payload = {"work_ms": int(intervals * self.engine.interval_ms), "outcome": outcome}
        return self.engine.envelope(self.kind, payload, **changes)

    def push(self, envelope: dict[str, Any], script: Script = lambda *_: None) -> Pushed:
        """Push an envelope, and check that the worker accepts it. By default all its callbacks are accepted."""
        pushed = self.engine.push(envelope, script)
        if not self.engine.until(lambda: pushed.status is not None or pushed.callbacks, self.engine.timeout_s):
            raise Broken(f"the push was not answered within {self.engine.timeout_s:g} s")
        if pushed.status == -1:
            raise Broken("the push was not answered: the connection was refused or broken")
        if pushed.status is not None and not (200 <= pushed.status < 300 or pushed.status == 409):
            hint = ": redirects are not followed; must the URL end with a slash?" if pushed.status // 100 == 3 else ""
            raise Broken(f"the push was answered with {pushed.status}{hint}")
        return pushed

    def quiet(self, pushed: Pushed, after: Callback | None, intervals: float = 4) -> None:
        """Check that no callback follows."""
        pushed.quiet(intervals * self.interval_s, after)


KIT = Kit[Trial]("callback", breaks=(Unreachable,))


def check_worker(
    url: str,
    secret: str,
    *,
    kind: str = "conformance",
    only: Collection[int] = (),
    level: Level | None = None,
    interval_ms: int = 250,
    timeout_s: float = 10.0,
    parallel: int = 1,
    callback_url: str | None = None,
    on_result: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Run the cases against a worker; `on_result` is called with each result, in order."""
    check_url("url", url)
    signing_key(secret)
    check_count("interval_ms", interval_ms, least=10, most=60_000)
    chosen = KIT.select(only, level)
    with StandIn(url, secret, interval_ms=interval_ms, timeout_s=timeout_s, callback_url=callback_url) as engine:
        try:
            engine.send(b"{}", message_id="reach", headers={})
        except Unreachable as error:
            raise Unavailable(f"the worker at {url} does not answer: {error}") from None
        return KIT.run(chosen, lambda: nullcontext(Trial(engine, kind)), parallel=parallel, on_result=on_result)
