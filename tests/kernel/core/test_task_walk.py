"""Every verb, in any order, from several attempts: what holds however a task got where it is.

A walk is made from its seed, so a failure replays: it names the seed and everything that happened.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from random import Random
from uuid import UUID

import pytest
from tests.kernel.core.given import NOW, RUN_ID, TASK_ID, blocked, queued

from windlass.core import task as rules
from windlass.core.failure import Category, Failure
from windlass.core.retry import Policy
from windlass.core.run import Edge, settle
from windlass.core.states import TABLE, TERMINAL, State, Transition, Verb
from windlass.core.task import Outcome, Task
from windlass.errors import Conflict, InvalidState, LeaseLost

WALKS = 1500
STEPS = 60
STEPS_AFTER_THE_END = 8
COUNTS_FAILURES = {Verb.FAIL, Verb.RETRY, Verb.TIME_OUT}
NEVER_CHANGES = ("id", "namespace", "queue", "kind", "priority", "deadline_at", "run_id", "policy", "has_dependents")

Moved = tuple[Verb, State, State]


class Walk:
    """One task, a clock that only goes forward, and everybody who ever claimed it."""

    def __init__(self, seed: int) -> None:
        self.randomness = Random(seed)
        self.now = NOW
        self.claims: list[tuple[int, UUID]] = []
        self.trace: list[str] = []
        self.moves: list[Moved] = []
        self.task = self.submit()

    def submit(self) -> Task:
        policy = Policy(
            max_attempts=self.randomness.randint(1, 4),
            max_losses=self.randomness.randint(0, 3),
            timeout_s=self.randomness.choice([None, 2.0, 8.0]),
            cancel_grace_s=self.randomness.choice([0.0, 3.0, 30.0]),
            retry_delay_s=self.randomness.choice([0.0, 1.0]),
        )
        deadline_at = self.randomness.choice([None, None, NOW + timedelta(seconds=10), NOW + timedelta(seconds=60)])
        make = self.randomness.choice([queued, queued, blocked])
        return make(policy, deadline_at=deadline_at, has_dependents=self.randomness.random() < 0.5)

    def go(self) -> list[Moved]:
        left = STEPS
        while left > 0:
            verb = self.randomness.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.trace.append(f"{self.now:%M:%S.%f} {self.task.state:9} {verb.__name__}")
            verb(self)
            self.check_always()
            left = min(left, STEPS_AFTER_THE_END) - 1 if self.task.terminal else left - 1
        return self.moves

    # ----------------------------------------------------------------------------------------- what may happen

    def time_passes(self) -> None:
        self.now += timedelta(seconds=self.randomness.choice([0.0, 0.25, 1.0, 5.0]))

    def claim(self) -> None:
        if self.task.state is State.QUEUED:
            lease_id = UUID(int=len(self.claims) + 1)
            self.happens(lambda: rules.claim(self.task, lease_id, f"worker {lease_id.int}", self.now))
            self.claims.append((self.task.attempt, lease_id))

    def complete(self) -> None:
        result = self.randomness.choice([None, b"1", b"2"])
        self.reports(lambda attempt, lease: rules.complete(self.task, attempt, lease, result, self.now))

    def fail(self) -> None:
        failure, jitter = self.failure(), self.randomness.random()
        self.reports(lambda attempt, lease: rules.fail(self.task, attempt, lease, failure, self.now, jitter))

    def report_cancelled(self) -> None:
        message = self.randomness.choice(["", "stopped"])
        self.reports(lambda attempt, lease: rules.report_cancelled(self.task, attempt, lease, message, self.now))

    def sleep(self) -> None:
        until = self.randomness.choice([None, self.now, self.now + timedelta(seconds=4)])
        before, come = self.task, self.randomness.random() < 0.3
        self.reports(lambda attempt, lease: rules.sleep(self.task, attempt, lease, until, self.now, come=come))
        if self.task is not before and self.task.state is State.SLEEPING:
            times = [time for time in (until, self.task.deadline_at) if time is not None]
            assert self.task.timer_at == min(times, default=None)

    def release(self) -> None:
        self.reports(lambda attempt, lease: rules.release(self.task, attempt, lease, self.now))

    def park(self) -> None:
        failure = self.failure()
        self.reports(lambda attempt, lease: rules.park(self.task, attempt, lease, failure, self.now))

    def expire(self) -> None:
        if self.task.state is State.RUNNING:
            self.happens(lambda: rules.expire(self.task, self.now, self.randomness.random()))

    def elapse(self) -> None:
        self.happens(lambda: rules.elapse(self.task, self.now, self.randomness.random()))
        assert self.task.timer_at is None or self.task.timer_at > self.now, "a timer that rang has been seen to"

    def cancel(self) -> None:
        self.happens(lambda: rules.cancel(self.task, "enough", self.now))

    def force_cancel(self) -> None:
        self.happens(lambda: rules.cancel(self.task, "now", self.now, force=True))
        assert self.task.terminal

    def signal_cancel(self) -> None:
        self.happens(lambda: rules.signal_cancel(self.task, self.now))

    def wake(self) -> None:
        self.happens(lambda: rules.wake(self.task, self.now))

    def resume(self) -> None:
        self.happens(lambda: rules.resume(self.task, self.now))

    def settle(self) -> None:
        upstream = self.randomness.choice([State.SUCCEEDED, State.SUCCEEDED, State.SUCCEEDED, *sorted(TERMINAL)])
        edge = Edge(TASK_ID, RUN_ID, upstream, any_outcome=self.randomness.random() < 0.5)
        self.happens(lambda: settle(self.task, [edge], self.randomness.choice([0, 0, 1]), self.now))

    def failure(self) -> Failure:
        return Failure(
            category=self.randomness.choice(list(Category)),
            message=self.randomness.choice(["broken", "worse"]),
            retryable=self.randomness.choice([None, None, True, False]),
            retry_after_s=self.randomness.choice([None, 0.0, 3.0]),
        )

    # ----------------------------------------------------------------------------------------- what holds of a step

    def reports(self, report: Callable[[int, UUID], Transition]) -> None:
        """A report of somebody who once claimed the task, mostly of the last; said again, it gets the same answer."""
        if not self.claims:
            return
        attempt, lease_id = self.claims[-1] if self.randomness.random() < 0.7 else self.randomness.choice(self.claims)
        before = self.task
        if attempt != before.attempt:
            with pytest.raises(LeaseLost):
                report(attempt, lease_id)
            return
        open_or_lost = before.state is State.RUNNING or (
            before.state is State.QUEUED and before.outcome is Outcome.LOST
        )
        made = self.happens(lambda: report(attempt, lease_id))
        assert made is not None
        if not open_or_lost:
            assert not made.changed
            assert made.refusal is None or isinstance(made.refusal, Conflict)
            assert bool(made.history) is (made.refusal is not None)
            return
        assert made.refusal is None
        again = report(attempt, lease_id)
        assert (again.changed, again.refusal, again.history, again.effects) == (False, None, (), ())

    def happens(self, rule: Callable[[], Transition]) -> Transition | None:
        """Decide, check the one step, and apply it."""
        before = self.task
        try:
            made = rule()
        except InvalidState:
            return None
        after = self.task = made.after
        ended = after.terminal and not before.terminal
        assert made.before is before
        assert (before.state, after.state) in TABLE[made.verb]
        assert not before.terminal or after is before
        assert after.attempt - before.attempt == (made.verb is Verb.CLAIM)
        assert after.losses - before.losses == (made.verb is Verb.EXPIRE)
        assert after.failures - before.failures in ({0, 1} if made.verb in COUNTS_FAILURES else {0})
        assert bool(made.effects) is (ended and after.has_dependents)
        assert all(getattr(before, name) == getattr(after, name) for name in NEVER_CHANGES)
        assert after.state is not State.QUEUED or not made.changed or after.available_at >= self.now
        if made.verb is not Verb.NOTE:
            self.moves.append((made.verb, before.state, after.state))
        return made

    # ----------------------------------------------------------------------------------------- what holds always

    def check_always(self) -> None:
        task, policy = self.task, self.task.policy
        losses_max = max(1, policy.max_losses)
        assert task.attempt == len(self.claims)
        assert (task.failures <= policy.max_attempts) if task.terminal else (task.failures < policy.max_attempts)
        assert (task.losses <= losses_max) if task.terminal else (task.losses < losses_max)
        assert (task.outcome is None) is (task.state is State.RUNNING or task.attempt == 0), "open while it runs"
        assert (task.finished_at is not None) is task.terminal
        assert task.result is None or task.state is State.SUCCEEDED
        assert task.cancel is None or task.terminal or task.state is State.RUNNING, "who waits is cancelled at once"
        if task.terminal:
            assert (task.error is None) is (task.state is State.SUCCEEDED)
        self.check_timer(task)

    @staticmethod
    def check_timer(task: Task) -> None:
        """The timer is the first moment at which the engine must look (a sleep is checked where it begins)."""
        due = [] if task.deadline_at is None or task.terminal else [task.deadline_at]
        if task.state is State.RUNNING:
            assert task.started_at is not None
            if task.policy.timeout_s is not None:
                due.append(task.started_at + timedelta(seconds=task.policy.timeout_s))
            if task.cancel is not None and task.cancel.signalled_at is not None:
                due.append(task.cancel.signalled_at + timedelta(seconds=task.policy.cancel_grace_s))
        if task.state is not State.SLEEPING:
            assert task.timer_at == min(due, default=None)


WEIGHTS: dict[Callable[[Walk], None], int] = {
    Walk.time_passes: 6,
    Walk.claim: 8,
    Walk.complete: 1,
    Walk.fail: 3,
    Walk.report_cancelled: 1,
    Walk.sleep: 3,
    Walk.release: 3,
    Walk.park: 2,
    Walk.expire: 4,
    Walk.elapse: 4,
    Walk.cancel: 1,
    Walk.force_cancel: 1,
    Walk.signal_cancel: 3,
    Walk.wake: 2,
    Walk.resume: 2,
    Walk.settle: 3,
}


def test_whatever_happens_in_whatever_order_a_task_keeps_its_promises() -> None:
    seen: set[Moved] = set()
    for seed in range(WALKS):
        walk = Walk(seed)
        try:
            seen.update(walk.go())
        except Exception as error:
            error.add_note(f"walk {seed} of {walk.task}:\n  " + "\n  ".join(walk.trace))
            raise

    every = {(verb, *pair) for verb, pairs in TABLE.items() for pair in pairs if verb is not Verb.NOTE}
    assert seen == every, "the walks must come along every move that exists"
