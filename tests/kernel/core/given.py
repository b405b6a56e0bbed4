"""The tasks that the tests of core begin with: one builder per state, each made by the rules themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy
from windlass.core.states import Instant, State, Verb
from windlass.core.task import Task

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TASK_ID = UUID(int=0x7A5C)
LEASE = UUID(int=0x1EA5E)
OTHER_LEASE = UUID(int=0x07E4)
RUN_ID = UUID(int=0x404)

CRASH = Failure(Category.USER_CODE, "it crashed", "ValueError", trace="line 1")
OTHER_CRASH = Failure(Category.USER_CODE, "it crashed elsewhere", "KeyError")
FATAL = Failure(Category.USER_CODE, "it will never work", retryable=False)
MISMATCH = Failure(Category.CONFIGURATION, "step 2 is called `pay` now", "CODE_MISMATCH")


def at(seconds: float) -> Instant:
    """So many seconds after the moment at which every test begins."""
    return NOW + timedelta(seconds=seconds)


def queued(policy: Policy | None = None, **fields: Any) -> Task:
    """As a submit leaves it: the timer of a waiting task is its deadline."""
    fields.setdefault("timer_at", fields.get("deadline_at"))
    fields = {"state": State.QUEUED, "available_at": NOW, **fields}
    return Task(TASK_ID, "default", "mail", "send", policy=policy or Policy(), **fields)


def blocked(policy: Policy | None = None, **fields: Any) -> Task:
    return queued(policy, state=State.BLOCKED, run_id=RUN_ID, **fields)


def running(policy: Policy | None = None, **fields: Any) -> Task:
    """Attempt 1 (or one more than the `attempt` given) under LEASE, claimed at NOW."""
    return rules.claim(queued(policy, **fields), LEASE, "ada", NOW).after


def lost(policy: Policy | None = None, **fields: Any) -> Task:
    """Its lease ran out: queued for its retry, and the holder may still report."""
    return rules.expire(running(policy, **fields), NOW, 0.0).after


def failed_once(policy: Policy | None = None, **fields: Any) -> Task:
    """Queued for its retry after a failure that was reported."""
    task = running(policy, **fields)
    return rules.fail(task, task.attempt, LEASE, CRASH, NOW, 0.0).after


def sleeping(policy: Policy | None = None, until: Instant | None = None, **fields: Any) -> Task:
    task = running(policy, **fields)
    return rules.sleep(task, task.attempt, LEASE, until, NOW).after


def parked(policy: Policy | None = None, **fields: Any) -> Task:
    task = running(policy, **fields)
    return rules.park(task, task.attempt, LEASE, MISMATCH, NOW).after


def cancelling(policy: Policy | None = None, **fields: Any) -> Task:
    """Running, and a cancel was asked for that the worker has not heard of."""
    return rules.cancel(running(policy, **fields), "no longer needed", NOW).after


def told(policy: Policy | None = None, **fields: Any) -> Task:
    """Running, and the worker was told of the cancel at NOW: its grace has begun."""
    return rules.signal_cancel(cancelling(policy, **fields), NOW).after


def succeeded(policy: Policy | None = None, **fields: Any) -> Task:
    task = running(policy, **fields)
    return rules.complete(task, task.attempt, LEASE, b"42", NOW).after


def failed(policy: Policy | None = None, **fields: Any) -> Task:
    task = running(policy, **fields)
    return rules.fail(task, task.attempt, LEASE, FATAL, NOW, 0.0).after


def cancelled(policy: Policy | None = None, **fields: Any) -> Task:
    return rules.cancel(queued(policy, **fields), "no longer needed", NOW).after


def skipped(policy: Policy | None = None, **fields: Any) -> Task:
    failure = Failure(Category.CANCELLED, "upstream failed", "UPSTREAM_NOT_SUCCEEDED")
    return rules.end(Verb.SKIP, blocked(policy, **fields), State.SKIPPED, failure, NOW).after


TERMINAL = {"succeeded": succeeded, "failed": failed, "cancelled": cancelled, "skipped": skipped}
