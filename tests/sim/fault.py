"""What goes wrong, and how often: drawn from the seed, so that some seeds are calm and some are storms.

Owns the menu of faults at a statement. Who crashes when is in `chaos`; what a client or worker does wrong is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tests.sim.seed import Stream


class Fault(StrEnum):
    """What happens to one statement."""

    NONE = "ok"
    BUSY = "busy"  # refused, nothing was done
    BROKEN_BEFORE = "broken-before"  # the connection breaks before the statement runs
    BROKEN_AFTER = "broken-after"  # it runs, then the connection breaks: its reply is lost
    CRASH = "crash"  # it runs, then the engine that sent it dies


@dataclass(slots=True)
class Weather:
    """Rates for one seed. `stop` makes it calm for good."""

    busy: float
    broken_before: float
    broken_after: float
    commit_lost: float
    crash: float
    no_connection: float
    request_lost: float
    reply_lost: float
    slow: float
    slow_commit: float
    slow_s: float
    latency_s: float
    notify_s: float

    @classmethod
    def drawn(cls, stream: Stream) -> Weather:
        """Each rate is often nil, so that a seed shows what single faults do as well as all of them."""

        def rate(most: float) -> float:
            return stream.pick({0.0: 3, most / 10: 2, most / 3: 2, most: 1})

        return cls(
            busy=rate(0.02),
            broken_before=rate(0.02),
            broken_after=rate(0.02),
            commit_lost=rate(0.08),
            crash=stream.pick({0.0: 6, 0.001: 2, 0.005: 1}),
            no_connection=rate(0.02),
            request_lost=rate(0.05),
            reply_lost=rate(0.10),
            slow=rate(0.10),
            slow_commit=rate(0.30),  # it waits for the disk, while others see nothing of it
            slow_s=stream.pick({0.05: 2, 0.5: 2, 3.0: 1}),
            latency_s=stream.pick({0.0002: 1, 0.001: 3, 0.005: 2, 0.02: 1}),
            notify_s=stream.pick({0.001: 2, 0.02: 2, 0.3: 1}),
        )

    def stop(self) -> None:
        self.busy = self.broken_before = self.broken_after = self.commit_lost = self.no_connection = 0.0
        self.crash = self.request_lost = self.reply_lost = self.slow = self.slow_commit = 0.0

    def at_statement(self, stream: Stream, *, commit: bool) -> Fault:
        draw = stream.random()
        lost = self.commit_lost if commit else 0.0
        menu = (
            (Fault.BUSY, 0.0 if commit else self.busy),
            (Fault.BROKEN_BEFORE, self.broken_before + lost / 2),
            (Fault.BROKEN_AFTER, self.broken_after + lost),
            (Fault.CRASH, 10 * self.crash if commit else self.crash),
        )
        for fault, rate in menu:
            if draw < rate:
                return fault
            draw -= rate
        return Fault.NONE

    def latency(self, stream: Stream, *, commit: bool = False) -> float:
        """How long a message is under way."""
        long_s = stream.around(self.slow_s) if stream.often(self.slow_commit if commit else self.slow) else 0.0
        return stream.around(self.latency_s) + long_s
