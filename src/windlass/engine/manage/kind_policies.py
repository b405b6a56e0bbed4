"""Policies that workers declare for the kinds they run, for tasks that are submitted by name only.

A client that submits through an app sends the options of the handler. A client that knows only a name (over HTTP, from
the command line, by a schedule) gets the policy that the workers of the kind declared when they last started.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from windlass.core.retry import Policy
from windlass.core.submission import check_policy
from windlass.core.validation import check_mapping, check_name
from windlass.store.store import Store
from windlass.store.tables.kind import KindName

KEEP_S = 1.0
KEPT_MAX = 10_000


class Kinds:
    """The kinds of one database. Policies are cached for a second, so that many submissions cost one query."""

    def __init__(self, store: Store, stopwatch: Callable[[], float]) -> None:
        self._store, self._stopwatch = store, stopwatch
        self._kept: dict[KindName, tuple[float, Policy | None]] = {}

    async def declare(self, app: str, policies: Mapping[str, Policy | None], *, namespace: str = "default") -> None:
        """Record the policies of an app's kinds when a worker of it starts; None for a kind without one."""
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
        """The policies of those of these kinds that have one."""
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
