"""What must hold between the tables after every commit: leases, limits, rates, and what waits for whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tests.sim.database import Change
from tests.sim.mirror import TERMINAL, Row, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class CommitChecker:
    def __init__(self, world: Simulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.claims: dict[tuple[str, int], int] = {}  # attempt -> commits before its claim's transaction began
        self.configured: dict[str, int] = {}  # queue -> the commit that set what holds now
        self.starts: dict[str, list[tuple[datetime, int]]] = defaultdict(list)

    def before(self, changes: list[Change], began_at_commit: int) -> set[str]:
        """Note claims and settings; returns the queues whose limits a claim may have passed."""
        touched = set()
        for change in changes:
            if change.relation == "queue" and (change.old or {}).get("config") != (change.new or {}).get("config"):
                self.configured[(change.new or change.old)["name"]] = self.world.commits
            if change.relation == "task" and is_claim(change):
                row = change.new
                self.claims[row["id"], row["attempt"]] = began_at_commit
                self.starts[row["queue"]].append((instant(row["started_at"]), began_at_commit))
                touched.add(row["queue"])
        return touched

    def after(self, changes: list[Change], touched: set[str], at: datetime) -> None:
        for queue in sorted(touched):
            self._limits(queue)
            self._rate(queue)
        relations = {change.relation for change in changes}
        if relations & {"lease", "task"}:
            self._leases()
        if relations & {"edge", "outbox", "task"}:
            self._edges()

    # ----------------------------------------------------------------------------------------- limits

    def _limits(self, queue: str) -> None:
        """Counted among the claims that began under these settings: what ran before goes on."""
        config = self.mirror.queues.get(queue, {}).get("config") or {}
        since = self.configured.get(queue, 0)
        running = [r for r in self.mirror.running(queue) if self.claims.get((r["id"], r["attempt"]), -1) >= since]
        if config.get("paused") and running:
            raise Violation(f"queue {queue} is paused, and {short(running[-1]['id'])} was claimed after that")
        _check(f"queue {queue}", len(running), config.get("max_running"))
        kinds = Counter(row["kind"] for row in running)
        for kind, most in (config.get("max_running_per_kind") or {}).items():
            _check(f"kind {kind} of queue {queue}", kinds[kind], most)
        for key, count in Counter(row["concurrency_key"] for row in running).items():
            _check(f"key {key!r} of queue {queue}", count, config.get("max_running_per_key") if key else None)

    def _rate(self, queue: str) -> None:
        rate = (self.mirror.queues.get(queue, {}).get("config") or {}).get("rate")
        if rate is None:
            return
        since = self.configured.get(queue, 0)
        starts = sorted(at for at, began in self.starts[queue] if began >= since)
        period = timedelta(seconds=rate["period_s"])
        for i, at in enumerate(starts):
            within = sum(1 for other in starts[: i + 1] if other > at - period)
            if within > rate["count"]:
                raise Violation(
                    f"queue {queue} started {within} tasks within {rate['period_s']} s, not {rate['count']}"
                )

    # ----------------------------------------------------------------------------------------- between tables

    def _leases(self) -> None:
        for row in self.mirror.tasks.values():
            if row["state"] == "running" and row["lease_id"] not in self.mirror.leases:
                raise Violation(f"task {short(row['id'])} runs without a lease")

    def _edges(self) -> None:
        """Whoever is blocked waits for something that will be told to it."""
        for row in self.mirror.tasks.values():
            if row["state"] == "blocked":
                self._blocked(row)

    def _blocked(self, row: Row) -> None:
        waits_for = self.mirror.upstream.get(row["id"], {})
        if not waits_for:
            raise Violation(f"task {short(row['id'])} is blocked and waits for nothing")
        for upstream_id in waits_for:
            upstream = self.mirror.tasks.get(upstream_id)
            if self.mirror.settle_pending(upstream_id):
                continue
            if upstream is None or upstream["state"] in TERMINAL:
                raise Violation(f"task {short(row['id'])} waits for {short(upstream_id)}, which ended and told nobody")
            if not upstream["has_dependents"]:
                raise Violation(f"task {short(row['id'])} waits for {short(upstream_id)}, which does not know")


def is_claim(change: Change) -> bool:
    before = 0 if change.old is None else change.old["attempt"]
    return change.new is not None and before < change.new["attempt"]


def _check(what: str, count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise Violation(f"{what}: {count} run, at most {most} may")
