"""Submit inside a transaction of the caller's own, on the caller's own connection: a rollback leaves nothing.

Speaks to whatever connection it is handed, and so imports no driver: asyncpg, psycopg 3 (async and sync), connections
and sessions of SQLAlchemy (async and sync), or anything with cursors as in DB-API 2 (psycopg2, Django's `connection`).
The SQL function `windlass.submit` does the rest, and wakes workers when the caller commits. No engine is needed for it.

A connection that is not in a transaction is refused: the task would stay when the caller's changes are rolled back.
Some drivers say whether a transaction has begun. Where they do not, a savepoint tells: PostgreSQL takes none outside of
a transaction, and a driver that begins its transactions late begins one for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from windlass.core.error import Conflict, Invalid, InvalidState
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.submission import Submission, check_submission

# What the function takes, with types that no codec of the caller's connection changes.
_TAKES = {
    "kind": "{}::text",
    "payload": "{}::text::jsonb",
    "queue": "{}::text",
    "namespace": "{}::text",
    "priority": "{}::integer",
    "delay": "make_interval(secs => {}::double precision)",
    "available_at": "{}::timestamptz",
    "deadline_at": "{}::timestamptz",
    "concurrency_key": "{}::text",
    "idempotency_key": "{}::text",
    "policy": "{}::text::jsonb",
}
_NOT_HERE = ("id", "requires", "run_id", "after")
_NO_SCHEMA = {"3F000", "42883"}
_NO_TRANSACTION = "25P01"
_OPEN = (2, 3)  # libpq: in a transaction, in one that has failed

_SAVEPOINT = "savepoint windlass_submit"
_UNDO = "rollback to savepoint windlass_submit"
_RELEASE = "release savepoint windlass_submit"

_HOW_TO_BEGIN = {
    "asyncpg": "begin one with `async with connection.transaction():`. SQLAlchemy begins its transactions late: "
    "give its AsyncConnection or AsyncSession, not the connection of the driver",
    "psycopg": "begin one with `with connection.transaction():` (`async with` for an async one)",
    "psycopg2": "turn its autocommit off",
    "django": "begin one with `with transaction.atomic():`",
    "sqlalchemy": "its isolation level is AUTOCOMMIT; choose another",
}

T = TypeVar("T")


class _Way(NamedTuple):
    """How to talk to a connection: a statement without values gives nothing, one with values gives one value."""

    ask: Callable[..., Awaitable[Any]]
    submit: str
    in_transaction: bool | None  # None: nobody knows but the database


async def submit_in(connection: Any, submission: Submission) -> UUID:
    """On a connection for async code."""
    return await _submit(connection, _async_way, submission)


async def submit_many_in(connection: Any, submissions: Sequence[Submission]) -> list[UUID]:
    """All or none, also if the caller goes on after an error."""
    return await _submit_many(connection, _async_way, submissions)


def submit_in_sync(connection: Any, submission: Submission) -> UUID:
    """On a connection that blocks."""
    return _run(_submit(connection, _sync_way, submission))


def submit_many_in_sync(connection: Any, submissions: Sequence[Submission]) -> list[UUID]:
    return _run(_submit_many(connection, _sync_way, submissions))


def _run(blocking: Coroutine[Any, Any, T]) -> T:
    """A coroutine that waits for nothing but calls that block, to its end; no event loop is needed for it."""
    try:
        blocking.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call on a connection that blocks was awaited")


_FindWay = Callable[[Any], Awaitable[_Way]]


async def _submit(connection: Any, find_way: _FindWay, submission: Submission) -> UUID:
    values = _values(submission)
    with _translated(connection):
        way = await find_way(connection)
        if way.in_transaction is None:
            await way.ask(_SAVEPOINT)
            await way.ask(_RELEASE)
        return _id(await way.ask(way.submit, *values))


async def _submit_many(connection: Any, find_way: _FindWay, submissions: Sequence[Submission]) -> list[UUID]:
    rows = [_values(submission) for submission in submissions]
    with _translated(connection):
        way = await find_way(connection)
        await way.ask(_SAVEPOINT)
        try:
            ids = [_id(await way.ask(way.submit, *values)) for values in rows]
        except BaseException as error:
            if _state(error) != _NO_TRANSACTION:
                with suppress(Exception):  # the caller hears of the first error
                    await way.ask(_UNDO)
                    await way.ask(_RELEASE)
            raise
        await way.ask(_RELEASE)
        return ids


# --------------------------------------------------------------------------------------------- kinds of connections


async def _async_way(connection: Any) -> _Way:
    if not inspect.iscoroutinefunction(getattr(connection, "execute", None)) and not _is_asyncpg(connection):
        kinds = "asyncpg, psycopg or SQLAlchemy, or submit_sync for one that blocks"
        raise Invalid(_wanted(connection, kinds), field="connection")
    if _is_asyncpg(connection):
        if not connection.is_in_transaction():
            raise _no_transaction(connection)
        return _Way(partial(_ask_asyncpg, connection), _DOLLAR, True)
    if _is_session(connection):
        return _sqlalchemy_way(await connection.connection())
    if _is_sqlalchemy(connection):
        return _sqlalchemy_way(connection)
    return _Way(partial(_ask_psycopg, connection), _PERCENT, _knows_transaction(connection))


async def _sync_way(connection: Any) -> _Way:
    if not inspect.iscoroutinefunction(getattr(connection, "execute", None)) and not _is_asyncpg(connection):
        if _is_session(connection):
            return _sqlalchemy_way(connection.connection())
        if _is_sqlalchemy(connection):
            return _sqlalchemy_way(connection)
        if callable(getattr(connection, "cursor", None)):
            return _Way(partial(_ask_cursor, connection), _PERCENT, _knows_transaction(connection))
    raise Invalid(_wanted(connection, "psycopg, Django or SQLAlchemy, or submit for an async one"), field="connection")


def _sqlalchemy_way(connection: Any) -> _Way:
    submit = _DOLLAR if connection.dialect.driver == "asyncpg" else _PERCENT
    return _Way(partial(_ask_sqlalchemy, connection), submit, None)


async def _ask_asyncpg(connection: Any, statement: str, *values: object) -> Any:
    return await (connection.fetchval(statement, *values) if values else connection.execute(statement))


async def _ask_psycopg(connection: Any, statement: str, *values: object) -> Any:
    cursor = await connection.execute(statement, values or None)
    return (await cursor.fetchone())[0] if values else None


async def _ask_sqlalchemy(connection: Any, statement: str, *values: object) -> Any:
    result = connection.exec_driver_sql(statement, values or None)
    if inspect.isawaitable(result):
        result = await result
    return result.scalar_one() if values else None


async def _ask_cursor(connection: Any, statement: str, *values: object) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchone()[0] if values else None


def _is_asyncpg(connection: object) -> bool:
    return callable(getattr(connection, "fetchval", None)) and not isinstance(connection, type)


def _is_sqlalchemy(connection: object) -> bool:
    return callable(getattr(connection, "exec_driver_sql", None)) and not isinstance(connection, type)


def _is_session(connection: object) -> bool:
    """Of SQLAlchemy: the connection behind it has, or begins, the transaction of the session."""
    known = (getattr(connection, name, None) for name in ("get_bind", "connection", "execute"))
    return all(map(callable, known)) and not isinstance(connection, type)


def _knows_transaction(connection: Any) -> bool | None:
    """What Django's wrapper and libpq's drivers say. One that is not open yet may be begun with the first statement."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return True if getattr(connection, "in_atomic_block", None) is True or status in _OPEN else None


def _no_transaction(connection: object) -> Invalid:
    modules = [base.__module__.partition(".")[0] for base in type(connection).__mro__]
    how = next((_HOW_TO_BEGIN[module] for module in modules if module in _HOW_TO_BEGIN), "begin one first")
    problem = "is not in a transaction, so that a rollback of your changes would leave the task"
    return Invalid(f"{problem}: {how}; or submit without a connection", field="connection")


# --------------------------------------------------------------------------------------------- what is said


def _statement(placeholder: Callable[[int], str]) -> str:
    arguments = (f"{name} => {form.format(placeholder(i))}" for i, (name, form) in enumerate(_TAKES.items(), start=1))
    return f"select windlass.submit({', '.join(arguments)})"


_DOLLAR = _statement(lambda number: f"${number}")
_PERCENT = _statement(lambda _: "%s")


def _values(s: Submission) -> list[object]:
    check_submission(s)
    for field in _NOT_HERE:
        if getattr(s, field):
            raise Invalid("cannot be given together with a connection", field=field)
    if rb"\u0000" in s.payload:
        raise Invalid("cannot hold a NUL character here", field="payload")  # jsonb has none, and all would be undone
    policy = None if s.policy == DEFAULT_POLICY else msgspec.json.encode(s.policy).decode()
    return [
        s.kind, s.payload.decode(), s.queue, s.namespace, s.priority, s.delay_s, s.available_at, s.deadline_at,
        s.concurrency_key, s.idempotency_key, policy,
    ]  # fmt: skip


def _id(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _wanted(connection: object, kinds: str) -> str:
    return f"must be a connection of {kinds}; this is {type(connection).__module__}.{type(connection).__qualname__}"


def _state(error: BaseException) -> object:
    """The SQLSTATE that the driver gave; Django and SQLAlchemy wrap what it raised."""
    known = (getattr(one, name, None) for one in (error, error.__cause__) for name in ("sqlstate", "pgcode"))
    return next((state for state in known if state), None)


@contextmanager
def _translated(connection: object) -> Iterator[None]:
    """What the function says becomes an error of ours; all else is between the caller and its database."""
    try:
        yield
    except Exception as error:
        state = _state(error)
        if state == "22023":
            raise Invalid(str(error), field="submission") from error
        if state == "23505" and "idempotency key" in str(error):
            raise Conflict(str(error)) from error
        if state == _NO_TRANSACTION:
            raise _no_transaction(connection) from error
        if state in _NO_SCHEMA:
            raise InvalidState("the database of this connection has no Windlass: run `windlass migrate`") from error
        raise
