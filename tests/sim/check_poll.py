"""Polls: what was claimed for a worker reaches it, and nobody waits while there is something to take."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from tests.sim.mirror import Row, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

from windlass.core.lease import Lease
from windlass.core.queue import QueueConfig, Usage, admit

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

PATIENCE_S = 12.0
EVERY_S = 2.0
LOOKS_MAX = 150


@dataclass(slots=True)
class ClaimCall:
    """A poll that is under way."""

    lease: Lease
    began_at_s: float
    active_at_s: float
    began_calm: bool
    claimed: set[tuple[str, int]] = field(default_factory=set)
    looks: int = 0  # since anything happened to tasks or queues
    looked_at: int = 0

    def takes(self, row: Row) -> bool:
        lease = self.lease
        fits = row["queue"] in lease.queues and (lease.kinds is None or row["kind"] in lease.kinds)
        return fits and set(row["requires"] or ()) <= set(lease.labels)


class PollChecker:
    def __init__(self, world: Simulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.calls: dict[int, ClaimCall] = {}
        self.claimable_since: dict[tuple[str, int], float] = {}
        self.changes = 0  # commits that changed tasks or queues
        self.undelivered: dict[tuple[str, int], float] = {}

    # ----------------------------------------------------------------------------------------- what was claimed

    def claimed(self, row: Row, call: Any) -> None:
        attempt = (row["id"], row["attempt"])
        if isinstance(call, ClaimCall):
            call.claimed.add(attempt)
        if self.world.calm:
            self.undelivered[attempt] = self.world.loop.time()

    def begins(self, lease: Lease) -> ClaimCall:
        now_s = self.world.loop.time()
        call = ClaimCall(lease, now_s, now_s, self.world.calm)
        self.calls[id(call)] = call
        return call

    def asks(self, call: ClaimCall, name: str) -> None:
        """A statement of a poll. A look is for something: a commit, a moment that came, or its beginning."""
        call.active_at_s = self.world.loop.time()
        if name in ("open_claim", "check_claim", "start_due"):
            call.looks = call.looks + 1 if call.looked_at == self.changes else 0
            call.looked_at = self.changes
            if call.looks > LOOKS_MAX:
                self.world.fail(f"{call.lease.worker} has looked {call.looks} times, and nothing happened meanwhile")

    def ends(self, call: ClaimCall) -> None:
        self.calls.pop(id(call), None)

    def answered(self, call: ClaimCall, attempts: set[tuple[str, int]]) -> None:
        """A claim returned without an error: all that it began is in its answer, unless it is over already."""
        for attempt in attempts:
            self.undelivered.pop(attempt, None)
        for task_id, number in sorted(call.claimed - attempts):
            row = self.mirror.tasks.get(task_id)
            if row is not None and row["state"] == "running" and row["attempt"] == number:
                raise Violation(f"{short(task_id)} #{number} was claimed by a poll that was not told of it")

    # ----------------------------------------------------------------------------------------- who waits

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._look()

    def _look(self) -> None:
        now_s = self.world.loop.time()
        claimable = self._claimable()
        attempts = {(row["id"], row["attempt"]) for row in claimable}
        self.claimable_since = {a: self.claimable_since.get(a, now_s) for a in attempts}
        for call in self.calls.values():
            if call.began_calm and now_s - call.active_at_s >= PATIENCE_S:
                for row in claimable:
                    since_s = self.claimable_since[row["id"], row["attempt"]]
                    if now_s - since_s >= PATIENCE_S and call.takes(row):
                        raise Violation(f"{call.lease.worker} waits, and nobody tells it of {short(row['id'])}")
        for (task_id, number), since_s in self.undelivered.items():
            row = self.mirror.tasks.get(task_id)
            if row is not None and row["state"] == "running" and row["attempt"] == number and now_s - since_s > 60:
                raise Violation(f"{short(task_id)} #{number} was claimed, and no worker was told of it")

    def _claimable(self) -> list[Row]:
        now = self.world.now()
        due = [r for r in self.mirror.tasks.values() if r["state"] == "queued" and instant(r["available_at"]) <= now]
        return [row for row in due if self._admitted(row)]

    def _admitted(self, row: Row) -> bool:
        setting = self.mirror.queues.get(row["queue"])
        if setting is None:
            return True
        config = msgspec.convert(setting["config"], QueueConfig)
        by_kind: dict[str, int] = {}
        by_key: dict[str, int] = {}
        running = self.mirror.running(row["queue"])
        for other in running:
            by_kind[other["kind"]] = by_kind.get(other["kind"], 0) + 1
            by_key[other["concurrency_key"]] = by_key.get(other["concurrency_key"], 0) + 1
        starts = tuple((at, 1) for at, _ in self.world.commit_checker.starts[row["queue"]])
        admission = admit(config, Usage(len(running), by_kind, by_key, starts), 1, self.world.now())
        key = row["concurrency_key"]
        key_room = 1 if not key else admission.room_by_key.get(key, admission.room_per_key)
        return admission.total > 0 and row["kind"] not in admission.full_kinds and key_room > 0
