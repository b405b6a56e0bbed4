"""The seam between the real store and the real database: one statement in flight, each with its fault and its delay.

A statement is a message that travels to the database and a reply that travels back, both for a seeded while of virtual
time. Between them it runs to its end, alone, and the checkers see what it committed before anybody else can. It knows
connections and transactions; what SQL means is left to the store and to the checkers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
from tests.sim.database import LOCK_TIMEOUT_MS
from tests.sim.fault import Fault
from tests.sim.trace import described, mark

from windlass.errors import StoreBusy
from windlass.store.notify import PendingNotifications
from windlass.store.pool import Pool, Session
from windlass.store.queries import QUERIES
from windlass.store.store import Store

if TYPE_CHECKING:
    from tests.sim.host import Host
    from tests.sim.simulation import Simulation

_LOCK_TIMEOUT = re.compile(r"set local lock_timeout = \d+")

_WRITE = re.compile(r"insert into |update windlass|delete from |pg_notify\(")
# What the store leaves to chance, where rows lie would decide, and that is not ours: equal times are ordered by id, and
# rows that come in no order at all are sorted.
_TIED = re.compile(r"(order by ([tmd])\.(?:available_at|timer_at|visible_at)(?: desc)?)\s+(limit)")
STATEMENTS_MAX = 60_000
FRAME = ("begin", "commit", "rollback")


class GatedConnection:
    """Stands where the driver's connection would be."""

    def __init__(self, host: Host, real: Any) -> None:
        self.host, self.real = host, real
        self.gate = host.world.gate
        self.in_transaction = self.broken = False
        self.began_at_commit = 0  # how many commits there had been when this transaction began
        self.wrote = False

    async def fetch(self, sql: str, *args: object) -> Any:
        untied = _TIED.sub(r"\1, \2.id \3", sql)
        return await self.gate.statement(
            self, self.gate.names.get(sql, "?"), args, lambda: self.real.fetch(untied, *args)
        )

    async def execute(self, sql: str, *args: object) -> Any:
        sql = _LOCK_TIMEOUT.sub(f"set local lock_timeout = {LOCK_TIMEOUT_MS}", sql)
        return await self.gate.statement(self, sql, args, lambda: self.real.execute(sql, *args))

    async def copy_records_to_table(self, table: str, *, columns: Sequence[str], records: Iterable[Any]) -> Any:
        rows = list(records)
        return await self.gate.statement(
            self, f"copy {table}", (len(rows),),
            lambda: self.real.copy_records_to_table(table, columns=columns, records=rows),
        )  # fmt: skip

    def is_closed(self) -> bool:
        return self.broken

    def is_in_transaction(self) -> bool:
        return self.in_transaction


class GatedPool(Pool):
    """The pool of one engine. Its connections come from all that the simulation has."""

    def __init__(self, host: Host) -> None:
        super().__init__("", pooled=False, size=0)
        self._host = host

    async def close(self) -> None: ...

    async def acquire(self) -> Session:
        return Session(await self._host.world.gate.connect(self._host))

    def release(self, session: Session) -> None:
        self._host.world.gate.disconnect(session._connection)


class GatedStore(Store):
    """The real store on gated connections. What it would hear by LISTEN comes from its host."""

    def __init__(self, host: Host) -> None:
        super().__init__("", pooled=host.world.plan.pooled)
        self._host = host
        self._pool = GatedPool(host)

    async def _listen_once(self, heard: Callable[[PendingNotifications], None], ready: Callable[[], None]) -> None:
        self._host.heard = heard
        heard(PendingNotifications(everything=True))
        ready()
        try:
            await self._host.gap.wait()
        finally:
            self._host.heard = None
        raise StoreBusy("the simulation broke the listening connection")


class Gate:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.slot = asyncio.Lock()
        self.names = {sql: name for name, sql in QUERIES.items()}
        self.reads = {name for name, sql in QUERIES.items() if not _WRITE.search(sql)} | set(FRAME)
        self.unordered = {
            name for name, sql in QUERIES.items() if "\nreturning " in sql and name in self.names.values()
        }
        self.statements = 0
        self.left_open: list[GatedConnection] = []
        self._stream = world.seed.stream("gate")

    async def connect(self, host: Host) -> GatedConnection:
        idle = self.world.database.idle
        if host.dead or not idle or self._stream.often(self.world.weather.no_connection):
            raise StoreBusy("the simulation has no connection left")
        connection = GatedConnection(host, idle.pop())
        host.connections.append(connection)
        return connection

    def disconnect(self, connection: GatedConnection) -> None:
        """The store gives a connection back. A transaction that was left open ends before anything else happens."""
        if connection not in connection.host.connections:
            return  # it went with its engine
        connection.host.connections.remove(connection)
        if connection.in_transaction:
            self.left_open.append(connection)
        else:
            self.world.database.give_back(connection.real)

    async def _tidy(self) -> None:
        while self.left_open:
            connection = self.left_open.pop(0)
            await self.cut(connection)
            self.world.database.give_back(connection.real)

    async def cut(self, connection: GatedConnection) -> None:
        """The connection breaks: the database rolls back what was not committed."""
        connection.broken = True
        if connection.in_transaction:
            connection.in_transaction = False
            with self.world.loop.outside():
                await connection.real.execute("rollback")

    async def statement(
        self, connection: GatedConnection, name: str, args: tuple[object, ...], run: Callable[[], Awaitable[Any]]
    ) -> Any:
        """There and back again."""
        weather = self.world.weather
        commit = name == "commit"
        fault = weather.at_statement(self._stream, commit=commit)
        await asyncio.sleep(weather.latency(self._stream, commit=commit))
        async with self.slot:
            await self._tidy()
            result = await self._arrive(connection, name, args, run, fault)
        if fault is Fault.CRASH and not connection.host.dead:
            self.world.start(self.world.chaos.crash(connection.host))
            await asyncio.sleep(3600.0)  # and hears nothing more
        await asyncio.sleep(weather.latency(self._stream))
        if isinstance(result, Exception):
            raise result
        return result

    async def _arrive(
        self,
        connection: GatedConnection,
        name: str,
        args: tuple[object, ...],
        run: Callable[[], Awaitable[Any]],
        fault: Fault,
    ) -> Any:
        """At the database. Errors are returned: they travel back like any other reply."""
        if connection.broken:
            return _gone()
        if fault is Fault.BROKEN_BEFORE:
            await self.cut(connection)
        result: Any = _busy() if fault is Fault.BUSY else _gone()
        if fault in (Fault.NONE, Fault.BROKEN_AFTER, Fault.CRASH):
            with self.world.loop.outside():
                result = await self._run(connection, name, args, run)
        if fault is Fault.BROKEN_AFTER:
            await self.cut(connection)
        self.statements += 1
        if self.statements > STATEMENTS_MAX:
            self.world.fail(f"no end after {STATEMENTS_MAX} statements")
        self.world.say(
            f"{connection.host.name}.{self.world.database.known.index(connection.real)}",
            f"{name} {described(args)} -> {_said(result)} {'' if fault is Fault.NONE else fault}",
        )
        return _gone() if fault is Fault.BROKEN_AFTER else result

    async def _run(
        self, connection: GatedConnection, name: str, args: tuple[object, ...], run: Callable[[], Awaitable[Any]]
    ) -> Any:
        world = self.world
        if name not in FRAME:  # these read no clock
            await world.database.set_clock(world.now())
        await world.observe_before(connection, name, args)
        try:
            result: Any = await run()
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            result = error
        else:
            self._follow(connection, name)
            if name in self.unordered:
                result = sorted(result, key=repr)
            world.observe_after(connection, name, args, result)
            if not connection.in_transaction and name != "rollback" and connection.wrote:
                world.committed(connection, await world.database.drain())
        return result

    def _follow(self, connection: GatedConnection, name: str) -> None:
        if name == "begin":
            connection.in_transaction = True
            connection.began_at_commit = self.world.commits
            connection.wrote = False
        elif name in ("commit", "rollback"):
            connection.in_transaction = False
        elif not connection.in_transaction:
            connection.began_at_commit = self.world.commits
            connection.wrote = False
        connection.wrote = connection.wrote or name not in self.reads


def _gone() -> Exception:
    return asyncpg.ConnectionDoesNotExistError("the simulation broke the connection")


def _busy() -> Exception:
    return asyncpg.QueryCanceledError("the simulation keeps the database busy")


def _said(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__}"
    if isinstance(result, str):
        return result
    return f"{len(result)} rows {mark(sorted(repr(tuple(row)) for row in result))}"
