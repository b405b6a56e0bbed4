"""YAML of DAG files: what is refused and where, and files that are made to harm."""

from __future__ import annotations

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import CHAIN, dag_of, file, marked, reactive, report, source

from windlass.datasets.read_yaml import BYTES_MAX, DEPTH_MAX, read
from windlass.datasets.rules.dag import Input, Limits, Partitioning, PartitionKind, Source, SourceKind
from windlass.datasets.rules.problem import PROBLEMS_MAX, Code


def found(text: str | bytes) -> list[tuple[int, int, str, str]]:
    return [(each.line, each.column, each.path, each.code) for each in read(text).problems]


REFUSED = [
    ("name: d\njobs: [¦", "", Code.YAML_SYNTAX),
    ("name: d\njobs:\n¦\t- x\n", "", Code.YAML_SYNTAX),
    ("¦", "", Code.YAML_SYNTAX),
    ("¦# nothing\n", "", Code.YAML_SYNTAX),
    ("name: d\n¦---\nname: e\n", "", Code.YAML_SYNTAX),
    ("name: ¦!!str d\n", "name", Code.YAML_SYNTAX),
    ("defaults: ¦!python/object:os.system {}\n", "defaults", Code.YAML_SYNTAX),
    ("name: ¦&a d\n", "name", Code.YAML_ALIAS),
    ("jobs: ¦&a [x]\n", "jobs", Code.YAML_ALIAS),
    ("jobs: [¦*a]\n", "jobs[0]", Code.YAML_ALIAS),
    ("defaults: {¦<<: {max_attempts: 1}}\n", "defaults[\"<<\"]", Code.YAML_ALIAS),
    ("name: d\n¦name: e\n", "name", Code.DUPLICATE_KEY),
    ("jobs:\n  - name: a\n    config: {x: {y: 1, ¦y: 2}}\n", "jobs[0].config.x.y", Code.DUPLICATE_KEY),
    ("? ¦[a, b]\n: c\n", "", Code.WRONG_TYPE),
    ('name: ¦"a\\0b"\n', "name", Code.BAD_VALUE),
    ("name: a¦\x00b\n", "", Code.YAML_SYNTAX),
    ("name: é¦\x1bb\n", "", Code.YAML_SYNTAX),
    ("¦- a\n", "", Code.WRONG_TYPE),
    ("¦text\n", "", Code.WRONG_TYPE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "code"), REFUSED, ids=[code for _, _, code in REFUSED])
def test_yaml_that_is_refused_is_named_with_its_place(text: str, path: str, code: Code) -> None:
    text, line, column = marked(text)

    assert (line, column, path, code) in found(text)


def test_bytes_that_are_not_utf_8_are_named_with_their_place() -> None:
    assert found("name: d\n# é".encode() + b"\xff\n") == [(2, 4, "", Code.YAML_SYNTAX)]


def test_a_byte_order_mark_moves_no_place() -> None:
    assert found("\ufeffname: 1d\n")[-1] == found("name: 1d\n")[-1] == (1, 7, "name", Code.BAD_NAME)


def test_a_byte_order_mark_moves_no_character() -> None:
    text, line, column = marked(file(source("a"), reactive("b", "{from: {job: a}, where: 'a = ''x'' ¦;'}")))

    assert found(f"\ufeff{text}") == [(line, column, "jobs[1].inputs[0].where", Code.WHERE_INVALID)]


def test_the_second_document_is_the_end() -> None:
    assert found("name: a\n---\nname: b\n---\nname: &c c\n") == [(2, 1, "", Code.YAML_SYNTAX)]


@pytest.mark.parametrize("size", [0, 1])
def test_a_file_has_a_megabyte_at_most(size: int) -> None:
    text = "name: d\n#" + "x" * (BYTES_MAX - 9 + size)

    assert (Code.TOO_LARGE in [code for *_, code in found(text)]) is bool(size)
    assert (Code.TOO_LARGE in [code for *_, code in found("é" * (BYTES_MAX // 2) + "x" * size)]) is bool(size)


@pytest.mark.parametrize("jobs", [2000, 2001])
def test_a_file_has_two_thousand_jobs_at_most(jobs: int) -> None:
    wrong = found(file(*(source(f"j{number}") for number in range(jobs))))

    assert wrong == ([] if jobs == 2000 else [(3, 3, "jobs", Code.TOO_LARGE)])


def test_all_problems_are_in_the_order_of_the_file() -> None:
    text = file(source("a", more=", config: {x: .nan}"), source("A"), reactive("b", "{from: {job: c}}"), name="D")
    problems = report(text + "publish: {x: {}, x: {}}\nnmae: &a d\n").problems

    assert [problem.code for problem in problems] == [
        "bad_name", "bad_value", "bad_name", "unknown_job", "missing_field", "missing_field", "duplicate_key",
        "unknown_field", "yaml_alias",
    ]  # fmt: skip
    assert [(each.line, each.column) for each in problems] == sorted((each.line, each.column) for each in problems)


def test_a_problem_without_a_hint_has_no_such_field() -> None:
    [problem] = read("name: 1d\njobs: [{}]\n").problems[:1]

    assert msgspec.to_builtins(problem).keys() == {"line", "column", "path", "code", "message"}


def test_the_example_as_it_is_read() -> None:
    dag = dag_of(CHAIN)
    tick, follow, _, compact, alerts, _ = dag.jobs

    assert tick.source == Source(SourceKind.CRON, "*/5 * * * *", "UTC")
    assert (follow.config, follow.secrets, follow.outputs) == ({"chain_id": 10143}, ("RPC_KEY",), 2)
    assert compact.partitions == Partitioning(PartitionKind.RANGE, size=1000, start=0)
    assert compact.inputs == (Input("ranges"), Input("follow", trigger=False))
    assert (compact.limits.max_concurrency, compact.limits.max_queue_age_s, compact.limits.max_attempts) == (20, 300, 3)
    assert (follow.limits.timeout_seconds, alerts.limits.timeout_seconds) == (600, 60)
    assert dag.publication["cold_blocks"].max_age_s == 7200
    assert dag.publication["cold_blocks"].read_roles == ("analysts",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("source: {kind: cron, schedule: '@daily'}", Source(SourceKind.CRON, "@daily", "UTC")),
        ("source: {kind: webhook, path: a/b}", Source(SourceKind.WEBHOOK, path="a/b")),
        ("partitions: {kind: range, size: 5}", Partitioning(PartitionKind.RANGE, size=5, start=0)),
        ("partitions: {kind: time, every: 1d}", Partitioning(PartitionKind.TIME, every="1d", timezone="UTC")),
        ("idle_timeout: never", Limits()),
        ("max_queue_age: 0", Limits(max_queue_age_s=0)),
        ("bootstrap: {reset_outputs: true}", True),
    ],
)
def test_a_field_that_is_left_out_has_its_default(fields: str, expected: object) -> None:
    text = file(
        source("a").replace("source: {kind: manual}", fields) if "source" in fields else source("a", more=f", {fields}")
    )
    [job] = dag_of(text).jobs

    assert expected in (job.source, job.partitions, job.limits, job.reset_outputs)


# --------------------------------------------------------------------------------------------- bombs


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 500_000,
        "a: " + "{b: " * 200_000,
        "".join(" " * n + "a:\n" for n in range(1400)),
        "- " * 400_000,
        "? " * 400_000,
        "a: " + "[" * 400 + "]" * 400,
    ],
    ids=["lists", "mappings", "blocks", "items", "keys", "closed"],
)  # fmt: skip
def test_deep_nesting_is_refused_before_it_costs_anything(text: str) -> None:
    started = time.process_time()

    assert Code.TOO_LARGE in {code for *_, code in found(text[:BYTES_MAX])}
    assert time.process_time() - started < 1


@pytest.mark.parametrize("depth", [DEPTH_MAX - 5, DEPTH_MAX + 1])
def test_config_may_be_as_deep_as_files_may(depth: int) -> None:
    text = file(source("a", more=", config: {x: " + "[" * depth + "]" * depth + "}"))

    assert [code for *_, code in found(text)] == ([] if depth < DEPTH_MAX else [Code.TOO_LARGE])


@pytest.mark.parametrize(
    "text",
    [
        "x:\n" * 300_000,
        "jobs:\n" + "- x\n" * 200_000,
        "jobs: [" + "{}," * 1999 + "{}]",
        "name: d\njobs:\n" + "".join(f"- {{name: a{n}, inputs: [{{from: {{job: b{n}}}}}]}}\n" for n in range(2000)),
        "name: d\njobs:\n" + "".join(f"- {{nmae: a{n}, oprator: x, rntime: y}}\n" for n in range(2000)),
        "a: &a [x]\nb: [" + "*a," * 300_000 + "]",
        "config: {" + "".join(f"k{n}: {n}, " for n in range(80_000)) + "}",
        "name: '" + "''" * 500_000 + "'",
        'name: "' + "\\x41" * 250_000 + '"',
        "name: " + "9" * 1_000_000,
    ],
    ids=["keys", "items", "jobs", "names", "fields", "aliases", "entries", "quotes", "escapes", "digits"],
)
def test_a_hostile_file_costs_seconds_and_its_answer_is_small(text: str) -> None:
    started = time.process_time()
    problems = report(text[:BYTES_MAX]).problems

    assert time.process_time() - started < 5
    assert 0 < len(problems) <= PROBLEMS_MAX + 1
    assert len(msgspec.json.encode(problems)) < 500_000


def test_two_thousand_jobs_take_about_a_second() -> None:
    wheres = [f"{{from: {{job: j{number}}}, where: 'a = 1 AND b IN (1, 2)'}}" for number in range(1999)]
    jobs = [reactive(f"j{number}", where, more=", config: {x: [1, 2.5]}") for number, where in enumerate(wheres, 1)]
    text = file(source("j0"), *jobs)
    started = time.process_time()

    assert report(text).problems == ()
    assert time.process_time() - started < 4  # 0.7 s on a quiet machine


# --------------------------------------------------------------------------------------------- any text


@given(st.text(max_size=200))
def test_any_text_has_an_answer(text: str) -> None:
    report(text)


@given(st.binary(max_size=200))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    assert read(data).problems


@given(st.data())
def test_a_broken_file_has_an_answer(data: st.DataObject) -> None:
    """Pieces of the example, cut and put together again."""
    cuts = data.draw(st.lists(st.integers(0, len(CHAIN)), min_size=2, max_size=6))
    text = "".join(CHAIN[min(pair) : max(pair)] for pair in pairwise(cuts))
    problems = report(text + data.draw(st.sampled_from(["", "]", "}", '"', "\n", " &a", "\n- x"]))).problems

    assert all(problem.line >= 1 and problem.column >= 1 for problem in problems)
