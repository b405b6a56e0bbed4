"""A namespace with something of each kind, and requests that name it, made from the types of whoever reads them.

Nothing here knows a route: a request is made from the names of its fields. A new field that has no value here fails
with its name, so that whoever adds it says what it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import msgspec
from msgspec import inspect as types
from tests.kit.datasets import settle

from windlass import Engine
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.registry.commands import StepBegin
from windlass.contracts.registry.rules import AttemptState, RunCredential, StepAttempt
from windlass.contracts.registry.server.work import run_command
from windlass.core.access import Principal, Role
from windlass.core.queue import QueueConfig
from windlass.core.schedule import ScheduleSpec
from windlass.core.states import Effect, Instant
from windlass.core.submission import Submission
from windlass.core.worker import Registration
from windlass.datasets.backfills import Backfills
from windlass.datasets.dags import Dags
from windlass.datasets.rules.backfill import Selection
from windlass.datasets.sources import Sources

VICTIM, ELSEWHERE = "victim", "elsewhere"
SECRET = "SECRET-of-the-victim"
PAYLOAD = msgspec.json.encode(SECRET)
ROLES = list(Role)
DAG = """\
name: flow
jobs:
  - {name: read, activation: source, runtime: ecs_platform, operator: o, outputs: 0, source: {kind: manual}}
  - {name: hear, activation: source, runtime: ecs_platform, operator: o, outputs: 0, source: {kind: webhook, path: a/b}}
  - {name: write, activation: source, runtime: ecs_platform, operator: o, outputs: 1, update_strategy: replace,
     source: {kind: manual}}
  - {name: fill, activation: reactive, runtime: ecs_platform, operator: o, outputs: 0, execution_strategy: PerPartition,
     inputs: [{from: {job: write}}]}
publish:
  facts: {from: {job: write}, storage: postgres, write_mode: direct, read_roles: ["*"]}
"""


class Unbuildable(AssertionError):
    """The matrix cannot make a request."""


@dataclass
class Victim:
    """The ids of what is in the namespace of the victim, by the names of fields, and values for all other fields."""

    engine: Engine
    ids: dict[str, UUID]
    values: dict[str, Any]
    keys: dict[tuple[str, Role], str]
    token: UUID  # of the attempt that runs
    own: str = ELSEWHERE  # the namespace of whoever calls

    async def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything of the victim's, in all tables."""
        found = {}
        async with self.engine.store.begin() as tx:
            fetch = tx.session.connection.fetch
            columns = await fetch(
                "select table_name, array_agg(column_name::text) "
                "from information_schema.columns join information_schema.tables using (table_schema, table_name) "
                "where table_schema = 'windlass' and table_type = 'BASE TABLE' group by 1 order by 1"
            )
            for table, names in columns:
                if "namespace" in names:
                    where = f"namespace = '{VICTIM}'"
                elif "task_id" in names:
                    where = f"task_id in (select id from windlass.task where namespace = '{VICTIM}')"
                else:
                    continue
                rows = await fetch(f"select t::text from windlass.{table} t where {where}")
                found[table] = sorted(tuple(row) for row in rows)
        return found


async def populated(engine: Engine) -> Victim:
    """A victim that has one of everything, and keys of each role, there and elsewhere."""
    keys = {
        (namespace, role): (await engine.keys.create_key(name=f"a {role}", role=role, namespace=namespace))[1]
        for namespace in (VICTIM, ELSEWHERE)
        for role in ROLES
    }
    key, _ = await engine.keys.create_key(name=SECRET, role=Role.VIEWER, namespace=VICTIM)

    def job(**fields: Any) -> Submission:
        return Submission(**{"kind": "job", "queue": "q", "namespace": VICTIM, "payload": PAYLOAD, **fields})

    run_id = uuid4()
    await engine.submit(job(run_id=run_id))
    lease = await engine.open_lease("ada", ["q"], namespace=VICTIM)
    done, held = [(await engine.submit(job(queue="q")), await engine.claim(lease))[1][0] for _ in range(2)]
    await engine.complete(done, PAYLOAD)
    worker_id, _ = await engine.workers.register(
        Registration(namespace=VICTIM, queue="q", kinds=("job",), host=SECRET, pid=7)
    )
    schedule = await engine.schedules.create(
        ScheduleSpec(kind="job", queue="q", cron="0 0 0 1 1 *", payload=PAYLOAD), namespace=VICTIM
    )
    await engine.queues.put("letters", namespace=VICTIM, delivery=Wakeup(), limits=QueueConfig())
    await engine.service(Wakeups).dead_letter(
        VICTIM, "letters", message_id="1", task_id=held.task.id, body=PAYLOAD, deliveries=1, reason=SECRET
    )
    effect = Effect(uuid4(), "nobody", VICTIM, held.task.id, held.task.attempt, {"what": SECRET})
    async with engine.store.begin() as tx:
        await tx.outbox.insert_outbox([effect])
        [[message_id]] = await tx.session.connection.fetch(
            "insert into windlass.message (id, namespace, queue, body, visible_at, created_at) "
            "values (gen_random_uuid(), $1, 'letters', $2, now(), now()) returning id",
            VICTIM, PAYLOAD,
        )  # fmt: skip
        [[letter_id]] = await tx.session.connection.fetch("select id from windlass.dead_message")
    ids = {
        "task_id": held.task.id, "run_id": run_id, "worker_id": worker_id, "schedule": schedule.id,
        "schedule_id": schedule.id, "key_id": key.id, "effect_id": effect.id, "letter_id": letter_id,
        "parent_id": held.task.id, "replay_of": done.task.id, "child_id": done.task.id, "lease_id": lease.id,
        "message_id": message_id, "workflow_run_id": held.task.id, "ids": done.task.id, "task_ids": done.task.id,
        "after": done.task.id,
    }  # fmt: skip
    attempt = StepAttempt(uuid4(), held.task.id, "s", 1, 1, 0, 0, AttemptState.RUNNING, Instant.min)
    await run_command(engine, StepBegin(RunCredential(held.task.id), "s", 1, attempt))
    ids["step_attempt_id"] = attempt.id
    ids["version"] = ids["expect_active"] = await _deployed(engine)
    ids["dataset"], ids["dataset_version"] = await _committed(engine, held.task.id)
    backfill = await engine.service(Backfills).start(
        "flow", "fill", Selection(keys=("0-99",)), namespace=VICTIM, created_by=SECRET
    )
    ids["backfill_id"] = backfill.row.id
    values = {
        "partition_key": "0-99", "dag": "flow", "job": "read", "path": "a/b", "yaml": DAG,
        "secret": "whsec_" + "c2VjcmV0" * 4,
        "kind": "job", "queue": "q", "name": "n", "cron": "0 0 0 1 1 *", "role": "viewer", "worker_id": "w",
        "from_step": "s", "app": "app", "signal": "s", "category": "USER_CODE", "message": "m", "what": "complete",
        "status": "Completed", "body": "", "reason": "r", "level": "INFO", "batch_uri": "s3://b/x",
    }  # fmt: skip
    return Victim(engine, ids, values, keys, lease.id)


async def _deployed(engine: Engine) -> UUID:
    """An active version of a DAG, with tasks of its sources."""
    deployment, _ = await engine.service(Dags).deploy(
        "flow", f"{DAG}# {SECRET}\n", namespace=VICTIM, caller=Principal(SECRET, Role.ADMIN)
    )
    await settle(engine)
    await engine.service(Sources).emit("flow", "read", namespace=VICTIM, key=SECRET, payload=SECRET)
    return deployment.id


async def _committed(engine: Engine, task_id: UUID) -> tuple[UUID, UUID]:
    """A dataset with a partition of two revisions, and its current version."""
    async with engine.store.begin() as tx:
        fetch = tx.session.connection.fetch
        [[id_, version]] = await fetch(
            "select p.dataset_uuid, p.dataset_version from windlass.deployment_pointer p "
            "join windlass.dataset s on s.id = p.dataset_uuid and s.namespace = $1 and s.name = 'facts'",
            VICTIM,
        )  # fmt: skip
        await fetch("insert into windlass.partition values ($1, '0-99', 0, 99, 2, now())", version)
        await fetch(
            "insert into windlass.partition_revision (dataset_version, key, revision, task_id, attempt, location, "
            "committed_at) select $1, '0-99', n, $2, n, $3, now() from generate_series(1, 2) n",
            version, task_id, SECRET,
        )  # fmt: skip
        await fetch(
            "insert into windlass.event values (gen_random_uuid(), $1, $2, 1, $3, $4, null, '0-99', 0, 99, true, $5, "
            "now(), 2, null, 'routed', now())",
            VICTIM, task_id, id_, version, SECRET,
        )  # fmt: skip
    return id_, version


def requests(world: Victim, kind: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    """What a struct of this type may hold: only what it must, in the namespace of the caller; then that and one of the
    fields that may name something of the victim. With each, whether it names any."""
    info = types.type_info(kind)
    if isinstance(info, types.BytesType):
        yield example(world, info, "body"), False
        return
    if isinstance(info, types.UnionType):
        info = next(one for one in info.types if isinstance(one, types.StructType))
    assert isinstance(info, types.StructType), info
    least = _struct(world, info)
    named = any(_names(world, field) for field in info.fields if field.required)
    yield least, named
    for field in info.fields:
        if not field.required and _names(world, field):
            yield {**least, field.encode_name: example(world, field.type, field.name)}, True
        if isinstance(field.type, types.ListType) and isinstance(field.type.item_type, types.StructType):
            for one, names in requests(world, field.type.item_type.cls):
                if names:
                    yield {**least, field.encode_name: [one]}, True


def _names(world: Victim, field: types.Field) -> bool:
    if field.name == "namespace":
        return True
    return field.name in world.ids and str(world.ids[field.name]) in str(example(world, field.type, field.name))


def _struct(world: Victim, info: types.StructType) -> dict[str, Any]:
    made = {f.encode_name: example(world, f.type, f.name) for f in info.fields if f.required}
    if any(field.name == "namespace" and not field.required for field in info.fields):
        made["namespace"] = world.own
    return made if info.tag_field is None else {info.tag_field: info.tag, **made}


def example(world: Victim, info: types.Type, name: str) -> Any:
    """A value of this type for a field of this name."""
    match info:
        case types.Metadata():
            return example(world, info.type, name)
        case types.UnionType():
            return example(world, next(one for one in info.types if not isinstance(one, types.NoneType)), name)
        case types.StructType():
            return _struct(world, info)
        case types.ListType() | types.VarTupleType():
            return [example(world, info.item_type, name)]
        case types.DictType():
            return {}
        case types.UUIDType():
            return str(_known(world, world.ids, name))
        case types.StrType():
            found = VICTIM if name == "namespace" else world.ids.get(name) or _known(world, world.values, name)
            return str(found)
        case types.IntType():
            return 1
        case types.FloatType():
            return 1.0
        case types.BoolType():
            return False
        case types.BytesType():
            return b'"of the caller"'
        case types.DateTimeType():
            return "2030-01-01T00:00:00Z"
        case types.LiteralType() | types.EnumType():
            values = info.values if isinstance(info, types.LiteralType) else [one.value for one in info.cls]
            return next(iter(values))
        case types.AnyType() | types.RawType():
            return "of the caller"
    raise Unbuildable(f"the matrix cannot make a {info} for the field {name!r}: teach `example` of {__name__}")


def _known(world: Victim, table: dict[str, Any], name: str) -> Any:
    if name not in table:
        raise Unbuildable(f"the matrix has no value for the field {name!r}: add one in `populated` of {__name__}")
    return table[name]
