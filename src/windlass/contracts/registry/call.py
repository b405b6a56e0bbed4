"""One call of the registry contract: who asks, of which engine, and what came in the metadata."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.check import check_name
from windlass.core.error import NotFound
from windlass.core.trace import is_traceparent
from windlass.engine.engine import Engine
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
    open: bool = False  # whoever can reach the port needs no key


@dataclass(frozen=True, slots=True)
class Call:
    """`context` is the caller's end of the line: gRPC's, which may hang up."""

    engine: Engine
    options: Options
    principal: Principal
    context: Any
    metadata: dict[str, Any] = field(default_factory=dict)

    def may(self, role: Role, namespace_id: str) -> str:
        """The namespace that is meant, if the caller may do this there."""
        namespace = namespace_of(namespace_id, self.principal.namespace)
        check_role(self.principal, role)
        check_name("namespace_id", namespace)
        check_reach(self.principal, namespace)
        return namespace

    def reaches(self, namespace: str) -> bool:
        return self.principal.namespace in (None, namespace)

    async def run(self, run_id: UUID, namespace_id: str = "") -> TaskView:
        """A run that the caller can see. One of another namespace is not there."""
        try:
            view = await self.engine.views.get(run_id)
        except NotFound:
            raise missing("workflow_run", run_id) from None
        if not self.reaches(view.task.namespace) or namespace_id not in ("", view.task.namespace):
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
