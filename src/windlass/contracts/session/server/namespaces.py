"""Which attempts a caller may report on: those that a worker of its namespace has claimed.

The task row fences the token of an attempt. This module checks its namespace, before anything is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from windlass.core.access import Principal
from windlass.core.lease import Lease
from windlass.core.lease_token import check_delivery, delivery_of
from windlass.engine.engine import Engine
from windlass.errors import NotFound, WindlassError

DELIVERIES = frozenset({"pull"})
KNOWN_MAX = 10_000


class AttemptAccess:
    """Checks the namespaces of attempts. Caches the namespace of each lease, which never changes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._namespaces: dict[UUID, str] = {}

    async def lease(self, principal: Principal, lease_id: UUID) -> Lease:
        """Returns a lease of the caller's namespace. Raises NotFound for one of another namespace."""
        lease = await self._engine.parts.leases.get(lease_id)
        if delivery_of(lease_id) not in DELIVERIES or principal.namespace not in (None, lease.namespace):
            raise NotFound("there is no such lease", lease_id=lease_id)
        return lease

    async def refusals(
        self, principal: Principal, attempts: Iterable[tuple[UUID, UUID]]
    ) -> dict[tuple[UUID, UUID], WindlassError]:
        """Returns an error for each attempt, a task and its token, that the caller may not report on."""
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
        if unknown:  # another namespace, or a deleted lease: then the task row has the namespace
            namespaces = await self._engine.tasks.namespaces([task_id for task_id, _ in unknown])
            for task_id, lease_id in unknown:
                if lease_id in self._namespaces or namespaces.get(task_id) != principal.namespace:
                    found[task_id, lease_id] = NotFound(f"there is no task {task_id}", task_id=task_id)
        return found

    async def check(self, principal: Principal, task_id: UUID, lease_id: UUID) -> None:
        """Raises unless the caller may report on this attempt."""
        for error in (await self.refusals(principal, [(task_id, lease_id)])).values():
            raise error

    async def _namespace(self, lease_id: UUID) -> str | None:
        known = self._namespaces.get(lease_id)
        if known is None:
            try:
                known = (await self._engine.parts.leases.get(lease_id)).namespace
            except NotFound:
                return None
            if len(self._namespaces) >= KNOWN_MAX:
                self._namespaces.clear()
            self._namespaces[lease_id] = known
        return known
