"""Runs the jobs whose operator is part of the server. A task is claimed, run and completed in one transaction, together
with its events: it needs no lease, and a server that dies in between has done nothing."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.delivery import PULL, type_of
from windlass.core.failure import Category, Failure
from windlass.core.states import Instant, Transition
from windlass.core.task import Task
from windlass.datasets.inputs import fix_window
from windlass.datasets.operators import OPERATORS
from windlass.datasets.operators.call import Call
from windlass.datasets.rules.events import EventReport, record_events
from windlass.datasets.rules.job import SERVER_QUEUE
from windlass.datasets.rules.writer import Writer
from windlass.datasets.tables.events import DatasetTable, load_context
from windlass.datasets.tables.jobs import JobTable
from windlass.engine.engine import Engine
from windlass.errors import Invalid
from windlass.store.transaction import Transaction

log = logging.getLogger("windlass.datasets")

BATCH = 100
CALLER = "server"  # reports the events


class Claimed(NamedTuple):
    """A task that is claimed and not completed yet."""

    move: Transition
    wire: bytes | None
    payload: bytes


class ServerJobs:
    """Runs the tasks of the queue SERVER_QUEUE, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness

    async def tick(self) -> int:
        """Run due tasks. Returns their number."""
        async with self._store.begin() as tx:
            due = await JobTable(tx.session).due_server_tasks(SERVER_QUEUE, BATCH)
            if not due:
                return 0
            now = await tx.now()
            token = self._randomness.new_token(type_of(PULL))
            for task, wire, payload in due:
                claimed = Claimed(rules.claim(task, token, CALLER, now), wire, payload)
                await tx.apply([claimed.move, await self._run(tx, claimed, token, now)])
        return len(due)

    async def _run(self, tx: Transaction, claimed: Claimed, token: UUID, now: Instant) -> Transition:
        task = claimed.move.after
        try:
            reports = await self._call(tx, task, claimed, now)
        except Invalid as error:
            failure = Failure(Category.CONFIGURATION, str(error), "OPERATOR_FAILED", retryable=False)
            return rules.fail(task, task.attempt, token, failure, now, 0.0)
        writer = Writer.of(task.attempt, claimed.wire, task.job_id)
        context = await load_context(tx.session, {task.id: writer}, [(task.id, report) for report in reports])
        try:
            recorded = record_events(task, tuple(reports), context, CALLER, now)
        except Invalid as error:
            failure = Failure(Category.DATA_QUALITY, str(error), error.code.upper(), retryable=False)
            return rules.fail(task, task.attempt, token, failure, now, 0.0)
        result = msgspec.json.encode({"events": len(reports)})
        done = rules.complete(task, task.attempt, token, result, now)
        return replace(done, writes=recorded.writes, effects=(*done.effects, *recorded.effects))

    async def _call(self, tx: Transaction, task: Task, claimed: Claimed, now: Instant) -> list[EventReport]:
        operator = OPERATORS.get(task.kind)
        if operator is None or task.job_id is None or claimed.wire is None:
            raise Invalid(f"{task.kind!r} does not run in the server: queue {SERVER_QUEUE} is for jobs of DAGs")
        fields: dict[str, Any] = msgspec.json.decode(claimed.wire)
        await fix_window(tx, task, fields)
        cursor_from = None
        if (window := fields.get("window")) is not None:
            version = UUID(window["dataset_version"])
            cursor_from = (await JobTable(tx.session).cursors(task.job_id, [version])).get(version)
        written = {UUID(output["dataset_version"]) for output in fields["outputs"]}
        locked = await DatasetTable(tx.session).lock_versions(written)
        config = msgspec.json.decode(claimed.payload)
        given = fields["trigger"], fields["inputs"], fields["outputs"]
        return operator(Call(config, *given, cursor_from, locked.high_waters, now))
