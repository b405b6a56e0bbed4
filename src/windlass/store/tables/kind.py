"""The policies that apps declare for kinds of tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from windlass.core.retry import Policy
from windlass.store import records
from windlass.store.table import Table

KindName = tuple[str, str]  # with its namespace in front


class KindTable(Table):
    """Kinds within a transaction."""

    async def declare(self, namespace: str, app: str, policies: Mapping[str, Policy | None]) -> None:
        """Store the policy of each kind of the app; None for a kind without one."""
        declared = {kind: policy for kind, policy in policies.items() if policy is not None}
        plain = [kind for kind in policies if kind not in declared]
        await self.session.fetch("delete_kinds", namespace, app, plain, list(policies))
        if declared:
            texts = [records.as_json(policy) for policy in declared.values()]
            await self.session.fetch("put_kinds", namespace, app, list(declared), texts)

    async def policies(self, kinds: Collection[KindName]) -> dict[KindName, Policy]:
        rows = await self.session.fetch("kind_policies", [n for n, _ in kinds], [k for _, k in kinds]) if kinds else ()
        return {(row[0], row[1]): records.policy_from(row[2]) for row in rows}
