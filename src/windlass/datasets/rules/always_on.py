"""Jobs that always run: one task whose attempts follow each other without a budget, and when it is started and drained.

Its task is started when the deployment of its job is active and no task of an earlier definition of the job is open,
so that two never write at the same time. It is drained, by a cancel that lets it finish, while the DAG is paused and
when its job leaves. A failure or a lost lease is followed by its next attempt. A timeout of the job does not apply:
there is no time after which such a task should have ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from windlass.core.retry import Policy
from windlass.core.states import TERMINAL, State
from windlass.core.submission import Submission
from windlass.core.task import Outcome
from windlass.datasets.rules.job import LEFT, JobRef, task_of
from windlass.datasets.rules.owed import Trigger, next_task_id, task_id_of

ALWAYS_ON = "always_on"  # the key of the task, and the kind of the source
PAUSED = "its DAG is paused"  # why the task of a paused DAG is cancelled
# Jitter lengthens a delay by at most a fifth: a restart waits for a minute at most.
POLICY = Policy(unlimited=True, retry_delay_s=1.0, retry_factor=2.0, retry_delay_max_s=50.0)
RESTART_S = 60.0  # until a task is made that follows one which ended by itself


class Condition(StrEnum):
    """A job that always runs, as it is shown."""

    PENDING = "Pending"
    RUNNING = "Running"
    DEAD = "Dead"
    DRAINING = "Draining"


class AlwaysOnTask(NamedTuple):
    """The newest task of such a job. Retention may have removed it: then it has no state."""

    id: UUID
    state: State | None
    outcome: Outcome | None = None
    cancel_reason: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state is not None and self.state not in TERMINAL

    @property
    def drained(self) -> bool:
        """Whether it was ended by Windlass, because its DAG was paused or its job left."""
        return not self.is_open and self.cancel_reason in (PAUSED, LEFT)


class Step(StrEnum):
    """What is to be done about such a job."""

    START = "start"
    DRAIN = "drain"
    NOTHING = "nothing"


def step(task: AlwaysOnTask | None, *, paused: bool, held: bool, waits: bool) -> Step:
    """What is to be done about a job of an active deployment. `waits`: a task of an earlier definition is open."""
    if task is not None and task.is_open:
        return Step.DRAIN if paused and task.cancel_reason is None else Step.NOTHING
    return Step.NOTHING if paused or held or waits else Step.START


def next_task(ref: JobRef, last: AlwaysOnTask | None) -> Submission:
    """The task to start. A task that has ended never changes, so the one after it has another id; it waits, unless
    Windlass itself ended the last one, so that a program which returns at once does not run in a loop."""
    task_id = task_id_of(ref.job_id, ALWAYS_ON) if last is None else next_task_id(last.id)
    made = task_of(ref, task_id, Trigger("source", source=ALWAYS_ON))
    policy = POLICY if made.policy is None else replace(POLICY, lease_s=made.policy.lease_s)
    return replace(made, policy=policy, delay_s=0.0 if last is None or last.drained else RESTART_S)


def condition(task: AlwaysOnTask | None) -> Condition:
    """How such a job is shown. A task that waits for its next attempt after a failure is dead until then."""
    if task is None or task.drained:
        return Condition.PENDING
    if not task.is_open:
        return Condition.DEAD
    if task.state is State.RUNNING:
        return Condition.RUNNING if task.cancel_reason is None else Condition.DRAINING
    failed = task.outcome in (Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT)
    return Condition.DEAD if failed else Condition.PENDING
