"""What the code of workers declares for the kinds that they run: for tasks that are submitted by name, from elsewhere.

Who submits through an app sends the options of its handler along; who knows only a name (over HTTP, from the command
line, by a schedule made there) gets what the workers of that kind declared when they last started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from windlass.core.check import check_mapping, check_name
from windlass.core.retry import Policy
from windlass.core.submission import check_policy
from windlass.store.kind_table import KindName
from windlass.store.store import Store

KEEP_S = 1.0
KEPT_MAX = 10_000


class Kinds:
    """The kinds of one database. What was read is kept for a second, so that a crowd of submissions asks once."""

    def __init__(self, store: Store, stopwatch: Callable[[], float]) -> None:
        self._store, self._stopwatch = store, stopwatch
        self._kept: dict[KindName, tuple[float, Policy | None]] = {}

    async def declare(self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default") -> None:
        """A worker of an app starts: for each of its kinds the policy, None where it asks for nothing."""
        check_name("app", app)
        check_name("namespace", namespace)
        for kind, policy in check_mapping("policies", policies).items():
            check_name("policies", kind)
            if policy is not None:
                check_policy(policy)
        async with self._store.begin() as tx:
            await tx.kinds.declare(namespace, app, policies)
        self._kept.clear()

    async def policies(self, kinds: Collection[KindName]) -> dict[KindName, Policy]:
        """What is declared for those of these kinds for which something is."""
        now_s = self._stopwatch()
        unknown = [kind for kind in kinds if kind not in self._kept or self._kept[kind][0] <= now_s]
        if unknown:
            if len(self._kept) > KEPT_MAX:
                self._kept.clear()
                unknown = list(kinds)
            async with self._store.begin() as tx:
                found = await tx.kinds.policies(unknown)
            self._kept |= {kind: (now_s + KEEP_S, found.get(kind)) for kind in unknown}
        known = {kind: self._kept[kind][1] for kind in kinds}
        return {kind: policy for kind, policy in known.items() if policy is not None}
