"""The line: within a lane nobody is served before an older task that could have been taken as well.

Looks at the claimable rows at the very moment of a claim, with the claim's own locks not yet taken and those of others
held. A look that begins behind a floor is one that the engine cut short on purpose, and is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.sim.trace import short
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

_CLAIMABLE = """
select t.id, t.priority, t.concurrency_key, t.available_at, t.kind, coalesce(t.requires, '{}')
  from windlass.task t
 where t.namespace = $1 and t.queue = $2 and t.state = 'queued' and t.available_at <= windlass.now()
 order by t.available_at, t.id for update skip locked
"""


class LineChecker:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self._claimable: list[Any] = []

    async def before(self, namespace: str, queue: str) -> None:
        self._claimable = await self.world.database.own.fetch(_CLAIMABLE, namespace, queue)

    def after_hand_off(self, started: bool) -> None:
        if started and self._claimable:
            raise Violation(f"{short(self._claimable[0][0])} was passed over by a hand-off")

    def after_at_once(self, args: tuple[Any, ...], rows: list[Any]) -> None:
        """The same for the statement that finds the only lane by itself, unless it was given one."""
        _, _, namespace, queue, _, priority, _, floor, limit, kinds, labels, _ = args
        started = [row for row in rows if row["id"] is not None]
        if started:
            [told] = [row for row in rows if row["id"] is None]
            lane = told["priorities"][0], told["keys"][0]
            taken = [(row["id"], None, None, None, None, row["available_at"], *lane) for row in started]
            others = [row for row in self._claimable if (row[1], row[2]) != lane]
            if priority is None and others:
                raise Violation(
                    f"{short(taken[0][0])} was claimed at once, and {short(others[0][0])} is in another lane"
                )
            given = [lane[0]], [lane[1]], [limit], [floor]
            self.after((namespace, queue, *given, limit, kinds, (), labels), taken)

    def after(self, args: tuple[Any, ...], taken: list[Any]) -> None:
        _, _, priorities, keys, takes, floors, _, kinds, full_kinds, labels = args
        ids = {row[0] for row in taken}
        fit = [
            row
            for row in self._claimable
            if row[0] not in ids and (kinds is None or row[4] in kinds) and row[4] not in full_kinds
            if set(row[5]) <= set(labels)
        ]
        served_later = False
        lanes = list(zip(priorities, keys, takes, floors, strict=True))
        for priority, key, take, floor in reversed(lanes):
            ours = [row for row in taken if (row[6], row[7]) == (priority, key)]
            passed = [row for row in fit if (row[1], row[2]) == (priority, key)]
            if floor.year == 1970 and passed:
                self._judge(ours, passed, take, served_later)
            served_later = served_later or bool(ours)

    def _judge(self, ours: list[Any], passed: list[Any], take: int, served_later: bool) -> None:
        oldest = passed[0]
        for row in ours:
            if row[5] > oldest[3]:
                raise Violation(f"{short(row[0])} was claimed before {short(oldest[0])}, which is older in its lane")
        if served_later and len(ours) < take:
            raise Violation(f"{short(oldest[0])} was passed over for a lane behind its own")
