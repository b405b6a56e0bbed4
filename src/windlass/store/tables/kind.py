"""What is declared for kinds of tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from windlass.core.retry import Policy
from windlass.store import records
from windlass.store.pool import Session

KindName = tuple[str, str]  # with its namespace in front


class KindTable:
    """Kinds within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def declare(self, namespace: str, app: str, policies: Mapping[str, Policy | None]) -> None:
        """Store the policy of each kind of the app; None for a kind without one."""
        declared = {kind: policy for kind, policy in policies.items() if policy is not None}
        plain = [kind for kind in policies if kind not in declared]
        await self._session.fetch("delete_kinds", namespace, app, plain, list(policies))
        if declared:
            texts = [records.as_json(policy) for policy in declared.values()]
            await self._session.fetch("put_kinds", namespace, app, list(declared), texts)

    async def policies(self, kinds: Collection[KindName]) -> dict[KindName, Policy]:
        rows = await self._session.fetch("kind_policies", [n for n, _ in kinds], [k for _, k in kinds]) if kinds else ()
        return {(row[0], row[1]): records.policy_from(row[2]) for row in rows}
