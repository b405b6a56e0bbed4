"""Bad input to every public name, generated from `windlass.__all__`: an error of our own tree, and nothing is written.

A value of the wrong type must be refused. A value of the right type may be refused or be legal; if it is accepted, what
it wrote must be readable. A new name or parameter that this file knows no good value for fails here, and says what to
add: see GOOD, HANDED_TO and WITHOUT_INPUT.
"""

from __future__ import annotations

import asyncio
import collections.abc
import enum
import inspect
import math
import os
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest
from tests.kit.work import CRASH, begin, job, only_direct, worker

import windlass
from windlass import (
    App,
    Claimed,
    Context,
    Engine,
    Lease,
    Policy,
    Rate,
    Submission,
    TaskHandle,
    WindlassError,
    Worker,
    sdk,
)
from windlass.contracts.callback.worker import worker as callback_worker  # what `App` names when it is asked
from windlass.core import command, step_command
from windlass.core.lease import Activity
from windlass.core.progress import Amount, Line, ProgressReport
from windlass.core.step import Place
from windlass.core.validation import PAYLOAD_MAX_BYTES
from windlass.engine.liveness.leases import Leases
from windlass.engine.loops.schedule_loop import Pace
from windlass.engine.manage.progress import ProgressReports
from windlass.engine.manage.workflows import Workflows
from windlass.engine.notifications import LoopTimers
from windlass.engine.payloads.payload import Payloads
from windlass.engine.randomness import SystemRandomness
from windlass.engine.read.tasks import Created, TaskViews
from windlass.sdk import WorkflowContext
from windlass.sdk.workflow.exits import WorkflowExit
from windlass.serve import open_blobs

pytestmark = pytest.mark.slow

BAD: dict[str, Any] = {
    "None": None,
    "True": True,
    "minus one": -1,
    "zero": 0,
    "a large number": 2**31,
    "a larger number": 2**63,
    "the largest number": 10**400,
    "a fraction": 1.5,
    "a negative fraction": -0.5,
    "a complex number": 1 + 2j,
    "not a number": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "a decimal": Decimal(1),
    "empty text": "",
    "text": "something",
    "a NUL byte": "a\x00b",
    "a control character": "a\x1fb",
    "a lone surrogate": "a\ud800b",
    "very long text": "x" * 1_000_000,
    "no bytes": b"",
    "bytes that are no UTF-8": b'"\xff"',
    "bytes that are half a character": b'"\xed\xa0\x80"',
    "bytes that are no JSON": b"{",
    "a payload above the limit": b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"',
    "a payload nested too deeply": b"[" * 100_000 + b"]" * 100_000,
    "an unknown id": uuid4(),
    "a naive time": datetime(2030, 1, 1),  # noqa: DTZ001
    "the first time": datetime.min.replace(tzinfo=UTC),
    "the last time": datetime.max.replace(tzinfo=UTC),
    "a span": timedelta(seconds=1),
    "no list": (),
    "a list of None": [None],
    "a list of bad text": ["a\x00b"],
    "a list of numbers": [1, 2],
    "a list of unknown ids": [uuid4()],
    "a set": {"a"},
    "a mapping": {"a": 1},
    "a mapping of bad values": {"a": object()},
    "a mapping of bad names": {"\x00": 1},
    "an object": object(),
    "an ellipsis": ...,
    "a class": dict,
    "a function": lambda: None,
}

# More for parameters where only some values reach what may fail.
ALSO_BAD: dict[str, dict[str, Any]] = {
    "database_url": {
        "a port that is none": "postgresql://localhost:port/windlass",
        "half an address": "postgresql://[::1/windlass",
        "nobody there": "postgresql://localhost:1/windlass",
        "an unknown option": "postgresql://localhost:1/windlass?no_such_option=1",
        "a bad password mode": "postgresql://localhost:1/windlass?sslmode=perhaps",
        "another protocol": "mysql://localhost/windlass",
    },
    "states": {"no such state": ["done"]},
    "category": {"no such category": "NOBODY"},
}


@dataclass(slots=True)
class Scene:
    """An engine, and what good arguments are made of."""

    engine: Engine
    database: str
    lease: Lease
    tables: list[str]
    app: sdk.App
    script: App  # the same, for what has no event loop
    task: sdk.Handler[[], None]
    ended: UUID  # a task that has succeeded, so that its result is there at once
    _claimed: Claimed | None = None
    _queued: UUID | None = None

    async def claimed(self) -> Claimed:
        """In a queue of its own, since what earlier ones left behind may wait again."""
        if self._claimed is None:
            queue = f"queue of {uuid4()}"
            lease = await worker(self.engine, queue, ttl_s=86400)
            self._claimed = await begin(self.engine, lease, queue=queue)
        return self._claimed

    async def queued(self) -> UUID:
        if self._queued is None:
            self._queued = await self.engine.submit(job(queue="idle"))
        return self._queued

    def spend(self) -> None:
        """Somebody may have used these up. Who was refused without a transaction has not."""
        self._claimed = self._queued = None


async def handler(payload: object) -> None: ...


async def nothing() -> None: ...


async def flow(ctx: WorkflowContext) -> None: ...


async def work(connection: object) -> bytes:
    return b"1"


async def step_result(scene: Scene) -> step_command.StepResult:
    task = (await scene.claimed()).task
    assert task.lease_id is not None
    return step_command.StepResult(task.id, task.attempt, task.lease_id, Place(0, "pay"))


# A good value by the name of the parameter, or by "Owner.method.parameter" where the name alone does not say it.
GOOD: dict[str, Callable[[Scene], Any]] = {
    "active": lambda s: [],
    "activity": lambda s: Activity(),
    "api_key": lambda s: None,
    "app": lambda s: s.app,
    "arguments": lambda s: {},
    "attempt": lambda s: 1,
    "after": lambda s: None,
    "call": lambda s: nothing,
    "callback_url": lambda s: None,
    "connect": lambda s: lambda: s.engine,
    "delivery": lambda s: "pull",
    "cancel_grace": lambda s: "1s",
    "category": lambda s: "USER_CODE",
    "randomness": lambda s: SystemRandomness(),
    "claimed": lambda s: s.claimed(),
    "concurrency": lambda s: 10,
    "concurrency_key": lambda s: str,
    "cron": lambda s: "0 9 * * MON",
    "current": lambda s: 1,
    "data": lambda s: [1],
    "created": lambda s: Created(),
    "blobs": lambda s: "memory://",
    "Engine.__init__.blobs": lambda s: open_blobs("memory://"),
    "Engine.__init__.cipher": lambda s: None,
    "secret_keys": lambda s: None,
    "payload_max_bytes": lambda s: 4_000_000,
    "data_dir": lambda s: "unused",
    "database_url": lambda s: s.database,
    "data_database_url": lambda s: s.database,
    "effects": lambda s: {},
    "drain": lambda s: "1s",
    "duration": lambda s: "1h",
    "failure": lambda s: CRASH,
    "from_step": lambda s: "pay",
    "handler": lambda s: s.task,
    "inline_wait_s": lambda s: 0.0,
    "moment": lambda s: datetime(2030, 1, 1, tzinfo=UTC),
    "occurrence": lambda s: 1,
    "payload": lambda s: b"1",
    "payloads": lambda s: [b"1", b"2"],
    "return_exceptions": lambda s: False,
    "command": step_result,
    "signal_id": lambda s: None,
    "step": lambda s: nothing,
    "steps": lambda s: [],
    "type": lambda s: int,
    "work": lambda s: work,
    "force": lambda s: False,
    "function": lambda s: None,
    "handlers": lambda s: {"job": handler},
    "heartbeat_process": lambda s: False,
    "hook": lambda s: nothing,
    "host": lambda s: "rome",
    "ids": lambda s: [],
    "keep_finished_s": lambda s: 60.0,
    "kind": lambda s: f"kind {uuid4()}",
    "kinds": lambda s: ["job"],
    "labels": lambda s: ["gpu"],
    "lease": lambda s: s.lease,
    "checkpoint": lambda s: b"1",
    "level": lambda s: "INFO",
    "lease_ttl_s": lambda s: 10.0,
    "limit": lambda s: 1,
    "listen": lambda s: False,
    "max_attempts": lambda s: 5,
    "max_catchup": lambda s: 3,
    "max_losses": lambda s: 5,
    "maximum": lambda s: 2.0,
    "max_running": lambda s: 5,
    "max_running_per_key": lambda s: 5,
    "max_running_per_kind": lambda s: {"job": 5},
    "message": lambda s: "no",
    "name": lambda s: "ada",
    "namespace": lambda s: "default",
    "notes": lambda s: [],
    "overlap": lambda s: "skip",
    "pace": lambda s: Pace(),
    "pause": lambda s: asyncio.sleep,
    "pid": lambda s: 17,
    "prefetch": lambda s: 0,
    "paused": lambda s: False,
    "poll_s": lambda s: 1.0,
    "pooled": lambda s: False,
    "priority": lambda s: 0,
    "processes": lambda s: 1,
    "queue": lambda s: "configured",
    "queues": lambda s: ["default"],
    "rate": lambda s: Rate(5, 1.0),
    "reason": lambda s: "no longer needed",
    "reports": lambda s: [],
    "result": lambda s: b"1",
    "retry_delay": lambda s: "1s",
    "retry_delay_max": lambda s: "1h",
    "retry_factor": lambda s: 2.0,
    "retry_on": lambda s: (OSError,),
    "retryable": lambda s: True,
    "run_id": lambda s: s.engine.parts.randomness.new_id(),
    "run_in": lambda s: None,
    "sink": lambda s: None,
    "schema": lambda s: None,
    "secret": lambda s: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "server": lambda s: None,
    "signature_age": lambda s: "5m",
    "source": lambda s: s.engine,
    "ssl_context": lambda s: None,
    "states": lambda s: None,
    "stopwatch": lambda s: lambda: 0.0,
    "store": lambda s: s.engine.store,
    "submission": lambda s: job(),
    "submissions": lambda s: [job()],
    "tally": lambda s: None,
    "task_ids": lambda s: [],
    "task_id": lambda s: s.queued(),
    "threads": lambda s: 1,
    "timeout": lambda s: "1s",
    "timeout_s": lambda s: 0.0,
    "timezone": lambda s: "Europe/Rome",
    "timers": lambda s: LoopTimers(),
    "ttl_s": lambda s: 10.0,
    "until": lambda s: None,
    "version": lambda s: "1.0",
    "wait_s": lambda s: 0.0,
    "worker": lambda s: "ada",
}

WITHOUT_INPUT = {
    "Category": "a look-up in an enum is Python's own",
    "Outcome": "a look-up in an enum is Python's own",
    "State": "a look-up in an enum is Python's own",
    "QueueConfig": "an answer; nothing takes one",
}

# What belongs to an exported name and is reached through it.
PARTS: dict[str, type] = {"Engine.parts.progress": ProgressReports, "Engine.tasks": TaskViews}
# Methods of its parts that an engine has under names of its own.
BOUND: dict[str, Any] = {
    "Engine.open_lease": Leases.open,
    "Engine.end_lease": Leases.end,
    "Engine.note": ProgressReports.write,
    "Engine.checkpoint": ProgressReports.checkpoint,
    "Engine.record_step": Workflows.record,
    "Engine.load_steps": Workflows.load,
    "Engine.transact_step": Workflows.transact,
    "Engine.signal": Workflows.signal,
    "Engine.fork": Workflows.fork,
    "Engine.results": Payloads.results,
}
# What the rooms of contracts call on an engine, and users do not.
FOR_ROOMS = {"Engine.on_close", "Engine.service"}


Call = Callable[[], Any]


def about_an_attempt(kind: type, **more: Any) -> Callable[[Scene, dict[str, Any]], Any]:
    """How a report is handed over."""

    async def prepare(scene: Scene, fields: dict[str, Any]) -> Call:
        task = (await scene.claimed()).task
        report = kind(**{"task_id": task.id, "attempt": task.attempt, "lease_id": task.lease_id, **more, **fields})

        async def say() -> None:
            [answer] = await scene.engine.report([report])
            if isinstance(answer, WindlassError):
                raise answer

        return say

    return prepare


def about_a_step(kind: type, **more: Any) -> Callable[[Scene, dict[str, Any]], Any]:
    """How a record is handed over."""

    async def prepare(scene: Scene, fields: dict[str, Any]) -> Call:
        task = (await scene.claimed()).task
        whose = {"task_id": task.id, "attempt": task.attempt, "lease_id": task.lease_id, "place": Place(0, "pay")}
        return partial(scene.engine.record_step, kind(**{**whose, **more, **fields}))

    return prepare


async def submitted(scene: Scene, fields: dict[str, Any]) -> Call:
    """With a good one in front, which must not be accepted without it."""
    group = [job(queue="idle"), Submission(**{"kind": "job", "queue": "idle", **fields})]

    async def submit() -> None:
        await scene.engine.submit_many(group)
        await scene.engine.submit(group[1])

    return submit


async def submitted_policy(scene: Scene, fields: dict[str, Any]) -> Call:
    return lambda: scene.engine.submit(job(queue="idle", policy=Policy(**fields)))


async def configured_rate(scene: Scene, fields: dict[str, Any]) -> Call:
    rate = Rate(**{"count": 5, "period_s": 1.0, **fields})
    return lambda: scene.engine.configure_queue("configured", rate=rate)


async def failed_with(scene: Scene, fields: dict[str, Any]) -> Call:
    claimed, failure = await scene.claimed(), msgspec.structs.replace(CRASH, **fields)
    return lambda: scene.engine.fail(claimed, failure)


async def claimed_under(scene: Scene, fields: dict[str, Any]) -> Call:
    lease = msgspec.structs.replace(scene.lease, **fields)
    return lambda: scene.engine.claim(lease)


async def completed(scene: Scene, fields: dict[str, Any]) -> Call:
    claimed = msgspec.structs.replace(await scene.claimed(), **fields)
    return lambda: scene.engine.complete(claimed)


async def noted(scene: Scene, fields: dict[str, Any]) -> Call:
    task = (await scene.claimed()).task
    note = ProgressReport(**{"task_id": task.id, "attempt": task.attempt, "lease_id": task.lease_id, **fields})

    async def say() -> None:
        [answer] = await scene.engine.note([note])
        if answer is not None:
            raise answer

    return say


async def noted_amount(scene: Scene, fields: dict[str, Any]) -> Call:
    return await noted(scene, {"progress": Amount(**{"current": 1, **fields})})


async def noted_line(scene: Scene, fields: dict[str, Any]) -> Call:
    return await noted(scene, {"lines": (Line(**{"number": 1, "level": "INFO", "message": "", **fields}),)})


async def completed_task(scene: Scene, fields: dict[str, Any]) -> Call:
    claimed = Claimed(msgspec.structs.replace((await scene.claimed()).task, **fields), b"null")
    return lambda: scene.engine.complete(claimed)


# Values are not checked when they are made, but when they are handed over: how each of them is, with good company.
HANDED_TO: dict[str, Callable[[Scene, dict[str, Any]], Any]] = {
    "Amount": noted_amount,
    "report of Cancelled": about_an_attempt(command.Cancelled),
    "Claimed": completed,
    "report of Complete": about_an_attempt(command.Complete),
    "report of Fail": about_an_attempt(command.Fail, failure=CRASH),
    "Failure": failed_with,
    "Lease": claimed_under,
    "Line": noted_line,
    "ProgressReport": noted,
    "report of Park": about_an_attempt(command.Park, failure=CRASH),
    "Policy": submitted_policy,
    "Rate": configured_rate,
    "report of Release": about_an_attempt(command.Release),
    "command of StepChild": about_a_step(step_command.StepChild, child_id=uuid4()),
    "command of StepFailure": about_a_step(step_command.StepFailure, failure=CRASH, failures=1),
    "command of StepResult": about_a_step(step_command.StepResult),
    "command of StepSignal": about_a_step(step_command.StepSignal, signal="approval"),
    "command of StepSleep": about_a_step(step_command.StepSleep),
    "command of StepTime": about_a_step(step_command.StepTime),
    "report of Sleep": about_an_attempt(command.Sleep),
    "Submission": submitted,
    "Task": completed_task,
}

# Nothing is done with these fields when the value is handed over: what counts is in the database, or is ours to say.
UNREAD = {
    ("Claimed", "payload"),
    ("report of Fail", "jitter"),
    ("command of StepFailure", "jitter"),
    ("Lease", "expires_at"),
    *(("Task", field) for field in windlass.Task.__struct_fields__ if field not in ("id", "attempt", "lease_id")),
}


# ------------------------------------------------------------------------------------------------- what there is


def exported() -> dict[str, Any]:
    """The public names, and what `Engine.report` and `Engine.note` take."""
    reports = {f"report of {kind.__name__}": kind for kind in typing.get_args(command.Report)}
    notes = {kind.__name__: kind for kind in (ProgressReport, Amount, Line)}
    steps = {f"command of {kind.__name__}": kind for kind in typing.get_args(step_command.StepCommand)}
    return {name: getattr(windlass, name) for name in windlass.__all__} | reports | notes | steps


def callables() -> Iterator[tuple[str, Any]]:
    """(name, function) of every exported function, constructor and public method that takes something."""
    for name, value in exported().items():
        if name in WITHOUT_INPUT or name in HANDED_TO or is_error(value):
            continue
        if isinstance(value, type):
            yield f"{name}.__init__", value.__init__
            yield from methods(name, value)
        else:
            yield name, value
    for name, part in PARTS.items():
        yield from methods(name, part)
    yield from BOUND.items()


def methods(owner: str, of: type) -> Iterator[tuple[str, Any]]:
    for name, function in inspect.getmembers(of, inspect.isfunction):
        if not name.startswith("_") and f"{owner}.{name}" not in FOR_ROOMS:
            yield f"{owner}.{name}", function


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, WindlassError)


def parameters(function: Any) -> dict[str, Any]:
    """What it takes, with the types; `**options: Unpack[Options]` stands for the fields of Options."""
    hints, found = typing.get_type_hints(function, localns=vars(callback_worker)), {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and typing.get_origin(hint) is typing.Unpack:
            found |= typing.get_type_hints(typing.get_args(hint)[0])
        elif parameter.name != "self" and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found[parameter.name] = hint
    return found


FUNCTIONS = dict(callables())
CASES = [(name, parameter) for name, function in FUNCTIONS.items() for parameter in parameters(function)]
FIELDS = [
    (name, field) for name in HANDED_TO for field in exported()[name].__struct_fields__ if (name, field) not in UNREAD
]


# ------------------------------------------------------------------------------------------------- what fits


def fits(wanted: Any, value: object) -> bool:
    """Whether a value is of this type, as far as types can tell."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any or wanted is object:
        return True
    if isinstance(wanted, typing.TypeVar):
        return fits(wanted.__bound__, value)
    if origin is typing.Literal:
        return any(value is one or value == one for one in arguments)
    if origin is type:
        return isinstance(value, type) and issubclass(value, arguments[0])
    if wanted is None or wanted is type(None):
        return value is None
    if origin in (typing.Union, types.UnionType):
        return any(fits(one, value) for one in arguments)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin in (collections.abc.Sequence, tuple, list):
        inner = arguments[0] if arguments else Any
        return isinstance(value, list | tuple) and all(fits(inner, each) for each in value)
    if origin is collections.abc.Mapping:
        key, inner = arguments
        return isinstance(value, dict) and all(fits(key, k) and fits(inner, v) for k, v in value.items())
    if origin is os.PathLike:
        return isinstance(value, os.PathLike)
    if origin is sdk.Handler:
        return isinstance(value, sdk.Handler)
    if getattr(wanted, "_is_protocol", False):
        return all(hasattr(value, member) for member in wanted.__dict__ if not member.startswith("_"))
    return fits_class(wanted, value)


def fits_class(wanted: type, value: object) -> bool:
    if issubclass(wanted, enum.StrEnum):
        return isinstance(value, str) and value in set(wanted)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(value, bool) or wanted is bool:
        return wanted is type(value)
    return isinstance(value, wanted) and not (isinstance(value, datetime) and value.tzinfo is None)


def bad_values(parameter: str) -> dict[str, Any]:
    return {**BAD, **ALSO_BAD.get(parameter, {})}


# ------------------------------------------------------------------------------------------------- trying


@pytest.fixture
async def scene(
    engine: Engine, database: str, other_connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scene]:
    monkeypatch.setenv("DATABASE_URL", database)
    await engine.submit(job(kind="first", queue="idle"))
    tables = [row[0] for row in await other_connection.fetch(TABLES)]
    ended = (await engine.complete(await begin(engine))).id
    script = App("script", database)
    app = sdk.App("shop", partial(nullcontext, engine))
    task = app.task(nothing)
    async with app:
        yield Scene(engine, database, await worker(engine, ttl_s=86400), tables, app, script, task, ended)
    script.close_sync()


TABLES = "select relname from pg_class where relnamespace = 'windlass'::regnamespace and relkind = 'r' order by 1"


async def content(scene: Scene, other_connection: asyncpg.Connection) -> list[tuple[Any, ...]]:
    """How many rows each table has, and what is in them."""
    counts = (f"select '{name}', count(*), sum(hashtext(t::text)) from windlass.{name} t" for name in scene.tables)
    return [tuple(row) for row in await other_connection.fetch(" union all ".join(counts))]


async def outcome_of(call: Call, timeout_s: float) -> BaseException | None:
    """What came of a call; one that still waits has been accepted."""

    async def carry_out() -> None:
        result = call()
        if isinstance(result, AbstractAsyncContextManager):
            async with result:
                return
        if inspect.isawaitable(result):
            await result

    task = asyncio.ensure_future(carry_out())
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        task.cancel()
        await asyncio.wait({task})
        return None
    return task.exception()


async def readable(scene: Scene) -> None:
    """Nothing that was accepted may stop those who read it."""
    for namespace in ("default", "something"):
        page = await scene.engine.tasks.page(namespace=namespace, limit=1000)
        for row in page.tasks[:3]:
            await scene.engine.tasks.timeline(row.task.id)
            await scene.engine.tasks.why_waiting(row.task.id)
    async with scene.engine.store.begin() as tx:
        await tx.queues.get_settings("default", None)
    async with scene.engine.store.views() as views:
        await views.list_leases("default")


async def writes(other_connection: asyncpg.Connection) -> int:
    """How many transactions have begun to write so far, on the whole server: a look that costs next to nothing."""
    count: int = await other_connection.fetchval("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    return count


async def problem_of(
    scene: Scene,
    other_connection: asyncpg.Connection,
    what: str,
    must_refuse: bool,
    prepare: Callable[[], Awaitable[Call]],
) -> str | None:
    """A refusal for which no transaction began to write is the good case. Else it is done once more, and what is in the
    tables before and after is compared."""
    for careful in (False, True):
        call = await prepare()
        before = await content(scene, other_connection) if careful else []
        began = await writes(other_connection)
        error = await outcome_of(call, 5.0 if must_refuse else 0.5)
        if error is not None and isinstance(error, WindlassError) and await writes(other_connection) == began:
            return None
        scene.spend()
        if error is None:
            if must_refuse:
                return f"{what} was accepted"
            await readable(scene)
            return None
        if not isinstance(error, WindlassError):
            return f"{what} gave {type(error).__name__}: {str(error)[:200]}"
        if careful and await content(scene, other_connection) != before:
            return f"{what} was refused, and something was written"
    return None


async def good(scene: Scene, owner: str, parameter: str) -> Any:
    value = (GOOD.get(f"{owner}.{parameter}") or GOOD[parameter])(scene)
    return await value if inspect.isawaitable(value) else value


async def bound(scene: Scene, name: str) -> Any:
    """What to call: a function, a constructor, or a method of an object that the scene knows."""
    owner, _, method = name.rpartition(".")
    if not owner:
        return exported()[name]
    if method == "__init__":
        return exported()[owner]
    if owner == "Engine":
        return getattr(scene.engine, method)
    if owner in PARTS:
        return attrgetter(name.removeprefix("Engine."))(scene.engine)
    if owner == "Context":
        return getattr(Context(await scene.claimed()), method)
    if owner == "Worker":
        return getattr(Worker(scene.engine, {"job": handler}), method)
    if name == "App.schedule":
        return partial(scheduled, scene)
    if name in ("App.task", "App.workflow", "App.step"):
        return partial(decorated, scene, method)
    if owner == "WorkflowContext":
        return partial(asked, WorkflowContext(await scene.claimed(), scene.app), method)
    if owner == "App":
        by_itself = method.endswith("_sync") or method == "callback_worker"
        return getattr(scene.script if by_itself else scene.app, method)
    if owner == "TaskHandle":
        task_id = await scene.queued() if method.startswith(("cancel", "signal")) else scene.ended
        return getattr(TaskHandle(scene.script if method.endswith("_sync") else scene.app, task_id), method)
    raise AssertionError(f"say in `bound` of {__file__} on which object {name} is called")


def scheduled(scene: Scene, **options: Any) -> None:
    handler = scene.app.task(kind=f"kind {uuid4()}")(nothing)
    scene.app.schedule(**{**options, "name": f"{uuid4()}" if options["name"] == "ada" else options["name"]})(handler)


def decorated(scene: Scene, method: str, function: Any, **options: Any) -> None:
    usual = flow if method == "workflow" else nothing
    getattr(scene.app, method)(**options)(usual if function is None else function)


async def asked(context: WorkflowContext, method: str, **arguments: Any) -> None:
    """What a workflow asks for is given by position. That it has to wait is no refusal."""
    first = [arguments.pop(name) for name in ("step", "handler") if name in arguments]
    try:
        answer = getattr(context, method)(*first, **arguments)
        if inspect.isawaitable(answer):
            await answer
    except WorkflowExit:
        return


# ------------------------------------------------------------------------------------------------- the tests


def test_every_exported_name_is_covered() -> None:
    for name, value in exported().items():
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            assert name in HANDED_TO or name in WITHOUT_INPUT, (
                f"{name} is new: say in HANDED_TO of {__file__} how one is handed over, or in WITHOUT_INPUT why not"
            )
    for name, parameter in CASES:
        assert f"{name}.{parameter}" in GOOD or parameter in GOOD, (
            f"no good value is known for {name}({parameter}=…): add one to GOOD in {__file__}"
        )
    assert set(HANDED_TO) | set(WITHOUT_INPUT) <= set(exported()), "what is gone can go from here too"


@only_direct
@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
async def test_a_bad_argument_is_refused_and_writes_nothing(
    scene: Scene, other_connection: asyncpg.Connection, name: str
) -> None:
    hints, problems = parameters(FUNCTIONS[name]), []

    async def prepare(parameter: str, value: object) -> Call:
        arguments = {other: await good(scene, name, other) for other in hints}
        return partial(await bound(scene, name), **{**arguments, parameter: value})

    for parameter, hint in hints.items():
        for label, value in bad_values(parameter).items():
            what, must_refuse = f"{name}({parameter}={label})", not fits(hint, value)
            calling = partial(prepare, parameter, value)
            problems.append(await problem_of(scene, other_connection, what, must_refuse, calling))
    assert [problem for problem in problems if problem] == []


@only_direct
@pytest.mark.parametrize("name", HANDED_TO)
async def test_a_bad_field_is_refused_when_it_is_handed_over(
    scene: Scene, other_connection: asyncpg.Connection, name: str
) -> None:
    hints, problems = typing.get_type_hints(exported()[name], localns=vars(callback_worker)), []
    for field in (field for owner, field in FIELDS if owner == name):
        for label, value in bad_values(field).items():
            what, must_refuse = f"{name}({field}={label})", not fits(hints[field], value)
            calling = partial(HANDED_TO[name], scene, {field: value})
            problems.append(await problem_of(scene, other_connection, what, must_refuse, calling))
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize("name", [name for name, value in exported().items() if is_error(value)])
def test_an_error_can_be_made_of_anything(name: str) -> None:
    error = exported()[name]
    for value in BAD.values():
        made = error(value, anything=value)
        assert isinstance(made, WindlassError)
        assert isinstance(made.code, str)
        repr(made)
