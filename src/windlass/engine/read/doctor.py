"""Findings about a database, with advice, from the facts in `store.health`. Pure; the order is always the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from windlass.store.health import ServerVitals, TableVitals, Vitals, WorkVitals

SKEW_MAX_S = 5.0
TRANSACTION_MAX_S = 600.0
DEAD_SHARE_MAX, DEAD_LEAST = 1.0, 10_000
CONNECTIONS_SHARE_MAX = 0.8


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(msgspec.Struct, frozen=True):
    """`name` is stable, for programs; `advice` is empty if nothing has to be done."""

    name: str
    level: Level
    message: str
    advice: str = ""


def diagnose(vitals: Vitals, *, pooled: bool, local_s: float) -> list[Finding]:
    """All findings. `local_s` is the time by this machine's clock when the facts were read."""
    return [
        Finding("database", Level.OK, f"PostgreSQL {vitals.server.version} answers"),
        *_server(vitals.server),
        _clock(vitals.server.clock_s - local_s),
        _schema(vitals.schema),
        _listen(vitals.receives_notifications, pooled),
        *_dead_rows(vitals.tables),
        *(_work(vitals.work) if vitals.work is not None else ()),
    ]


def _server(server: ServerVitals) -> Iterator[Finding]:
    if server.standby:
        yield Finding("standby", Level.WRONG, "this server is a standby and takes no writes", "name the primary server")
    unsafe = [name for name in ("fsync", "synchronous_commit") if not getattr(server, name)]
    if unsafe:
        yield Finding(
            "durability", Level.WRONG, f"{' and '.join(unsafe)} is off: a crash can take back what was accepted",
            "turn it on in postgresql.conf or for the role, see docs/howto/operate-postgresql.md",
        )  # fmt: skip
    if not server.autovacuum:
        yield Finding("autovacuum", Level.WRONG, "autovacuum is off: tables grow without end", "turn autovacuum on")
    used = server.connections / server.connections_max
    level = Level.NOTE if used > CONNECTIONS_SHARE_MAX else Level.OK
    yield Finding(
        "connections", level, f"{server.connections} of {server.connections_max} are in use",
        "raise max_connections, or put a pooler before the server" if level is Level.NOTE else "",
    )  # fmt: skip
    if server.oldest_transaction_s > TRANSACTION_MAX_S:
        minutes = server.oldest_transaction_s / 60
        yield Finding(
            "transaction", Level.WRONG, f"a transaction has been open for {minutes:.0f} minutes and blocks vacuum",
            "find it: select pid, application_name, xact_start from pg_stat_activity order by xact_start limit 1",
        )  # fmt: skip


def _clock(skew_s: float) -> Finding:
    if abs(skew_s) <= SKEW_MAX_S:
        return Finding("clock", Level.OK, "this machine and the database agree on the time")
    which = "ahead of" if skew_s > 0 else "behind"
    return Finding(
        "clock", Level.NOTE, f"the database's clock is {abs(skew_s):.0f} s {which} this machine's",
        "synchronise both; only the database's counts, but times that you give (deadline_at) are meant by yours",
    )  # fmt: skip


def _schema(fault: str | None) -> Finding:
    if fault is None:
        return Finding("schema", Level.OK, "the schema is the one of this version")
    return Finding("schema", Level.WRONG, fault, "`windlass migrate` applies what is missing")


def _listen(receives: bool, pooled: bool) -> Finding:
    if receives:
        return Finding("listen", Level.OK, "notifications arrive (LISTEN)")
    if pooled:
        return Finding("listen", Level.OK, "no LISTEN through the pooler; servers poll, as `pooled` says")
    return Finding(
        "listen", Level.WRONG, "a NOTIFY does not come back: a transaction-mode pooler stands before the database",
        "set WINDLASS_POOLED=true, or connect past the pooler; see docs/howto/run-behind-a-pooler.md",
    )  # fmt: skip


def _dead_rows(tables: Iterable[TableVitals]) -> Iterator[Finding]:
    for table in tables:
        if table.dead > DEAD_LEAST and table.dead > DEAD_SHARE_MAX * table.live:
            name = f"windlass.{table.name}"
            yield Finding(
                "dead_rows", Level.NOTE, f"{name} has {table.dead:,} dead rows and {table.live:,} live ones",
                f"find what blocks vacuum (long transactions, replication slots), then: vacuum {name}",
            )  # fmt: skip


def _work(work: WorkVitals) -> Iterator[Finding]:
    yield Finding("workers", Level.OK, f"{work.workers} alive")
    if work.leases_overdue:
        yield Finding(
            "leases", Level.WRONG, f"{work.leases_overdue} leases have expired, and no engine recovered their tasks",
            "no engine runs its loops on this database: start `windlass serve`",
        )  # fmt: skip
    if work.effects_overdue:
        yield Finding(
            "effects", Level.WRONG, f"{work.effects_overdue} effects have been due for more than a minute",
            "no engine carries them out: start `windlass serve`, and read its log",
        )  # fmt: skip
    if work.effects_dead:
        yield Finding(
            "dead_effects", Level.NOTE, f"{work.effects_dead} effects were given up",
            "look at them: GET /api/v1/outbox?dead=true",
        )  # fmt: skip
    if work.parked:
        yield Finding(
            "parked", Level.NOTE, f"{work.parked} workflows are parked: their code no longer matches their record",
            "windlass tasks list --state parked; then `windlass tasks why ID` and `windlass tasks retry ID`",
        )  # fmt: skip
    if work.unattended:
        yield Finding(
            "unattended", Level.NOTE, f"tasks are due in {', '.join(work.unattended)}, and no worker takes from there",
            f"windlass worker module:app -q {','.join(work.unattended)}",
        )  # fmt: skip
