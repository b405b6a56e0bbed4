"""Of which attempts a caller of these services may speak: those that a worker of its namespace has claimed.

The token of an attempt is fenced by its task; here is asked whose it is, before anything is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from windlass.core.access import Principal
from windlass.core.error import NotFound, WindlassError
from windlass.core.lease import Lease
from windlass.core.token import check_delivery, delivery_of
from windlass.engine.engine import Engine

DELIVERIES = frozenset({"pull"})
KNOWN_MAX = 10_000


class Reach:
    """What one server knows of leases: the namespace of one never changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._namespaces: dict[UUID, str] = {}

    async def lease(self, principal: Principal, lease_id: UUID) -> Lease:
        """The lease of a worker of this caller's namespace. One of another is not there."""
        lease = await self._engine.leases.get(lease_id)
        if delivery_of(lease_id) not in DELIVERIES or principal.namespace not in (None, lease.namespace):
            raise NotFound("there is no such lease", lease_id=lease_id)
        return lease

    async def refusals(
        self, principal: Principal, attempts: Iterable[tuple[UUID, UUID]]
    ) -> dict[tuple[UUID, UUID], WindlassError]:
        """Which of these attempts, each a task and its token, the caller may not speak of, and why."""
        found: dict[tuple[UUID, UUID], WindlassError] = {}
        unknown: list[tuple[UUID, UUID]] = []
        for task_id, lease_id in set(attempts):
            try:
                check_delivery(lease_id, DELIVERIES)
            except WindlassError as error:
                found[task_id, lease_id] = error
                continue
            if principal.namespace is not None and principal.namespace != await self._namespace(lease_id):
                unknown.append((task_id, lease_id))
        if unknown:  # of another namespace, or of a lease that is forgotten: then its task says where it is
            namespaces = await self._engine.views.namespaces([task_id for task_id, _ in unknown])
            for task_id, lease_id in unknown:
                if lease_id in self._namespaces or namespaces.get(task_id) != principal.namespace:
                    found[task_id, lease_id] = NotFound(f"there is no task {task_id}", task_id=task_id)
        return found

    async def check(self, principal: Principal, task_id: UUID, lease_id: UUID) -> None:
        """Raise unless the caller may speak of this attempt."""
        for error in (await self.refusals(principal, [(task_id, lease_id)])).values():
            raise error

    async def _namespace(self, lease_id: UUID) -> str | None:
        known = self._namespaces.get(lease_id)
        if known is None:
            try:
                known = (await self._engine.leases.get(lease_id)).namespace
            except NotFound:
                return None
            if len(self._namespaces) >= KNOWN_MAX:
                self._namespaces.clear()
            self._namespaces[lease_id] = known
        return known
