"""Submit on the caller's own connection, inside its transaction: a rollback removes the task.

Works with any of these connections without importing a driver: asyncpg, psycopg 3 (async and sync), connections and
sessions of SQLAlchemy (async and sync), or anything with DB-API 2 cursors (psycopg2, Django's `connection`).
The SQL function `windlass.submit` does the rest, and wakes workers when the caller commits. No engine is needed.

A connection that is not in a transaction is refused: the task would stay when the caller's changes are rolled back.
Some drivers know whether a transaction has begun. For the others we try a savepoint: PostgreSQL refuses it outside of
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

from windlass.core.retry import DEFAULT_POLICY
from windlass.core.submission import Submission, check_submission
from windlass.errors import Conflict, Invalid, InvalidState

# The parameters of the function, with types that no codec of the caller's connection changes.
_PARAMETERS = {
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
_UNSUPPORTED = ("id", "requires", "run_id", "after")
_NO_SCHEMA = {"3F000", "42883"}
_NO_TRANSACTION = "25P01"
_OPEN = (2, 3)  # libpq: in a transaction, in one that has failed

_SAVEPOINT = "savepoint windlass_submit"
_UNDO = "rollback to savepoint windlass_submit"
_RELEASE = "release savepoint windlass_submit"

_HOW_TO_BEGIN = {
    "asyncpg": "begin one with `async with connection.transaction():`. SQLAlchemy begins its transactions late: "
    "pass its AsyncConnection or AsyncSession, not the connection of the driver",
    "psycopg": "begin one with `with connection.transaction():` (`async with` for an async one)",
    "psycopg2": "turn its autocommit off",
    "django": "begin one with `with transaction.atomic():`",
    "sqlalchemy": "its isolation level is AUTOCOMMIT; choose another",
}

T = TypeVar("T")


class _Driver(NamedTuple):
    """How to use a connection. `execute` returns a value if the statement has parameters, otherwise None."""

    execute: Callable[..., Awaitable[Any]]
    submit: str
    in_transaction: bool | None  # None: only the database knows


async def submit_in(connection: Any, submission: Submission, *, blocking: bool = False) -> UUID:
    """Submit one task on a connection for async code, or on one that blocks."""
    values = _values(submission)
    with _translate_errors(connection):
        driver = await (_sync_driver(connection) if blocking else _async_driver(connection))
        if driver.in_transaction is None:
            await driver.execute(_SAVEPOINT)
            await driver.execute(_RELEASE)
        return _id(await driver.execute(driver.submit, *values))


async def submit_many_in(connection: Any, submissions: Sequence[Submission], *, blocking: bool = False) -> list[UUID]:
    """Submit all tasks or none, even if the caller continues its transaction after an error."""
    rows = [_values(submission) for submission in submissions]
    with _translate_errors(connection):
        driver = await (_sync_driver(connection) if blocking else _async_driver(connection))
        await driver.execute(_SAVEPOINT)
        try:
            ids = [_id(await driver.execute(driver.submit, *values)) for values in rows]
        except BaseException as error:
            if _sqlstate(error) != _NO_TRANSACTION:
                with suppress(Exception):  # the caller gets the first error
                    await driver.execute(_UNDO)
                    await driver.execute(_RELEASE)
            raise
        await driver.execute(_RELEASE)
        return ids


def submit_in_sync(connection: Any, submission: Submission) -> UUID:
    return _run(submit_in(connection, submission, blocking=True))


def submit_many_in_sync(connection: Any, submissions: Sequence[Submission]) -> list[UUID]:
    return _run(submit_many_in(connection, submissions, blocking=True))


def _run(blocking: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine whose calls all block to its end, without an event loop."""
    try:
        blocking.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a call on a connection that blocks was awaited")


# --------------------------------------------------------------------------------------------- kinds of connections


async def _async_driver(connection: Any) -> _Driver:
    if not inspect.iscoroutinefunction(getattr(connection, "execute", None)) and not _is_asyncpg(connection):
        raise _wrong_connection(connection, "asyncpg, psycopg or SQLAlchemy, or submit_sync for one that blocks")
    if _is_asyncpg(connection):
        if not connection.is_in_transaction():
            raise _no_transaction(connection)
        return _Driver(partial(_execute_asyncpg, connection), _DOLLAR, True)
    if _is_session(connection):
        return _sqlalchemy_driver(await connection.connection())
    if _is_sqlalchemy(connection):
        return _sqlalchemy_driver(connection)
    return _Driver(partial(_execute_psycopg, connection), _PERCENT, _in_transaction(connection))


async def _sync_driver(connection: Any) -> _Driver:
    if not inspect.iscoroutinefunction(getattr(connection, "execute", None)) and not _is_asyncpg(connection):
        if _is_session(connection):
            return _sqlalchemy_driver(connection.connection())
        if _is_sqlalchemy(connection):
            return _sqlalchemy_driver(connection)
        if callable(getattr(connection, "cursor", None)):
            return _Driver(partial(_execute_cursor, connection), _PERCENT, _in_transaction(connection))
    raise _wrong_connection(connection, "psycopg, Django or SQLAlchemy, or submit for an async one")


def _sqlalchemy_driver(connection: Any) -> _Driver:
    submit = _DOLLAR if connection.dialect.driver == "asyncpg" else _PERCENT
    return _Driver(partial(_execute_sqlalchemy, connection), submit, None)


async def _execute_asyncpg(connection: Any, statement: str, *values: object) -> Any:
    return await (connection.fetchval(statement, *values) if values else connection.execute(statement))


async def _execute_psycopg(connection: Any, statement: str, *values: object) -> Any:
    cursor = await connection.execute(statement, values or None)
    return (await cursor.fetchone())[0] if values else None


async def _execute_sqlalchemy(connection: Any, statement: str, *values: object) -> Any:
    result = connection.exec_driver_sql(statement, values or None)
    if inspect.isawaitable(result):
        result = await result
    return result.scalar_one() if values else None


async def _execute_cursor(connection: Any, statement: str, *values: object) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchone()[0] if values else None


def _is_asyncpg(connection: object) -> bool:
    return callable(getattr(connection, "fetchval", None)) and not isinstance(connection, type)


def _is_sqlalchemy(connection: object) -> bool:
    return callable(getattr(connection, "exec_driver_sql", None)) and not isinstance(connection, type)


def _is_session(connection: object) -> bool:
    """Of SQLAlchemy: the connection behind it has, or begins, the transaction of the session."""
    methods = (getattr(connection, name, None) for name in ("get_bind", "connection", "execute"))
    return all(map(callable, methods)) and not isinstance(connection, type)


def _in_transaction(connection: Any) -> bool | None:
    """True if Django's wrapper or a libpq driver reports one. Otherwise None: the first statement may begin one."""
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    return True if getattr(connection, "in_atomic_block", None) is True or status in _OPEN else None


def _no_transaction(connection: object) -> Invalid:
    modules = [base.__module__.partition(".")[0] for base in type(connection).__mro__]
    how = next((_HOW_TO_BEGIN[module] for module in modules if module in _HOW_TO_BEGIN), "begin one first")
    problem = "is not in a transaction, so a rollback of your changes would leave the task"
    return Invalid(f"{problem}: {how}; or submit without a connection", field="connection")


# --------------------------------------------------------------------------------------------- statements and errors


def _statement(placeholder: Callable[[int], str]) -> str:
    arguments = (
        f"{name} => {form.format(placeholder(i))}" for i, (name, form) in enumerate(_PARAMETERS.items(), start=1)
    )
    return f"select windlass.submit({', '.join(arguments)})"


_DOLLAR = _statement(lambda number: f"${number}")
_PERCENT = _statement(lambda _: "%s")


def _values(s: Submission) -> list[object]:
    check_submission(s)
    for field in _UNSUPPORTED:
        if getattr(s, field):
            raise Invalid("cannot be used together with a connection", field=field)
    if rb"\u0000" in s.payload:
        # jsonb has no NUL character, and the error would abort the caller's transaction
        raise Invalid("must not contain a NUL character when submitted on a connection", field="payload")
    policy = None if s.policy == DEFAULT_POLICY else msgspec.json.encode(s.policy).decode()
    return [
        s.kind, s.payload.decode(), s.queue, s.namespace, s.priority, s.delay_s, s.available_at, s.deadline_at,
        s.concurrency_key, s.idempotency_key, policy,
    ]  # fmt: skip


def _id(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _wrong_connection(connection: object, kinds: str) -> Invalid:
    found = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return Invalid(f"must be a connection of {kinds}; this is {found}", field="connection")


def _sqlstate(error: BaseException) -> object:
    """The SQLSTATE of the driver's error, which Django and SQLAlchemy wrap in their own."""
    known = (getattr(one, name, None) for one in (error, error.__cause__) for name in ("sqlstate", "pgcode"))
    return next((state for state in known if state), None)


@contextmanager
def _translate_errors(connection: object) -> Iterator[None]:
    """Turn errors of the SQL function into ours; all others reach the caller unchanged."""
    try:
        yield
    except Exception as error:
        state = _sqlstate(error)
        if state == "22023":
            raise Invalid(str(error), field="submission") from error
        if state == "23505" and "idempotency key" in str(error):
            raise Conflict(str(error)) from error
        if state == _NO_TRANSACTION:
            raise _no_transaction(connection) from error
        if state in _NO_SCHEMA:
            raise InvalidState("this database has no windlass schema: run `windlass migrate`") from error
        raise
