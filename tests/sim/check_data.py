"""What must hold for batches: each is in its table once, or a dead letter; its rows belong to its publisher; its
cursor follows the one before without gap; and one event tells of it.

Most is checked with every commit, from the log of written rows. The tables are compared with what was published once
nothing moves any more.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.sim.check_task import require
from tests.sim.database import Change
from tests.sim.mirror import Row, content, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

from windlass.datasets import sink
from windlass.datasets.rules.table_sql import table_of

if TYPE_CHECKING:
    from tests.sim.dag import DagSimulation

Spot = tuple[str, int]  # a version and a cursor


class DataChecker:
    def __init__(self, world: DagSimulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.publishes: dict[str, Row] = {}  # as they are, or were when they were removed
        self.messages: dict[str, Row] = {}
        self.dead_letters: dict[str, Row] = {}
        self.commits: dict[str, Row] = {}
        self.last: dict[str, int] = defaultdict(int)  # the last cursor of each version
        self.events: dict[Spot, str] = {}
        self.tasks: dict[str, str] = {}  # of sinks, by the batch

    def after(self, changes: list[Change]) -> None:
        commits = [change for change in changes if change.relation == "sink_commit"]
        for change in sorted(commits, key=lambda change: (change.new or change.old)["cursor"]):
            self._sink_commit(change.old, change.new)
        for change in changes:
            if change.relation == "publish":
                self._publish(change.old, change.new)
            elif change.relation == "dead_message":
                self._dead_letter(change.new or change.old)
            elif change.relation == "event" and change.old is None and change.new["caller"] == sink.CALLER:
                self._event(change.new)
            elif change.relation == "task" and change.old is None and change.new["queue"] == sink.QUEUE:
                self._task(change.new)
        for change in changes:  # what a message waits for may be written after it is removed
            if change.relation == "message":
                self._message(change.old, change.new)

    # ----------------------------------------------------------------------------------------- rows as they come

    def _publish(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            assert old is not None
            _hold(old["sunk_at"] is not None, old, "was removed before it was in its table")
            self.publishes[old["id"]] = {**old, "removed_at": old["sunk_at"]}
            return
        self.publishes[new["id"]] = new
        if old is None:
            _hold(new["buffered"], new, "is not for a sink, though its dataset is buffered")
            row = self.mirror.tasks[new["task_id"]]
            good = row["attempt"] == new["attempt"] and row["state"] == "running"
            require(good, row, f"published a batch as attempt {new['attempt']}")
        elif new["sunk_at"] is not None and old["sunk_at"] is None:
            _hold(new["id"] in self.commits, new, "is marked as written, and no table has it")
        else:
            _hold(old["sunk_at"] == new["sunk_at"], new, "was marked as written twice")

    def _sink_commit(self, old: Row | None, new: Row | None) -> None:
        if old is not None or new is None:
            raise Violation(f"the record of batch {short((old or new or {})['publish_id'])} was changed: {new}")
        publish = self.publishes.get(new["publish_id"])
        if publish is None:
            raise Violation(f"batch {short(new['publish_id'])} is written, and nobody has published it")
        _hold(not self.written(publish).poison, publish, "is wrong, and was written")
        version = new["dataset_version"]
        _hold(version == publish["dataset_version"], publish, f"was written to version {short(version)}")
        follows = new["cursor"] == self.last[version] + 1
        _hold(follows, publish, f"has the cursor {new['cursor']}, after {self.last[version]}")
        self.last[version] = new["cursor"]
        self.commits[new["publish_id"]] = new

    def _event(self, row: Row) -> None:
        spot = row["dataset_version"], row["cursor"]
        known = self.events.setdefault(spot, row["id"])
        if known != row["id"]:
            raise Violation(f"two events tell of cursor {spot[1]} of version {short(spot[0])}")
        if spot[1] > self.last[spot[0]]:
            raise Violation(f"an event tells of cursor {spot[1]}, and the table has {self.last[spot[0]]}")

    def _task(self, row: Row) -> None:
        batch = content(row["payload"])["publish_id"]
        known = self.tasks.setdefault(batch, row["id"])
        require(known == row["id"], row, f"writes batch {short(batch)}, which has the task {short(known)}")

    def _dead_letter(self, row: Row) -> None:
        self.dead_letters[row["message_id"]] = row
        publish = self.publishes.get(row["message_id"])
        if publish is not None:
            batch = self.written(publish)
            excuse = batch.poison or batch.doubtful or row["deliveries"] >= sink.DELIVERIES_MAX
            _hold(excuse, publish, f"is a dead letter after {row['deliveries']} deliveries: {row['reason']}")

    def _message(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.messages[new["id"]] = new
            return
        assert old is not None
        self.messages.pop(old["id"], None)
        publish = self.publishes.get(old["id"])
        if publish is not None and publish["sunk_at"] is None and old["id"] not in self.dead_letters:
            _hold(False, publish, "has no message any more, and is not in its table")

    def deleted(self, uri: str) -> None:
        """An object is deleted: only that of a batch that is in its table."""
        for publish in self.publishes.values():
            if publish["batch_uri"] == uri:
                _hold(publish["id"] in self.commits, publish, "lost its object before it was written")

    def reached(self, version: str) -> int | None:
        """The last cursor in the table of a version; None if no batch of it was published."""
        mine = any(row["dataset_version"] == version for row in self.publishes.values())
        return self.last[version] if mine else None

    def has_visible(self) -> bool:
        """Whether a sink would receive a message."""
        now = self.world.now()
        return any(instant(row["visible_at"]) <= now for row in self.messages.values())

    def has_lost(self) -> bool:
        """Whether a batch waits and has no message."""
        return any(
            row["sunk_at"] is None and row["problem"] is None and id_ not in self.messages
            for id_, row in self.publishes.items()
        )

    def has_old(self) -> bool:
        """Whether there are objects of batches that are in their tables."""
        return any(row["sunk_at"] is not None and row["removed_at"] is None for row in self.publishes.values())

    def written(self, publish: Row) -> Any:
        return self.world.batches[publish["batch_uri"]]

    # ----------------------------------------------------------------------------------------- at the end

    def unsettled(self) -> list[str]:
        waiting = [row for row in self.publishes.values() if row["sunk_at"] is None and row["problem"] is None]
        return [
            *(f"batch {short(row['id'])} waits" for row in waiting),
            *(f"message {short(id_)} waits" for id_ in self.messages),
        ]

    async def check_end(self, connection: Any) -> None:
        for row in self.publishes.values():
            batch, dead_letter = self.written(row), self.dead_letters.get(row["id"])
            if row["id"] not in self.commits:
                _hold(dead_letter is not None, row, "is neither in its table nor a dead letter")
            else:
                _hold(row["sunk_at"] is not None, row, "is in its table, and nobody was told")
                _hold(not batch.poison, row, "is wrong, and was written")
        reported = {(row["dataset_version"], row["cursor"]) for row in self.commits.values()}
        if reported != set(self.events):
            raise Violation(f"events and batches differ: {sorted(reported ^ set(self.events))[:3]}")
        modes = await connection.fetch("select id::text, schema ->> 'on_conflict' from windlass.dataset_version")
        for version, mode in modes:
            if version in self.last:
                await self._compare(connection, version, mode or "ignore")

    async def _compare(self, connection: Any, version: str, mode: str) -> None:
        """The table has what its batches say, and nothing else: of rows with the same key the one that was written
        first, or published last."""

        def turn(row: Row) -> tuple[Any, ...]:
            published = instant(self.publishes[row["publish_id"]]["at"])
            return (published, row["cursor"]) if mode == "update" else (row["cursor"],)

        mine = [row for row in self.commits.values() if row["dataset_version"] == version]
        expected: dict[str, tuple[Any, ...]] = {}
        for commit in sorted(mine, key=turn):
            publish = self.publishes[commit["publish_id"]]
            for row in self.written(publish).rows:
                if mode == "update" or row["dedupe_key"] not in expected:
                    producer = publish["namespace"], publish["task_id"], publish["attempt"], commit["cursor"]
                    expected[row["dedupe_key"]] = (row["n"], *producer)
        rows = await connection.fetch(
            "select dedupe_key, n, org_id, producer_task_id::text, producer_attempt, seq from windlass_data."
            + table_of(UUID(version))
        )
        found = {row[0]: tuple(row[1:]) for row in rows}
        if len(found) != len(rows):
            raise Violation(f"version {short(version)} has a row twice")
        wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
        if wrong:
            key = min(wrong)
            raise Violation(f"row {key} of {short(version)} is {found.get(key)}, not {expected.get(key)} ({mode})")


def _hold(promise: bool, publish: Row, broken: str) -> None:
    if not promise:
        raise Violation(f"batch {short(publish['id'])} of task {short(publish['task_id'])} {broken}")
