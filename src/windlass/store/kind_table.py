"""What is declared for kinds of tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from windlass.core.retry import Policy
from windlass.store import record
from windlass.store.session import Session

KindName = tuple[str, str]  # with its namespace in front


class KindTable:
    """Kinds within a transaction."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    async def declare(self, namespace: str, app: str, policies: Mapping[str, Policy | None]) -> None:
        """For each kind of the app its policy; None where it asks for nothing."""
        asked = {kind: policy for kind, policy in policies.items() if policy is not None}
        plain = [kind for kind in policies if kind not in asked]
        await self._session.fetch("delete_kinds", namespace, app, plain, list(policies))
        if asked:
            said = [record.as_json(policy) for policy in asked.values()]
            await self._session.fetch("put_kinds", namespace, app, list(asked), said)

    async def policies(self, kinds: Collection[KindName]) -> dict[KindName, Policy]:
        rows = await self._session.fetch("kind_policies", [n for n, _ in kinds], [k for _, k in kinds]) if kinds else ()
        return {(row[0], row[1]): record.policy_from(row[2]) for row in rows}
