"""Fingerprints: what changes them, and what does not."""

from __future__ import annotations

import re
from uuid import UUID

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import CHAIN, dag_of, file, reactive, source

from windlass.datasets.rules.canonical import canonical_json, digest
from windlass.datasets.rules.cycle import in_dependency_order
from windlass.datasets.rules.dag import Output, version_uuid
from windlass.datasets.rules.fingerprint import Fingerprints, fingerprints, nonces, pointers
from windlass.errors import Invalid

BEFORE = fingerprints(dag_of(CHAIN))


def changed(before: Fingerprints, after: Fingerprints) -> set[str]:
    return {name for name in before.jobs if before.jobs[name] != after.jobs.get(name)}


def edited(old: str, new: str, text: str = CHAIN) -> set[str]:
    """The jobs whose fingerprints change with this edit of the example."""
    assert text.count(old) == 1, (text.count(old), old)
    return changed(fingerprints(dag_of(text)), fingerprints(dag_of(text.replace(old, new))))


def test_the_fingerprints_of_a_file_never_change() -> None:
    """They are the ids of versions in databases: another value here rebuilds the data of every installation."""
    assert BEFORE.jobs["follow"] == "c011978657360a4ed3a344e5cb42f1481189a9d84d2eb7a0fd8896dcf762c8d7"
    assert BEFORE.jobs["compact"] == "db58efef2663482b5aa8400fcb8f0c1b6e6ac59deac77b2489d6df71c82683f5"
    assert BEFORE.jobs["page"] == "ce43f388eb001282f6460866c58065d19a48d8ecd1b8de6fd2e1e1012ac8ea4d"
    assert BEFORE.outputs[Output("alerts", 0)] == "e1362568918c385d118cdea8802b8fc56977775e9effb6f1baa34089ea6fd90f"


# --------------------------------------------------------------------------------------------- what is part

FOLLOW = {"follow", "ranges", "compact"}  # with all below it that rebuild; alerts and page go forward


@pytest.mark.parametrize(
    ("old", "new", "jobs"),
    [
        ("operator: block_follower", "operator: other", FOLLOW),
        ("operator: block_follower", "operator: block_follower\n    operator_version: '2'", FOLLOW),
        ("operator: parquet_compact", "operator: other", {"compact"}),
        ("runtime: ecs_platform\n    operator: parquet", "runtime: ecs_udf\n    operator: parquet", {"compact"}),
        ("{chain_id: 10143}", "{chain_id: 10144}", FOLLOW),
        ("{chain_id: 10143}", "{chain_id: 10143.0}", FOLLOW),
        ("{chain_id: 10143}", "{chain_id: '10143'}", FOLLOW),
        ("{chain_id: 10143}", "{chain_id: 10143, x: null}", FOLLOW),
        ("outputs: 2", "outputs: 3", FOLLOW),
        ("unique_key: [block_hash]", "unique_key: [block_hash, x]", FOLLOW),
        (
            "inputs: [{from: {job: follow, output: 0}}]\n    config",
            "inputs: [{from: {job: follow, output: 1}}]\n    config",
            {"ranges", "compact"},
        ),
        (
            "inputs: [{from: {job: follow, output: 0}}]\n    config",
            "inputs: [{from: {job: follow, output: 0}, where: a = 1}]\n    config",
            {"ranges", "compact"},
        ),
        ("{from: {job: follow, output: 0}, trigger: false}]", "{from: {job: follow, output: 0}}]", {"compact"}),
        (
            "inputs: [{from: {job: ranges, output: 0}}, {from: {job: follow, output: 0}, trigger: false}]",
            "inputs: [{from: {job: follow, output: 0}, trigger: false}, {from: {job: ranges, output: 0}}]",
            {"compact"},
        ),
        ("execution_strategy: PerPartition", "execution_strategy: PerUpdate", {"compact"}),
        ("execution_strategy: PerPartition", "execution_strategy: PerPartition\n    when: all", {"compact"}),
        (
            "range_size: 1000, start: 0}\n    outputs: 1\n    update_strategy: replace",
            "range_size: 1000, start: 0}\n    outputs: 1\n    update_strategy: append\n    unique_key: [a]",
            {"ranges", "compact"},
        ),
        ("size: 1000, start: 0}\n    inputs", "size: 500, start: 0}\n    inputs", {"compact"}),
        ("storage: postgres, write_mode: direct}", "storage: s3}", FOLLOW),
        ("storage: s3, read_roles", "storage: s3, schema: {columns: [{name: a, type: text}]}, read_roles", {"compact"}),
        (
            "nullable: false}, {name: severity, type: text}",
            "nullable: false}, {name: severity, type: jsonb}",
            {"alerts"},
        ),
        ("on_conflict: ignore", "on_conflict: update", {"alerts"}),
        ("indexes: [[org_id, event_time]]", "indexes: [[event_time]]", {"alerts"}),
        ("operator: alert_evaluate", "operator: alert_evaluate\n    on_change: rebuild", {"alerts"}),
    ],
)
def test_what_decides_the_data_is_part_and_goes_downstream(old: str, new: str, jobs: set[str]) -> None:
    assert edited(old, new) == jobs


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("name: follow\n", "name: follow  # a comment\n"),
        ("max_attempts: 3", "max_attempts: 5"),
        ("timeout_seconds: 600", "timeout_seconds: 601"),
        ("heartbeat_timeout_seconds: 60,", "heartbeat_timeout_seconds: 61,"),
        ("priority: normal", "priority: backfill"),
        ("max_queue_depth: 1000", "max_queue_depth: 5"),
        ("max_queue_age: 5m", "max_queue_age: never"),
        ("max_concurrency: 20", "max_concurrency: 21"),
        ("operator: parquet_compact", "operator: parquet_compact\n    queue: big"),
        ("operator: parquet_compact", "operator: parquet_compact\n    idle_timeout: 5m"),
        ("secrets: [RPC_KEY]", "secrets: [OTHER_KEY]"),
        ("\"*/5 * * * *\"", "\"*/6 * * * *\""),
        ("read_roles: [analysts]", "read_roles: [others]"),
        ("max_age: 2h", "max_age: 3h"),
        ("storage: s3, read_roles", "storage: s3, description: Old blocks., read_roles"),
        ("cold_blocks:", "old_blocks:"),
        ("operator: alert_evaluate", "operator: other"),
        ("operator: pager", "operator: other"),
        ("amount > 1000", "amount > 1"),
        ("severity = 'critical'", "severity = 'high'"),
        ("columns: [{name: org_id, type: uuid}, ", "columns: ["),
        ("unique: [org_id, dedupe_key]", "unique: [dedupe_key]"),
        ("{from: {job: ranges, output: 0}}", "{from: {job: ranges}}"),
        ("{from: {dataset: alert_events}", "{from: {job: alerts, output: 0}"),
        ("{from: {job: follow, output: 0}, trigger", "{from: {dataset: hot_blocks}, trigger"),
    ],
)  # fmt: skip
def test_what_does_not_decide_the_data_is_not_part(old: str, new: str) -> None:
    assert edited(old, new) == set()


def test_a_new_version_of_an_input_is_a_new_version_below() -> None:
    jobs = [source("a"), *(reactive(f"j{n}", f"{{from: {{job: {f'j{n - 1}' if n else 'a'}}}}}") for n in range(1500))]

    assert len(edited("name: a,", "name: a, operator_version: '2',", file(*jobs))) == 1501


# --------------------------------------------------------------------------------------------- order does not matter


def shuffled(value: object, draw: st.DrawFn) -> object:
    """The value with the keys of all mappings in another order. Lists have an order, but for jobs."""
    if isinstance(value, dict):
        keys = draw(st.permutations(sorted(value, key=str)))
        return {key: shuffled(value[key], draw) for key in keys}
    return [shuffled(item, draw) for item in value] if isinstance(value, list) else value


@st.composite
def same_file(draw: st.DrawFn) -> str:
    document = yaml.load(CHAIN, yaml.BaseLoader)  # all scalars as text, as the file has them
    document["jobs"] = draw(st.permutations(document["jobs"]))
    flow = draw(st.booleans())
    text = yaml.dump(shuffled(document, draw), default_flow_style=flow, sort_keys=False)
    return re.sub(r"'(-?\d+|true|false)'", r"\1", text)


@given(same_file())
def test_the_order_of_keys_and_jobs_and_the_style_do_not_matter(text: str) -> None:
    assert fingerprints(dag_of(text)).jobs == BEFORE.jobs


@given(
    st.dictionaries(
        st.text(max_size=3), st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3)
    )
)
def test_canonical_json_does_not_know_the_order_of_keys(value: dict[str, object]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@given(
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=3),
)
def test_different_values_have_different_digests(one: dict[str, int], other: dict[str, int]) -> None:
    assert (digest(one) == digest(other)) is (one == other)


def test_canonical_json_is_what_it_was() -> None:
    value = {"b": [1, 1.0, -0.0, 1e16, True, None], "a": "é\n", "ü": {}}

    assert canonical_json(value) == b'{"a":"\\u00e9\\n","b":[1,1.0,-0.0,1e+16,true,null],"\\u00fc":{}}'


def test_jobs_come_after_those_that_they_read() -> None:
    assert in_dependency_order({"c": ["b", "a"], "b": ["a", "a"], "a": [], "d": ["elsewhere"]}) == ["a", "d", "b", "c"]
    with pytest.raises(AssertionError, match="cycle"):
        in_dependency_order({"a": ["b"], "b": ["a"]})


# --------------------------------------------------------------------------------------------- forward and buffers

SCHEMA = "schema: {columns: [{name: key, type: text}], unique: [key]}"
LOG = f"  log: {{from: [{{job: a}}, {{job: b}}], storage: postgres, write_mode: buffered, {SCHEMA}}}\n"


def test_another_writer_does_not_empty_a_log() -> None:
    one = file(source("a"), source("b"), publish=LOG.replace("[{job: a}, {job: b}]", "{job: a}"))
    two = file(source("a"), source("b"), publish=LOG)

    assert fingerprints(dag_of(one)).outputs[Output("a", 0)] == fingerprints(dag_of(two)).outputs[Output("a", 0)]


def test_the_writers_of_a_log_have_one_version() -> None:
    made = fingerprints(dag_of(file(source("a"), source("b"), publish=LOG)))

    assert made.outputs[Output("a", 0)] == made.outputs[Output("b", 0)]


def test_the_order_of_writers_does_not_matter_to_a_reader() -> None:
    text = file(source("a"), source("b"), reactive("c", "{from: {dataset: log}}"), publish=LOG)

    assert edited("[{job: a}, {job: b}]", "[{job: b}, {job: a}]", text) == set()


def test_a_writer_that_rebuilds_makes_a_new_version_of_the_log() -> None:
    text = file(source("a", more=", on_change: rebuild"), source("b"), publish=LOG)
    before, after = (fingerprints(dag_of(each)) for each in (text, text.replace("operator: op", "operator: new", 1)))

    assert before.outputs[Output("b", 0)] != after.outputs[Output("b", 0)]
    assert changed(before, after) == {"a"}


def test_a_job_that_goes_forward_keeps_its_version_and_that_of_its_readers() -> None:
    text = file(source("a", more=", on_change: forward"), reactive("b", "{from: {job: a}}"))

    assert edited("name: a,", "name: a, config: {x: 1},", text) == set()
    assert edited("name: a,", "name: a, partitions: {kind: key},", text) == {"a", "b"}


def test_an_edit_of_a_job_that_goes_forward_is_seen_in_its_definition() -> None:
    before = fingerprints(dag_of(CHAIN))
    after = fingerprints(dag_of(CHAIN.replace("operator: pager", "operator: other")))

    assert {name for name in before.own if before.own[name] != after.own[name]} == {"page"}


# --------------------------------------------------------------------------------------------- by hand


def test_a_nonce_makes_a_new_version_of_a_job_and_of_all_below_it() -> None:
    dag = dag_of(CHAIN)

    assert changed(BEFORE, fingerprints(dag, rebuild={"ranges": "1"})) == {"ranges", "compact"}
    assert changed(BEFORE, fingerprints(dag, rebuild={"alerts": "1"})) == {"alerts"}
    assert fingerprints(dag, rebuild={"ranges": "1"}).jobs != fingerprints(dag, rebuild={"ranges": "2"}).jobs


def test_nonces_stay_until_their_job_goes() -> None:
    dag = dag_of(file(source("a"), source("b")))

    assert nonces(dag, {"a": "1", "gone": "1"}, ["b"], UUID(int=7)) == {"a": "1", "b": str(UUID(int=7))}
    assert nonces(dag, {"a": "1"}, ["a"], UUID(int=7)) == {"a": str(UUID(int=7))}
    with pytest.raises(Invalid, match="'c'"):
        nonces(dag, {}, ["c"], None)


def test_a_job_that_resets_its_outputs_has_a_version_for_each_deployment() -> None:
    dag = dag_of(CHAIN.replace("reset_outputs: false", "reset_outputs: true"))
    one, same, other = (fingerprints(dag, deployment_id=UUID(int=number)) for number in (1, 1, 2))

    assert one == same
    assert changed(one, other) == FOLLOW


def test_the_pointer_set_has_a_version_of_every_dataset() -> None:
    dag = dag_of(CHAIN)
    made = pointers(dag, "default", BEFORE)

    assert made.keys() == {dataset.dataset_uuid for dataset in dag.datasets("default")}
    hot = dag.dataset_uuid("default", Output("follow", 0))
    assert made[hot] == version_uuid(hot, BEFORE.jobs["follow"])
    log = dag.dataset_uuid("default", Output("alerts", 0))
    assert made[log] == version_uuid(log, BEFORE.outputs[Output("alerts", 0)])
