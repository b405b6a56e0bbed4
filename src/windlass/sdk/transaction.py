"""Submit inside a transaction of the caller's own, on the caller's own connection: a rollback leaves nothing.

Speaks to whatever connection it is handed, and so knows no driver: asyncpg, psycopg 3 (async and sync), or anything
with cursors as in DB-API 2 (psycopg2, Django's `connection`). The SQL function `windlass.submit` does the rest, and
wakes workers when the caller commits. No engine is needed for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
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


async def submit_in(connection: Any, submission: Submission) -> UUID:
    """On a connection for async code."""
    values = _values(submission)
    if _is_asyncpg(connection):
        with _translated():
            return _id(await connection.fetchval(_ASYNCPG, *values))
    if not inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise Invalid(_wanted(connection, "asyncpg or psycopg, or submit_sync for one that blocks"), field="connection")
    with _translated():
        cursor = await connection.execute(_PERCENT, values)
        return _id((await cursor.fetchone())[0])


async def submit_many_in(connection: Any, submissions: Sequence[Submission]) -> list[UUID]:
    """All or none, also where the caller has not begun a transaction."""
    begin = getattr(connection, "transaction", None)
    async with begin() if callable(begin) and not isinstance(connection, type) else nullcontext():
        return [await submit_in(connection, submission) for submission in submissions]


def submit_many_in_sync(connection: Any, submissions: Sequence[Submission]) -> list[UUID]:
    begin = getattr(connection, "transaction", None)
    with begin() if callable(begin) and not isinstance(connection, type) else nullcontext():
        return [submit_in_sync(connection, submission) for submission in submissions]


def submit_in_sync(connection: Any, submission: Submission) -> UUID:
    """On a connection that blocks."""
    values = _values(submission)
    asks = getattr(connection, "execute", None)
    if (
        not callable(getattr(connection, "cursor", None))
        or inspect.iscoroutinefunction(asks)
        or _is_asyncpg(connection)
    ):
        raise Invalid(_wanted(connection, "psycopg or Django, or submit for an async one"), field="connection")
    with _translated(), connection.cursor() as cursor:
        cursor.execute(_PERCENT, values)
        return _id(cursor.fetchone()[0])


def _statement(placeholder: Callable[[int], str]) -> str:
    arguments = (f"{name} => {form.format(placeholder(i))}" for i, (name, form) in enumerate(_TAKES.items(), start=1))
    return f"select windlass.submit({', '.join(arguments)})"


_ASYNCPG = _statement(lambda number: f"${number}")
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


def _is_asyncpg(connection: object) -> bool:
    return callable(getattr(connection, "fetchval", None)) and not isinstance(connection, type)


def _id(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))


def _wanted(connection: object, kinds: str) -> str:
    return f"must be a connection of {kinds}; this is {type(connection).__module__}.{type(connection).__qualname__}"


def _sqlstate(error: BaseException | None) -> object:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


@contextmanager
def _translated() -> Iterator[None]:
    """What the function says becomes an error of ours; all else is between the caller and its database."""
    try:
        yield
    except Exception as error:
        state = _sqlstate(error) or _sqlstate(error.__cause__)  # Django wraps what its driver raised
        if state == "22023":
            raise Invalid(str(error), field="submission") from error
        if state == "23505" and "idempotency key" in str(error):
            raise Conflict(str(error)) from error
        if state in _NO_SCHEMA:
            raise InvalidState("the database of this connection has no Windlass: run `windlass migrate`") from error
        raise
