"""Whatever is passed to a public name: an error of our own tree, and nothing is written.

Generated from `windlass.__all__`, so that a new name is covered unasked: a parameter for which no good value is known
here fails the test with a message that says where to add one.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

import windlass
from windlass import Category, Claimed, Engine, Failure, Lease, Policy, Rate, State, Submission, WindlassError
from windlass.core.command import Cancelled, Complete, Fail, Park, Release, Sleep

UNKNOWN = UUID("01890000-0000-7000-8000-000000000000")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
LEASE = Lease(UNKNOWN, "default", "ada", ("default",), None, (), 30.0, NOW)
TASK = windlass.Task(UNKNOWN, "default", "default", "job", State.RUNNING, NOW, attempt=1, lease_id=UNKNOWN)
FAILURE = Failure(Category.USER_CODE, "it crashed")
HUGE = b'"' + b"x" * (2 * 1024 * 1024) + b'"'


async def _handler(payload: Any) -> Any:
    return payload


# A good value for every parameter of every public callable, by its name. What is added to the API is added here.
GOOD: dict[str, Any] = {
    "submission": Submission(kind="job"),
    "submissions": [Submission(kind="job")],
    "task_id": UNKNOWN,
    "run_id": UNKNOWN,
    "reason": "because",
    "force": False,
    "timeout_s": 0.0,
    "worker": "ada",
    "queues": ["default"],
    "kinds": ["job"],
    "labels": ["gpu"],
    "namespace": "default",
    "ttl_s": 30.0,
    "lease": LEASE,
    "active": [UNKNOWN],
    "limit": 1,
    "wait_s": 0.0,
    "reports": [Complete(UNKNOWN, 1, UNKNOWN)],
    "claimed": Claimed(TASK, b"null"),
    "result": b"null",
    "failure": FAILURE,
    "until": NOW,
    "queue": "default",
    "paused": False,
    "max_running": 1,
    "max_running_per_kind": {"job": 1},
    "max_running_per_key": 1,
    "rate": Rate(1, 1.0),
    "states": [State.QUEUED],
    "kind": "job",
    "after": UNKNOWN,
    "source": object(),
    "handlers": {"job": _handler},
    "name": "ada",
    "concurrency": 1,
    "lease_ttl_s": 30.0,
    "database_url": "postgresql://127.0.0.1:1/none",
    "pooled": False,
    "listen": True,
    "data_dir": ".windlass",
    "effects": None,
    "message": "done",
}

FREE_TEXT = {"reason"}  # mended where it could not be stored, since losing it would be worse

# Never good, whatever the parameter.
ALWAYS_BAD: list[Any] = [object(), 1 + 2j, float("nan"), "\ud800", "a\x00b", HUGE, [object()], {"": object()}, ...]
# Good for some parameters only; where one is legal it may be accepted.
OFTEN_BAD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    -0.5,
    float("inf"),
    "",
    "x" * 100_000,
    b"",
    b"\xff",
    b"{",
    [],
    {},
    (),
    NOW.replace(tzinfo=None),
    datetime.max.replace(tzinfo=UTC),
    timedelta(1),
    UNKNOWN,
    "not-a-uuid",
    State.QUEUED,
]

# Records say nothing when they are made; they are checked where they are handed in.
BAD_SUBMISSIONS = [
    Submission(kind="job", **{field: value})
    for field, values in {
        "payload": [b"", b"{", b"\xff", HUGE, "text", None, b'"' + b"\xed\xa0\x80" + b'"'],
        "queue": ["", "x" * 201, "a\nb", 7, None, "\ud800"],
        "namespace": ["", None, b"x"],
        "id": ["x", 7, UUID],
        "priority": [101, -101, True, 1.5, "1", None],
        "available_at": [NOW.replace(tzinfo=None), "now", 7],
        "deadline_at": [NOW.replace(tzinfo=None), "now", 7],
        "concurrency_key": ["a\x00", "x" * 501, None, 7],
        "idempotency_key": ["", "a\x00", "x" * 501, 7],
        "policy": [
            None,
            {},
            Policy(max_attempts=0),
            Policy(max_losses=-1),
            Policy(timeout_s=0),
            Policy(retry_factor=0.5),
            Policy(retry_delay_s=float("nan")),
            Policy(cancel_grace_s=-1),
        ],
        "requires": ["gpu", ("",), (7,), None],
        "run_id": ["x", 7],
        "after": [(UNKNOWN,), UNKNOWN, ("x",), None],
    }.items()
    for value in values
]
BAD_FAILURES = [
    None, "x", Failure("nope", "x"), Failure(Category.TIMEOUT, None), Failure(Category.TIMEOUT, "x", retryable="yes"),
    Failure(Category.TIMEOUT, "x", retry_after_s=-1), Failure(Category.TIMEOUT, "x", reason=7),
]  # fmt: skip
BAD_REPORTS = [
    *(Complete(UNKNOWN, 1, UNKNOWN, result) for result in (b"", b"{", HUGE, "text", 7)),
    *(Fail(UNKNOWN, 1, UNKNOWN, failure) for failure in BAD_FAILURES),
    *(Park(UNKNOWN, 1, UNKNOWN, failure) for failure in BAD_FAILURES),
    *(Release(UNKNOWN, attempt, UNKNOWN) for attempt in (0, -1, True, 2**31, "1", None)),
    *(Sleep(UNKNOWN, 1, UNKNOWN, until) for until in ("soon", 7, NOW.replace(tzinfo=None))),
    Cancelled(UNKNOWN, 1, UNKNOWN, None), Release("x", 1, UNKNOWN), Release(UNKNOWN, 1, None), object(), None, "report",
]  # fmt: skip


def callables() -> list[tuple[str, Callable[..., Any]]]:
    """Everything public that can be called with arguments, except records, enums and errors."""
    found: list[tuple[str, Callable[..., Any]]] = []
    for name in windlass.__all__:
        value = getattr(windlass, name)
        if inspect.isclass(value) and issubclass(value, msgspec.Struct | enum.Enum | WindlassError):
            continue
        found.append((name, value))
        if inspect.isclass(value):
            found += [(f"{name}.{method}", function) for method, function in methods(value)]
    return found


def methods(of: type) -> list[tuple[str, Callable[..., Any]]]:
    """The public ones that take anything besides `self`."""
    public = [(name, value) for name, value in inspect.getmembers(of, callable) if not name.startswith("_")]
    return [(name, value) for name, value in public if len(inspect.signature(value).parameters) > 1]


def parameters(call: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p.name for p in inspect.signature(call).parameters.values() if p.name != "self" and p.kind not in kinds]


SKIPPED = {"Engine"}  # made by open_engine; its arguments are seams for tests and the simulation
CASES = [(name, parameter) for name, call in callables() if name not in SKIPPED for parameter in parameters(call)]


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    async with windlass.open_engine(database) as engine:
        yield engine


async def rows(connection: asyncpg.Connection) -> dict[str, int]:
    """How much each table holds; the days of the history are counted with the whole of it."""
    names = await connection.fetch("select tablename from pg_tables where schemaname = 'windlass' order by 1")
    return {
        name: await connection.fetchval(f"select count(*) from windlass.{name}")
        for (name,) in names
        if not name.startswith("history_")
    }


async def call(engine: Engine, name: str, arguments: dict[str, Any]) -> None:
    owner, _, method = name.partition(".")
    target = getattr(engine, method) if method and owner == "Engine" else getattr(windlass, name)
    made = target(**arguments)
    if inspect.isawaitable(made):
        await made
    elif hasattr(made, "__aenter__"):
        async with made:
            pass


def test_a_good_value_is_known_for_every_parameter() -> None:
    missing = sorted({parameter for _, parameter in CASES if parameter not in GOOD})
    assert not missing, f"add a good value for {missing} to GOOD in {__file__}"


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=str)
async def test_bad_arguments_are_errors_of_ours_and_write_nothing(
    engine: Engine, somebody: asyncpg.Connection, name: str, parameter: str
) -> None:
    target = getattr(Engine, name.partition(".")[2]) if name.startswith("Engine.") else getattr(windlass, name)
    good = {other: GOOD[other] for other in parameters(target)}
    for bad in [*ALWAYS_BAD, *OFTEN_BAD]:
        before = await rows(somebody)
        try:
            await call(engine, name, {**good, parameter: bad})
        except WindlassError:
            assert await rows(somebody) == before, f"{name}({parameter}={bad!r:.60}) was refused and wrote all the same"
        else:
            accepted = not any(bad is never for never in ALWAYS_BAD) or (
                isinstance(bad, str) and parameter in FREE_TEXT
            )
            assert accepted or parameter == "source", f"{name}({parameter}={bad!r:.60}) was accepted"


@pytest.mark.parametrize("number", range(len(BAD_SUBMISSIONS)))
async def test_bad_submissions_are_refused_whole(engine: Engine, somebody: asyncpg.Connection, number: int) -> None:
    bad = BAD_SUBMISSIONS[number]
    with pytest.raises(WindlassError):
        await engine.submit(bad)
    with pytest.raises(WindlassError):
        await engine.submit_many([Submission(kind="job"), bad])
    written = await rows(somebody)
    assert not any(written[table] for table in ("task", "run", "edge", "idempotency", "outbox"))


@pytest.mark.parametrize("number", range(len(BAD_REPORTS)))
async def test_bad_reports_are_refused(engine: Engine, somebody: asyncpg.Connection, number: int) -> None:
    before = await rows(somebody)
    with pytest.raises(WindlassError):
        await engine.report([BAD_REPORTS[number]])
    assert await rows(somebody) == before
