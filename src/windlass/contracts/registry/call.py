"""One call of the registry contract: who asks, of which engine, and what came in the metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from windlass.contracts.registry.open_poll import OpenPolls
from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.check import check_name
from windlass.core.error import NotFound
from windlass.core.trace import is_traceparent
from windlass.core.worker import Worker, WorkerState
from windlass.engine.engine import Engine
from windlass.engine.gather import Gather
from windlass.engine.view import TaskView
from windlass.wire.registry import namespace_of

WORKER_ID, LEASE_TOKEN, ACTIVE = "x-windlass-worker-id", "x-windlass-lease-token", "x-windlass-active-runs"
ATTEMPT, CONTEXT = "x-windlass-attempt", "x-windlass-context-bin"
TRACE = "traceparent"


@dataclass(frozen=True, slots=True)
class Options:
    """What is set for this contract on this server."""

    poll_timeout_s: float = 60.0
    heartbeat_s: float = 10.0
    stale_s: float = 30.0
    gather_s: float = 1.0  # how long a heartbeat waits for others to go along, if the threshold allows that
    open: bool = False  # whoever can reach the port needs no key


SIGNS_PER_LEASE = 3  # of a worker that waits in a poll and sends no heartbeat
PART_OF_LEASE = 0.05  # of the stale threshold, at most, does a heartbeat wait


class House:
    """What all calls of one server share: its engine, its options, heartbeats that go along with others, workers that
    were seen a moment ago, and those that wait in a poll."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self.engine, self.options = engine, options
        gather_s = options.gather_s if options.stale_s * PART_OF_LEASE >= options.gather_s else 0.0
        self.beats, self.seen = Gather(gather_s), Seen(engine, options.stale_s)
        self.polls = OpenPolls(engine, self.beats, options.stale_s / SIGNS_PER_LEASE)


class Seen:
    """Workers that were here a moment ago, so that a poll that only waits asks nobody. Never believed for a claim."""

    def __init__(self, engine: Engine, keep_s: float) -> None:
        self._engine, self._keep_s = engine, keep_s
        self._known: dict[UUID, tuple[float, Worker]] = {}

    async def get(self, worker_id: UUID) -> tuple[Worker, bool]:
        """The worker, and whether it was just asked for. Raises NotFound."""
        known = self._known.get(worker_id)
        if known is not None and known[0] > _now_s():
            return known[1], False
        return await self.ask(worker_id), True

    async def ask(self, worker_id: UUID) -> Worker:
        self.forget(worker_id)
        worker = await self._engine.workers.get(worker_id)
        if worker.state is WorkerState.ONLINE:
            self._known[worker_id] = (_now_s() + self._keep_s, worker)
        return worker

    def keep(self, worker_id: UUID, lease_id: UUID) -> None:
        """Heard of under this lease."""
        known = self._known.get(worker_id)
        if known is not None and known[1].lease_id == lease_id:
            self._known[worker_id] = (_now_s() + self._keep_s, known[1])

    def forget(self, worker_id: UUID) -> None:
        self._known.pop(worker_id, None)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Call:
    """`context` is the caller's end of the line: gRPC's, which may hang up."""

    house: House
    principal: Principal
    context: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return self.house.engine

    @property
    def options(self) -> Options:
        return self.house.options

    def may(self, role: Role, namespace_id: str) -> str:
        """The namespace that is meant, if the caller may do this there."""
        namespace = namespace_of(namespace_id)
        check_role(self.principal, role)
        check_name("namespace_id", namespace)
        check_reach(self.principal, namespace)
        return namespace

    def may_by_id(self, role: Role) -> None:
        """For calls that name nothing but an id: whether it is within reach is asked of what it names."""
        check_role(self.principal, role)

    def reaches(self, namespace: str) -> bool:
        return self.principal.namespace in (None, namespace)

    async def run(self, run_id: UUID, namespace: str | None = None) -> TaskView:
        """A run that the caller can see, in this namespace if the call names one. One of another is not there."""
        try:
            view = await self.engine.views.get(run_id)
        except NotFound:
            raise missing("workflow_run", run_id) from None
        if not self.reaches(view.task.namespace) or namespace not in (None, view.task.namespace):
            raise missing("workflow_run", run_id)
        return view

    def tell(self, *said: tuple[str, str | bytes]) -> None:
        """Beside the answer, in the trailing metadata."""
        self.context.set_trailing_metadata(said)

    @property
    def trace(self) -> str | None:
        given = self.metadata.get(TRACE)
        return given if is_traceparent(given) else None


Handler = Callable[[Call, Any], Awaitable[Any]]


def missing(subject: str, subject_id: object) -> NotFound:
    return NotFound(f"there is no {subject.replace('_', ' ')} {subject_id}", subject=subject, subject_id=subject_id)
