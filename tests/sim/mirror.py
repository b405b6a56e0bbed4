"""The committed state of the database as the checkers see it, kept up to date from the log of written rows.

Rows are plain dictionaries, as they are in the database; ids are text. Decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from tests.sim.database import Change

Row = dict[str, Any]
TERMINAL = frozenset({"succeeded", "failed", "cancelled", "skipped"})


@dataclass(slots=True)
class Mirror:
    tasks: dict[str, Row] = field(default_factory=dict)
    leases: dict[str, Row] = field(default_factory=dict)
    queues: dict[str, Row] = field(default_factory=dict)
    outbox: dict[str, Row] = field(default_factory=dict)
    upstream: dict[str, dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))  # by the task that waits
    history: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    steps: dict[tuple[str, str, int], Row] = field(default_factory=dict)
    signals: dict[str, Row] = field(default_factory=dict)
    gone: dict[str, Row] = field(default_factory=dict)  # tasks that retention has removed, as they were last
    effects_by_task: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def apply(self, change: Change) -> None:
        old, new = change.old, change.new
        match change.relation:
            case "task":
                if new is None:
                    self.gone[old["id"]] = self.tasks.pop(old["id"])
                else:
                    self.tasks[new["id"]] = new
            case "lease":
                _put(self.leases, "id", old, new)
            case "queue":
                _put(self.queues, "name", old, new)
            case "outbox":
                _put(self.outbox, "id", old, new)
                by_task = self.effects_by_task[(new or old)["task_id"]]
                by_task.discard(old["id"]) if new is None else by_task.add(new["id"])
            case "step":
                step = new or old
                key = (step["task_id"], step["name"], step["occurrence"])
                self.steps.pop(key, None) if new is None else self.steps.__setitem__(key, new)
            case "signal":
                _put(self.signals, "id", old, new)
            case "edge":
                edge = new or old
                if new is None:
                    self.upstream[edge["task_id"]].pop(edge["upstream_id"], None)
                else:
                    self.upstream[edge["task_id"]][edge["upstream_id"]] = new
            case name if name.startswith("history") and new is not None:
                self.history[new["task_id"]].append(new)

    def ever(self, task_id: object) -> Row | None:
        """A task as it is, or as it was when it was removed."""
        return self.tasks.get(str(task_id)) or self.gone.get(str(task_id))

    def state(self, task_id: object) -> str | None:
        row = self.ever(task_id)
        return None if row is None else str(row["state"])

    def settle_pending(self, upstream_id: str) -> bool:
        effects = (self.outbox[id_] for id_ in self.effects_by_task.get(upstream_id, ()))
        return any(effect["kind"] == "settle" and effect["dead_at"] is None for effect in effects)

    def running(self, queue: str) -> list[Row]:
        return [row for row in self.tasks.values() if row["state"] == "running" and row["queue"] == queue]

    def unfinished(self) -> list[Row]:
        return [row for row in self.tasks.values() if row["state"] not in TERMINAL]


def _put(table: dict[str, Row], key: str, old: Row | None, new: Row | None) -> None:
    if new is not None:
        table[new[key]] = new
    elif old is not None:
        table.pop(old[key], None)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def content(column: str | None) -> Any:
    """What a bytea column with JSON in it says."""
    return None if column is None else msgspec.json.decode(bytes.fromhex(column[2:]))
