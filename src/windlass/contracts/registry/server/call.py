"""One call of the registry contract: its caller, its metadata, and what all calls of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from windlass.contracts.registry.server.open_polls import OpenPolls
from windlass.contracts.registry.wire.messages import extra_of
from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.retry import Policy
from windlass.core.trace import is_traceparent
from windlass.core.validation import check_name
from windlass.core.worker import Worker, WorkerState
from windlass.engine.debounce import Debounce
from windlass.engine.engine import Engine
from windlass.engine.read.tasks import TaskView
from windlass.errors import NotFound

EXTENSIONS_PER_LEASE = 3  # for a worker that waits in a poll and sends no heartbeat
PART_OF_LEASE = 0.05  # longest wait of a heartbeat, as a part of `stale_s`
RUN_OPTIONS_MAX = 10_000
TRACE = "traceparent"


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of this contract on this server."""

    poll_timeout_s: float = 60.0
    heartbeat_s: float = 10.0
    stale_s: float = 30.0
    gather_s: float = 1.0  # how long a heartbeat waits to be batched with others, if `stale_s` allows it
    open: bool = False  # callers need no API key


class RunOptions(NamedTuple):
    """Options of a run, set when it is submitted. They never change, so they are cached."""

    policy: Policy
    final_errors: tuple[str, ...]  # prefixes of error messages that are not retried


class ServerContext:
    """Shared by all calls of one server: the engine, the options, batched heartbeats, open polls, and caches of workers
    and of run options."""

    def __init__(self, engine: Engine, options: Options) -> None:
        self.engine, self.options = engine, options
        gather_s = options.gather_s if options.stale_s * PART_OF_LEASE >= options.gather_s else 0.0
        self.heartbeats, self.workers = Debounce(gather_s), WorkerCache(engine, options.stale_s)
        self.run_options: dict[UUID, RunOptions] = {}
        self.polls = OpenPolls(engine, self.heartbeats, options.stale_s / EXTENSIONS_PER_LEASE)


class WorkerCache:
    """Recently active workers, so that a waiting poll reads nothing. A claim never relies on it."""

    def __init__(self, engine: Engine, keep_s: float) -> None:
        self._engine, self._keep_s = engine, keep_s
        self._known: dict[UUID, tuple[float, Worker]] = {}

    async def get(self, worker_id: UUID) -> tuple[Worker, bool]:
        """Returns the worker, and whether it was read just now. Raises NotFound."""
        known = self._known.get(worker_id)
        if known is not None and known[0] > _now_s():
            return known[1], False
        return await self.read(worker_id), True

    async def read(self, worker_id: UUID) -> Worker:
        self.forget(worker_id)
        worker = await self._engine.workers.get(worker_id)
        if worker.state is WorkerState.ONLINE:
            self._known[worker_id] = (_now_s() + self._keep_s, worker)
        return worker

    def keep(self, worker_id: UUID, lease_id: UUID) -> None:
        """Keeps the entry of a worker that was active under this lease."""
        known = self._known.get(worker_id)
        if known is not None and known[1].lease_id == lease_id:
            self._known[worker_id] = (_now_s() + self._keep_s, known[1])

    def forget(self, worker_id: UUID) -> None:
        self._known.pop(worker_id, None)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `context` is the context of gRPC."""

    shared: ServerContext
    principal: Principal
    context: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return self.shared.engine

    @property
    def options(self) -> Options:
        return self.shared.options

    def may(self, role: Role, namespace_id: str) -> str:
        """Returns the namespace of the call, by default `default`. Raises if the caller lacks the role there."""
        namespace = namespace_id or "default"
        check_role(self.principal, role)
        check_name("namespace_id", namespace)
        check_reach(self.principal, namespace)
        return namespace

    @staticmethod
    def queue_filter(task_queue: str) -> str | None:
        """Returns the queue to list; None for all."""
        if task_queue:
            check_name("task_queue", task_queue)
        return task_queue or None

    def reaches(self, namespace: str) -> bool:
        return self.principal.namespace in (None, namespace)

    async def run(self, run_id: UUID, namespace: str | None = None) -> TaskView:
        """Returns a run that the caller may see. Raises NotFound for one of another namespace."""
        with not_found_as("workflow_run", run_id):
            view = await self.engine.tasks.get(run_id)
        if not self.reaches(view.task.namespace) or namespace not in (None, view.task.namespace):
            raise missing("workflow_run", run_id)
        return view

    async def run_options(self, run_id: UUID) -> RunOptions:
        """Returns the options of a run. The decider of its command checks whether the caller may see the run."""
        known = self.shared.run_options.get(run_id)
        if known is None:
            view = await self.run(run_id)
            known = RunOptions(view.task.policy, extra_of(view.wire).non_retryable_errors)
            if len(self.shared.run_options) >= RUN_OPTIONS_MAX:
                self.shared.run_options.clear()
            self.shared.run_options[run_id] = known
        return known

    @property
    def trace(self) -> str | None:
        trace = self.metadata.get(TRACE)
        return trace if is_traceparent(trace) else None


Handler = Callable[[Call, Any], Awaitable[Any]]


@contextmanager
def not_found_as(subject: str, subject_id: object) -> Iterator[None]:
    """Gives a NotFound the form of this wire."""
    try:
        yield
    except NotFound:
        raise missing(subject, subject_id) from None


def missing(subject: str, subject_id: object) -> NotFound:
    return NotFound(f"there is no {subject.replace('_', ' ')} {subject_id}", subject=subject, subject_id=subject_id)
