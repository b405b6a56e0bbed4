"""The policy of a task: its budgets, its time limits, and the delay between two tries.

`jitter` lies in [0, 1) and only lengthens a delay, by at most a fifth, so that a promised delay is never cut short.
"""

from __future__ import annotations

import msgspec

from windlass.core.failure import Failure

JITTER_SHARE = 0.2


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of a task, set by its submitter. Most tasks have the defaults, which are not stored. `unlimited`: no
    failure and no loss ends it, whatever its budgets and the category say. `lease_s`: an attempt without a heartbeat
    for so long is lost; None is the time of its queue. Only the engine sets these two, for jobs of DAGs."""

    max_attempts: int = 5
    max_losses: int = 3
    timeout_s: float | None = None
    cancel_grace_s: float = 30.0
    retry_delay_s: float = 1.0
    retry_factor: float = 2.0
    retry_delay_max_s: float = 300.0
    unlimited: bool = False
    lease_s: float | None = None


DEFAULT_POLICY = Policy()


def retry_delay_s(policy: Policy, failure: Failure, failures: int, jitter: float) -> float:
    """Seconds until the next try after this failure, which is the `failures`-th failure (or loss).

    A delay that the worker names replaces the formula. It gets the same jitter, so that many tasks that got "in 60 s"
    do not come back at once.
    """
    assert failures >= 1, failures
    assert 0.0 <= jitter < 1.0, jitter
    if failure.retry_after_s is not None:
        delay_s = failure.retry_after_s
    else:
        delay_s = capped_power(policy.retry_delay_s, policy.retry_factor, failures - 1, policy.retry_delay_max_s)
    return delay_s * (1.0 + JITTER_SHARE * jitter)


def capped_power(base: float, factor: float, exponent: int, cap: float) -> float:
    """base × factor^exponent, at most `cap`; a large exponent must not overflow on its way to the cap."""
    try:
        return min(base * float(factor) ** exponent, cap)
    except OverflowError:
        return cap if base > 0 else 0.0
