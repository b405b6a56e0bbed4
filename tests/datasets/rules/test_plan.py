"""Plans: what each edit of the example changes, what it owes, and which readers it breaks."""

from __future__ import annotations

import time
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.datasets.files import CHAIN, FACTS, dag_of, file, reactive, report, source

from windlass.datasets.rules.dag import Dag, OnUpgrade, Output
from windlass.datasets.rules.fact import Facts, KnownQueue, OtherInput, OtherJob
from windlass.datasets.rules.fingerprint import fingerprints, pointers
from windlass.datasets.rules.plan import Count, Definition, Owed, Plan, Read, Stored, column_changes, counts, plan
from windlass.datasets.rules.schema import Column, ColumnType, DatasetSchema

ACTIVE, NEXT = UUID(int=4), UUID(int=5)
CHAIN_DAG = dag_of(CHAIN)
COLD = CHAIN_DAG.dataset_uuid("default", Output("compact", 0))
LOG = CHAIN_DAG.dataset_uuid("default", Output("alerts", 0))


def definition(text: str, version: UUID = ACTIVE, **rebuild: str) -> Definition:
    dag = dag_of(text)
    return Definition(dag, fingerprints(dag, rebuild=rebuild, deployment_id=version), version)


OLD = definition(CHAIN)
POINTERS = pointers(OLD.dag, "default", OLD.fingerprints)
STORED = Stored(frozenset(POINTERS.values()), {POINTERS[COLD]: 31, POINTERS[LOG]: 7}, {"compact": Owed(1204)})


def edited(old: str, new: str, facts: Facts = FACTS) -> Plan:
    """The plan for this edit of the example."""
    assert CHAIN.count(old) == 1, (CHAIN.count(old), old)
    return plan(OLD, definition(CHAIN.replace(old, new), NEXT), facts, STORED)


def in_json(value: object) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


def changes(made: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The jobs that change, with what, and their fields."""
    return {job.job: (job.change, job.fields) for job in made.jobs if job.change != "unchanged"}


# --------------------------------------------------------------------------------------------- jobs


def test_the_same_file_changes_nothing() -> None:
    made = plan(OLD, definition(CHAIN, NEXT), FACTS, STORED)

    assert made.noop
    assert changes(made) == {}
    assert {each.change for each in made.datasets} == {"unchanged"}
    assert {output.data for job in made.jobs for output in job.outputs} == {"reused", "none"}
    assert (made.consumers, made.from_version) == ((), ACTIVE)


def test_a_first_file_adds_everything() -> None:
    made = plan(None, OLD, FACTS, Stored())

    assert not made.noop
    assert made.from_version is None
    assert {job.change for job in made.jobs} == {"added"}
    assert {each.change for each in made.datasets} == {"made"}
    assert [job.job for job in made.jobs] == [job.name for job in OLD.dag.jobs]
    assert {output.data for job in made.jobs for output in job.outputs if output.dataset} == {"built"}


BELOW = {"ranges": ("affected", ()), "compact": ("affected", ()), "alerts": ("affected", ())}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "size: 1000, start: 0}\n    inputs",
            "size: 500, start: 0}\n    inputs",
            {"compact": ("changed", ("partitions.size",))},
        ),
        ("{chain_id: 10143}", "{chain_id: 1}", {"follow": ("changed", ("config.chain_id",)), **BELOW}),
        ("{chain_id: 10143}", "{chain_id: 10143, deep: {x: [1]}}", {"follow": ("changed", ("config.deep",)), **BELOW}),
        ("{chain_id: 10143}", "{chain_id: 10143.0}", {"follow": ("changed", ("config.chain_id",)), **BELOW}),
        ("operator: pager", "operator: other", {"page": ("changed", ("operator",))}),
        ("severity = 'critical'", "severity = 'high'", {"page": ("changed", ("inputs[0].where",))}),
        ("trigger: false}]", "trigger: false}, {from: {job: tick}}]", {"compact": ("changed", ("inputs",))}),
        ("max_concurrency: 20", "max_concurrency: 21", {"compact": ("settings", ("scaling.max_concurrency",))}),
        ("timeout_seconds: 60\n", "timeout_seconds: 61\n", {"alerts": ("settings", ("timeout_seconds",))}),
        ("secrets: [RPC_KEY]", "secrets: [OTHER_KEY]", {"follow": ("settings", ("secrets[0]",))}),
        ('"*/5 * * * *"', '"*/6 * * * *"', {"tick": ("settings", ("source.schedule",))}),
        (
            "operator: parquet_compact",
            "operator: parquet_compact\n    queue: big",
            {"compact": ("settings", ("queue",))},
        ),
        ("operator: pager", "operator: pager\n    idle_timeout: 5m", {"page": ("settings", ("idle_timeout",))}),
        ("operator: pager", "operator: pager\n    max_queue_age: 6m", {"page": ("settings", ("max_queue_age",))}),
        ("cold_blocks:", "old_blocks:", {}),
        (
            "storage: postgres, write_mode: direct}",
            "storage: s3}",
            {"follow": ("changed", ("publish.hot_blocks.storage", "publish.hot_blocks.write_mode")), **BELOW},
        ),
        (
            "severity, type: text}",
            "severity, type: jsonb}",
            {"alerts": ("changed", ("publish.alert_events.schema.columns[2].type",)), "page": ("affected", ())},
        ),
    ],
)
def test_a_plan_names_what_changes_about_each_job(old: str, new: str, expected: dict[str, object]) -> None:
    made = edited(old, new)

    assert changes(made) == expected
    assert not made.noop


def test_a_default_is_a_setting_of_every_job_that_has_it() -> None:
    assert changes(edited("max_attempts: 3", "max_attempts: 4")) == dict.fromkeys(
        OLD.dag.job, ("settings", ("max_attempts",))
    )


def test_jobs_that_go_come_last_and_have_no_outputs() -> None:
    text = file(source("a"), source("b"))
    made = plan(definition(text), definition(file(source("c"), source("a")), NEXT), FACTS, Stored())

    assert [(job.job, job.change) for job in made.jobs] == [("c", "added"), ("a", "unchanged"), ("b", "removed")]
    assert made.jobs[-1].outputs == ()


def test_a_plan_says_whether_a_job_rebuilds_or_goes_forward() -> None:
    made = edited("operator: pager", "operator: other")

    assert {job.job: job.on_change for job in made.jobs} == {
        "tick": "rebuild", "follow": "rebuild", "ranges": "rebuild", "compact": "rebuild", "alerts": "forward",
        "page": "forward",
    }  # fmt: skip


def test_a_rebuild_changes_a_job_without_the_file() -> None:
    made = plan(OLD, definition(CHAIN, NEXT, ranges="1"), FACTS, STORED)

    assert changes(made) == {"ranges": ("changed", ("rebuild",)), "compact": ("affected", ())}


def test_a_job_that_resets_its_outputs_changes_with_every_deployment() -> None:
    text = CHAIN.replace("reset_outputs: false", "reset_outputs: true")
    made = plan(definition(text), definition(text, NEXT), FACTS, STORED)

    assert changes(made)["follow"] == ("changed", ("bootstrap.reset_outputs",))


# --------------------------------------------------------------------------------------------- versions and work


def test_a_version_that_exists_is_reused() -> None:
    text = CHAIN.replace("size: 1000, start: 0}\n    inputs", "size: 500, start: 0}\n    inputs")
    new = definition(text, NEXT)
    known = pointers(new.dag, "default", new.fingerprints)
    [built] = next(job.outputs for job in plan(OLD, new, FACTS, STORED).jobs if job.job == "compact")
    [reused] = next(
        job.outputs for job in plan(OLD, new, FACTS, Stored(frozenset(known.values()))).jobs if job.job == "compact"
    )

    assert (built.data, reused.data) == ("built", "reused")
    assert built.dataset_version == reused.dataset_version == known[COLD] != POINTERS[COLD]
    assert (built.dataset, built.dataset_uuid, built.output_index) == ("cold_blocks", COLD, 0)


def test_work_is_that_of_consumers_that_are_new() -> None:
    made = edited("size: 1000, start: 0}\n    inputs", "size: 500, start: 0}\n    inputs")

    assert {job.job: job.owed for job in made.jobs if job.owed != Owed()} == {"compact": Owed(1204)}
    unchanged = plan(OLD, definition(CHAIN, NEXT), FACTS, STORED)
    assert {job.owed for job in unchanged.jobs} == {Owed()}


def test_a_caller_counts_for_new_consumers_what_their_inputs_have() -> None:
    new = definition(CHAIN.replace("range_size: 1000", "range_size: 500"), NEXT)
    after = pointers(new.dag, "default", new.fingerprints)
    follow, ranges = (new.dag.dataset_uuid("default", Output(job, 0)) for job in ("follow", "ranges"))
    compact = new.dag.job["compact"]

    assert counts(OLD, new, FACTS, STORED.versions) == (
        Count("ranges", new.fingerprints.jobs["ranges"], new.dag.job["ranges"].execution_strategy, None,
              (Read(0, follow, after[follow], True, True),)),
        Count("compact", new.fingerprints.jobs["compact"], compact.execution_strategy, compact.partitions, (
            Read(0, ranges, POINTERS[ranges], False, True), Read(1, follow, after[follow], True, False))),
    )  # fmt: skip
    assert counts(OLD, OLD, FACTS, STORED.versions) == ()


def test_the_dataset_of_another_dag_is_counted_at_its_current_version() -> None:
    new = definition(file(reactive("a", "{from: {dataset: prices}}")))
    [counted] = counts(None, new, FACTS, frozenset())

    assert counted.reads == (Read(0, FACTS.datasets["prices"].dataset_uuid, None, True, True),)


# --------------------------------------------------------------------------------------------- datasets


def datasets(made: Plan) -> dict[str, tuple[str, str | None, tuple[str, ...]]]:
    return {each.name: (each.change, each.was, each.fields) for each in made.datasets if each.change != "unchanged"}


def test_a_dataset_is_renamed_retired_or_made() -> None:
    assert datasets(edited("cold_blocks:", "old_blocks:")) == {"old_blocks": ("renamed", "cold_blocks", ())}
    hot = "  hot_blocks: {from: {job: follow, output: 0}, storage: postgres, write_mode: direct}\n"
    assert datasets(edited(hot, "")) == {"hot_blocks": ("retired", None, ())}
    assert datasets(edited("publish:\n", "publish:\n  new: {from: {job: tick}, storage: s3}\n")) == {
        "new": ("made", None, ())
    }


def test_a_name_that_moves_to_another_output_is_a_new_dataset() -> None:
    made = edited("hot_blocks: {from: {job: follow, output: 0}", "hot_blocks: {from: {job: tick, output: 0}")

    assert datasets(made) == {"hot_blocks": ("made", None, ())}


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("read_roles: [analysts]", "read_roles: [a, b]", ("read_roles",)),
        ("max_age: 2h", "max_age: 3h", ("freshness.max_age",)),
        ("storage: s3, read", "storage: s3, description: Old., read", ("description",)),
    ],
)
def test_a_setting_of_a_dataset_is_a_change_that_builds_nothing(old: str, new: str, fields: tuple[str, ...]) -> None:
    made = edited(old, new)
    [cold] = [each for each in made.datasets if each.name == "cold_blocks"]

    assert (cold.change, cold.fields, made.noop, changes(made)) == ("unchanged", fields, False, {})


def test_a_schema_that_changes_names_its_columns() -> None:
    made = edited("{name: severity, type: text}", "{name: level, type: text}")
    [log] = [each for each in made.datasets if each.change == "schema"]

    assert log.name == "alert_events"
    assert in_json(log.columns) == {"added": ["level"], "removed": ["severity"], "changed": []}


TEXT, NUMBER = Column("a", ColumnType.TEXT), Column("a", ColumnType.BIGINT, nullable=False)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((TEXT,), (TEXT,), None),
        (
            (TEXT,),
            (NUMBER,),
            {"added": [], "removed": [], "changed": [{"name": "a", "from": "text", "to": "bigint not null"}]},
        ),
        ((), (TEXT,), {"added": ["a"], "removed": [], "changed": []}),
        ((TEXT,), (), {"added": [], "removed": ["a"], "changed": []}),
    ],
)
def test_changes_of_columns(before: tuple[Column, ...], after: tuple[Column, ...], expected: object) -> None:
    assert in_json(column_changes(DatasetSchema(before), DatasetSchema(after))) == expected
    if not before:
        assert column_changes(None, DatasetSchema(after)) == column_changes(DatasetSchema(()), DatasetSchema(after))


# --------------------------------------------------------------------------------------------- readers elsewhere


def read_by(dataset_uuid: UUID, where: str | None = None, on_upgrade: OnUpgrade = OnUpgrade.REPROCESS) -> Facts:
    reader = OtherJob("reports", "daily", (OtherInput(dataset_uuid, where, True, on_upgrade),))
    return msgspec.structs.replace(FACTS, jobs=(reader,))


@pytest.mark.parametrize(("on_upgrade", "owed"), [(OnUpgrade.REPROCESS, 31), (OnUpgrade.CONTINUE, 0)])
def test_a_reader_in_another_dag_is_named_with_what_it_owes(on_upgrade: OnUpgrade, owed: int) -> None:
    made = edited("operator: parquet_compact", "operator: other", read_by(COLD, None, on_upgrade))

    assert in_json(made.consumers) == [
        {"dag": "reports", "job": "daily", "dataset": "cold_blocks", "on_upgrade": on_upgrade, "owed": owed}
    ]


def test_a_reader_of_what_stays_is_not_named() -> None:
    assert edited("operator: pager", "operator: other", read_by(COLD)).consumers == ()


def test_a_reader_of_a_version_that_exists_owes_its_partitions() -> None:
    new = definition(CHAIN.replace("operator: parquet_compact", "operator: other"), NEXT)
    version = pointers(new.dag, "default", new.fingerprints)[COLD]
    [reader] = plan(OLD, new, read_by(COLD), Stored(frozenset({version}), {version: 3, POINTERS[COLD]: 31})).consumers

    assert reader.owed == 3


@pytest.mark.parametrize(
    ("old", "new", "uuid", "where", "breaks"),
    [
        (
            "{name: severity, type: text}",
            "{name: level, type: text}",
            LOG,
            "severity = 'x' AND seq > 1",
            [("where_unknown_column", "its where names severity, which alert_events no longer has")],
        ),
        ("{name: severity, type: text}", "{name: level, type: text}", LOG, "dedupe_key = 'x'", []),
        ("{name: severity, type: text}", "{name: level, type: text}", LOG, None, []),
        ("cold_blocks:", "old_blocks:", COLD, None, None),
        (
            "storage: s3, read_roles: [analysts]",
            "storage: s3, schema: {columns: [{name: a, type: text}]}, read_roles: [analysts]",
            COLD,
            "b = 1",
            [("where_unknown_column", "its where names b, which cold_blocks no longer has")],
        ),
        (
            "cold_blocks: {from: {job: compact, output: 0}",
            "cold_blocks: {from: {job: tick, output: 0}",
            COLD,
            None,
            [("unknown_dataset", "cold_blocks is now the output of another job: deploy the reader again")],
        ),
    ],
)
def test_a_plan_says_which_readers_it_breaks(
    old: str, new: str, uuid: UUID, where: str | None, breaks: list[tuple[str, str]] | None
) -> None:
    text = (
        CHAIN
        if breaks is None or "severity" not in old
        else CHAIN.replace("where: \"severity = 'critical'\"", "trigger: true")
    )
    made = plan(definition(text), definition(text.replace(old, new), NEXT), read_by(uuid, where), STORED)

    found = [[(each.code, each.message) for each in consumer.breaks] for consumer in made.consumers]
    assert found == ([] if breaks is None else [breaks])


def test_a_dataset_that_goes_breaks_its_readers() -> None:
    line = next(line for line in CHAIN.splitlines(keepends=True) if "cold_blocks" in line)
    [reader] = edited(line, "", read_by(COLD)).consumers

    assert [(each.code, each.message) for each in reader.breaks] == [
        ("unknown_dataset", "cold_blocks is no longer published")
    ]


# --------------------------------------------------------------------------------------------- queues, form, hash


@pytest.mark.parametrize(
    ("queues", "made"),
    [({}, ("platform", "udf")), ({"udf": KnownQueue("wakeup", trusted=False)}, ("platform",)), (FACTS.queues, ())],
)  # fmt: skip
def test_missing_queues_of_wrappers_are_made(queues: dict[str, KnownQueue], made: tuple[str, ...]) -> None:
    found = plan(OLD, definition(CHAIN, NEXT), Facts("default", queues=queues), STORED)

    assert (found.queues, found.noop) == (made, not made)


def test_the_json_of_a_plan() -> None:
    text = file(reactive("b", "{from: {dataset: prices}}"), publish="  x: {from: {job: b}, storage: s3}\n")
    made = plan(None, definition(text), FACTS, Stored(owed={"b": Owed(2, True)}), report(text).warnings)
    found = msgspec.json.decode(msgspec.json.encode(made))
    [job], [output] = found["jobs"], found["jobs"][0]["outputs"]

    assert list(found) == [
        "dag", "plan_hash", "from_version", "noop", "jobs", "datasets", "consumers", "queues", "warnings",
    ]  # fmt: skip
    assert job | {"outputs": 0} == {
        "job": "b", "change": "added", "fields": [], "on_change": "rebuild", "outputs": 0,
        "owed": {"partitions": 2, "cursor": True},
    }  # fmt: skip
    assert output.keys() == {"output_index", "dataset", "dataset_uuid", "dataset_version", "data"}
    assert found["datasets"] == [{"name": "x", "change": "made"}]
    assert [each["code"] for each in found["warnings"]] == ["no_consumer"]
    assert msgspec.convert(found, Plan) == made


def test_the_hash_is_bound_to_the_active_deployment_and_to_every_change() -> None:
    one = edited("operator: pager", "operator: other")
    moved = msgspec.structs.replace(OLD, version=UUID(int=9))
    new = definition(CHAIN.replace("operator: pager", "operator: other"), NEXT)

    assert plan(OLD, new, FACTS, STORED).plan_hash == one.plan_hash
    assert len(one.plan_hash) == 64
    others = {
        plan(moved, new, FACTS, STORED).plan_hash,
        plan(OLD, new, FACTS, Stored()).plan_hash,
        edited("operator: pager", "operator: third").plan_hash,
        edited("max_attempts: 3", "max_attempts: 4").plan_hash,
        edited("operator: alert_evaluate", "operator: other").plan_hash,
        edited("operator: pager", "operator: other", Facts("default")).plan_hash,
    }
    assert one.plan_hash not in others
    assert (
        edited("max_attempts: 3", "max_attempts: 4").plan_hash != edited("max_attempts: 3", "max_attempts: 5").plan_hash
    )


def test_data_that_arrives_does_not_make_a_plan_stale() -> None:
    new = definition(CHAIN.replace("operator: parquet_compact", "operator: other"), NEXT)
    more = msgspec.structs.replace(STORED, owed={"compact": Owed(1205)}, partitions={POINTERS[COLD]: 32})
    before, after = (plan(OLD, new, read_by(COLD), stored) for stored in (STORED, more))

    assert before != after
    assert before.plan_hash == after.plan_hash


@settings(deadline=None)
@given(st.permutations(range(6)))
def test_the_order_of_jobs_does_not_make_work(order: list[int]) -> None:
    dag = Dag(CHAIN_DAG.name, tuple(CHAIN_DAG.jobs[index] for index in order), CHAIN_DAG.publish)

    assert plan(OLD, Definition(dag, fingerprints(dag), NEXT), FACTS, STORED).noop


def test_five_hundred_jobs_are_planned_within_a_second() -> None:
    jobs = [reactive(f"j{n}", f"{{from: {{job: j{n - 1}}}}}", more=", config: {x: 1}") for n in range(1, 500)]
    publish = "".join(f"  d{n}: {{from: {{job: j{n}}}, storage: s3}}\n" for n in range(500))
    old, new = (definition(file(source("j0", more=f", config: {{v: {v}}}"), *jobs, publish=publish)) for v in (1, 2))
    started = time.process_time()
    made = plan(old, new, FACTS, Stored())

    assert time.process_time() - started < 1  # 0.1 s on a quiet machine
    assert [job.change for job in made.jobs] == ["changed"] + ["affected"] * 499
