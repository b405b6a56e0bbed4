"""What the world outside was told: the submissions, cancels and results that were acknowledged, and what was delivered.

An acknowledgement is a promise. Each is compared with the database when it arrives, and kept for later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.mirror import TERMINAL, content
from tests.sim.plan import token_of
from tests.sim.seed import Stream
from tests.sim.trace import short
from tests.sim.violation import Violation

from windlass.core.states import Effect
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.engine.send.outbox import Undeliverable

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Model:
    def __init__(self, world: Simulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.by_id: dict[str, Submission] = {}
        self.known: list[UUID] = []  # tasks that clients may talk about
        self.runs: list[UUID] = []
        self.cancelled: dict[str, int] = {}  # task -> its attempt when its cancel was acknowledged
        self.results: dict[str, bytes] = {}

    def intends(self, submission: Submission) -> None:
        if submission.id is not None:
            self.by_id[str(submission.id)] = submission

    def accepted(self, submission: Submission, task_id: UUID) -> None:
        """A submission was acknowledged: it is there, and it is what was sent."""
        row = self.mirror.ever(task_id)
        if row is None:
            raise Violation(
                f"submission {token_of(submission)} was acknowledged as {short(task_id)}, which is not there"
            )
        token = content(row["payload"])["token"]
        if token != token_of(submission):
            raise Violation(f"submission {token_of(submission)} was acknowledged as {short(task_id)}, which is {token}")
        if submission.idempotency_key is None and submission.id is not None and submission.id != task_id:
            raise Violation(f"submission {submission.id} was acknowledged as {task_id}")
        self.by_id.setdefault(str(task_id), submission)
        self.known.append(task_id)

    def cancel_accepted(self, task: Task) -> None:
        if task.cancel is None and not task.terminal:
            raise Violation(f"a cancel of {short(task.id)} was acknowledged and not noted")
        self.cancelled[str(task.id)] = task.attempt

    def result_accepted(self, task_id: UUID, attempt: int, result: bytes) -> None:
        """A completion was acknowledged: the task has succeeded with this very result, for good."""
        row = self.mirror.ever(task_id)
        told = None if row is None else row["result"]
        if row is None or row["state"] != "succeeded" or told is None or bytes.fromhex(told[2:]) != result:
            state = None if row is None else row["state"]
            raise Violation(f"the result of {short(task_id)} #{attempt} was acknowledged; the task is {state}: {told}")
        if self.results.setdefault(str(task_id), result) != result:
            raise Violation(f"two results of {short(task_id)} were acknowledged")

    def refused(self, task_id: UUID, attempt: int, lease_id: UUID) -> None:
        """A report was answered with LeaseLost: a newer attempt must have begun, or the lease was not the attempt's."""
        row = self.mirror.tasks.get(str(task_id))
        if row is not None and row["attempt"] == attempt and row["lease_id"] == str(lease_id):
            raise Violation(f"{short(task_id)} #{attempt} is the current attempt, and was told that it is not")

    def check_end(self) -> None:
        for task_id in self.by_id:
            row = self.mirror.tasks.get(task_id)
            if row is not None and row["state"] not in TERMINAL:
                raise Violation(f"task {short(task_id)} never ended: it is {row['state']}")


class OutsideSystem:
    """What effects are delivered to. It fails now and then, and remembers everything it got."""

    def __init__(self, world: Simulation, stream: Stream) -> None:
        self.world, self._stream = world, stream
        self.delivered: Counter[str] = Counter()
        self.refused: set[str] = set()
        self.promised: dict[str, Any] = {}

    async def deliver(self, effect: Effect) -> None:
        calm = self.world.calm
        if not calm and self._stream.often(0.15):
            raise ConnectionError("the outside system is away")
        if not calm and self._stream.often(0.03):
            self.refused.add(str(effect.id))
            raise Undeliverable("the outside system will never take this")
        self.delivered[str(effect.id)] += 1
        if not calm and self._stream.often(0.1):
            raise ConnectionError("delivered, but its answer was lost")

    def removed(self, effect_id: str) -> None:
        if not self.delivered[effect_id]:
            raise Violation(f"effect {short(effect_id)} was removed and never delivered")

    def check_end(self) -> None:
        for effect_id in self.promised:
            if not self.delivered[effect_id] and effect_id not in self.refused:
                raise Violation(f"effect {short(effect_id)} was acknowledged and never delivered")
