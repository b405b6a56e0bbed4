"""The simulated database: a real one whose clock, notifications and written rows are in the hands of the simulation.

One database serves many seeds, emptied between them. Connections are kept as well: generic plans and empty tables make
a statement behave the same on a fresh connection and on one that has served a hundred seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

# A statement that has to wait for a row cannot get it: whoever holds it stands still while this one runs.
LOCK_TIMEOUT_MS = 1
CONNECTIONS = 24
SETTINGS = {
    "search_path": "simulation, pg_catalog",
    "timezone": "UTC",
    "lock_timeout": str(LOCK_TIMEOUT_MS),
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_STEP = timedelta(milliseconds=4)
TABLES = ("task", "lease", "queue", "rate_start", "run", "edge", "idempotency", "outbox", "history", "step", "signal",
          "heartbeat", "token_key", "schedule", "worker", "step_attempt", "kind", "event", "publish", "dag",
          "deployment", "deployment_job", "deployment_edge", "deployment_pointer", "webhook", "job", "job_task",
          "job_cursor", "job_upgrade", "request", "consumption", "dataset", "dataset_version", "partition",
          "partition_revision", "high_water", "cursor_commit", "lake", "message", "dead_message", "backfill",
          "backfill_job", "backfill_task", "invalidation", "invalidation_task")  # fmt: skip
DATA_TABLES = ("dataset_version", "dataset_view", "sink_commit")


class Change(msgspec.Struct, frozen=True):
    """One row that a committed transaction wrote; `relation` is `notify` for what it announced."""

    relation: str
    at: datetime
    old: Any
    new: Any


@dataclass(slots=True)
class Database:
    """Connections to the simulated database: those of the engines, and one of the simulation's own."""

    dsn: str
    own: Any = None
    idle: list[Any] = field(default_factory=list)
    known: list[Any] = field(default_factory=list)
    clock_at: datetime = BEGINNING

    async def open(self) -> None:
        self.own = await self._connect()
        self.known = [await self._connect() for _ in range(CONNECTIONS)]
        if not await self.own.fetchval("select to_regnamespace('simulation') is not null"):
            await self.own.execute((Path(__file__).parent / "simulation.sql").read_text(encoding="utf-8"))

    async def close(self) -> None:
        for connection in [*self.known, self.own]:
            await connection.close()

    async def reset(self) -> None:
        """As if no seed had ever run."""
        self.idle = list(reversed(self.known))
        self.clock_at = BEGINNING
        days = await self.own.fetch(
            "select c.relname from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid"
            " where i.inhparent = 'windlass.history'::regclass and c.relname like 'history\\_2%' order by 1"
        )
        versions = await self.own.fetch(
            "select c.relname from pg_catalog.pg_class c where c.relnamespace = 'windlass_data'::regnamespace"
            " and c.relkind = 'r' and c.relname like 'v\\_%' order by 1"
        )
        drops = [f"drop table windlass.{row[0]}" for row in days]
        drops += [f"drop table windlass_data.{row[0]} cascade" for row in versions]
        tables = [f"windlass.{name}" for name in TABLES] + [f"windlass_data.{name}" for name in DATA_TABLES]
        truncate = "truncate " + ", ".join(tables)
        clear = "truncate simulation.change restart identity; truncate simulation.clock"
        first = f"insert into simulation.clock values ('{BEGINNING}')"
        ticked = f"update windlass.scheduler set ticked_at = '{BEGINNING}', outages = '[]'"
        await self.own.execute("; ".join([*drops, truncate, ticked, clear, first]))

    def give_back(self, connection: Any) -> None:
        """In a fixed order, so that a statement meets the same connection in every replay."""
        self.idle.append(connection)
        self.idle.sort(key=self.known.index, reverse=True)

    async def set_clock(self, at: datetime) -> None:
        """In small steps, each ahead of the time that was given: a statement per step instead of one per statement."""
        if at > self.clock_at:
            self.clock_at = at + CLOCK_STEP
            await self.own.fetch("update simulation.clock set at = $1", self.clock_at)

    async def drain(self) -> list[Change]:
        """What has been committed since the last call, in the order in which it was written."""
        rows = await self.own.fetch("delete from simulation.change returning seq, relation, at, old, new")
        rows.sort(key=lambda row: row[0])
        return [Change(row[1], row[2], _decoded(row[3]), _decoded(row[4])) for row in rows]

    async def _connect(self) -> Any:
        return await asyncpg.connect(
            self.dsn, server_settings=SETTINGS, statement_cache_size=500, max_cached_statement_lifetime=0
        )


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
