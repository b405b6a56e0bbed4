"""Every code of a DAG file: one file that has the problem, and the exact place where it is reported."""

from __future__ import annotations

import pytest
from tests.datasets.files import CHAIN, FACTS, PRICES, file, marked, reactive, report, source

from windlass.datasets.rules.dag import OnUpgrade
from windlass.datasets.rules.fact import Facts, KnownDataset, KnownQueue, OtherInput, OtherJob
from windlass.datasets.rules.problem import WARNINGS, Code

A = source("a")
B_READS_A = reactive("b", "{from: {job: a}}")
LOG = (
    "  log: {from: {job: a}, storage: postgres, write_mode: buffered, read_roles: ['*'],\n"
    "    schema: {columns: [{name: key, type: text}], unique: [key]SCHEMA}}\n"
)


def log(schema: str = "", **changes: str) -> str:
    text = LOG.replace("SCHEMA", schema)
    for old, new in changes.items():
        text = text.replace({"unique": ", unique: [key]", "columns": "{name: key, type: text}"}[old], new)
    return text


def job(fields: str) -> str:
    """A job that has these fields, and valid ones for the rest that is required."""
    rest = {
        "name": "a", "activation": "source", "runtime": "ecs_platform", "operator": "op", "outputs": "1",
        "update_strategy": "replace", "source": "{kind: manual}",
    }  # fmt: skip
    given = [field for field in fields.split(";") if field]
    named = {field.split(":")[0].strip("¦ ") for field in given}
    more = [f"{key}: {value}" for key, value in rest.items() if key not in named]
    return f"  - {{{', '.join([*more, *given])}}}\n"


def per_partition(name: str, *inputs: str, more: str = "") -> str:
    return reactive(name, *inputs, more=more).replace("PerUpdate", "PerPartition")


PROBLEMS: list[tuple[Code, str, str]] = [
    # fields and names
    (Code.UNKNOWN_FIELD, "nmae", file(A) + "¦nmae: x\n"),
    (Code.UNKNOWN_FIELD, "jobs[0].oprator", file(job("¦oprator: x"))),
    (Code.UNKNOWN_FIELD, "jobs[0].source.path", file(job("source: {kind: manual, ¦path: x}"))),
    (Code.UNKNOWN_FIELD, "jobs[1].inputs[0].from.job", file(A, reactive("b", "{from: {dataset: prices, ¦job: a}}"))),
    (Code.UNKNOWN_FIELD, "jobs[0].partitions.every", file(job("partitions: {kind: range, size: 1, ¦every: 1h}"))),
    (Code.MISSING_FIELD, "name", "¦jobs:\n" + A),
    (Code.MISSING_FIELD, "jobs", "¦name: d\n"),
    (Code.MISSING_FIELD, "jobs[0].operator", file(A.replace("operator: op, ", "").replace("- {", "- ¦{"))),
    (
        Code.MISSING_FIELD,
        "jobs[0].update_strategy",
        file(A.replace("update_strategy: replace, ", "").replace("{n", "¦{n")),
    ),
    (Code.MISSING_FIELD, "jobs[0].source.schedule", file(job("source: ¦{kind: cron}"))),
    (Code.MISSING_FIELD, "jobs[1].inputs[0].from", file(A, reactive("b", "¦{where: a = 1}"))),
    (Code.MISSING_FIELD, "publish.log.write_mode", file(A, publish="  log: ¦{from: {job: a}, storage: postgres}\n")),
    (Code.WRONG_TYPE, "jobs", "name: d\njobs: ¦x\n"),
    (Code.WRONG_TYPE, "jobs", "name: d\njobs:¦\n"),
    (Code.WRONG_TYPE, "jobs[1]", file(A, "  - ¦x\n")),
    (Code.WRONG_TYPE, "publish", file(A) + "publish: ¦[x]\n"),
    (Code.WRONG_TYPE, "jobs[0].outputs", file(A.replace("outputs: 1", "outputs: ¦'1'"))),
    (Code.WRONG_TYPE, "jobs[0].outputs", file(A.replace("outputs: 1", "outputs: ¦one"))),
    (Code.WRONG_TYPE, "jobs[0].config", file(job("config: ¦[1]"))),
    (Code.WRONG_TYPE, "jobs[0].bootstrap.reset_outputs", file(job("bootstrap: {reset_outputs: ¦yes}"))),
    (Code.BAD_NAME, "name", "name: ¦1d\njobs:\n" + A),
    (Code.BAD_NAME, "jobs[0].name", file(A.replace("name: a", "name: ¦A"))),
    (Code.BAD_NAME, "publish.hot-blocks", file(A, publish="  ¦hot-blocks: {from: {job: a}, storage: s3}\n")),
    (Code.BAD_NAME, "jobs[0].secrets[0]", file(job("secrets: [¦rpc_key]"))),
    (Code.BAD_NAME, "publish.log.schema.columns[0].name", file(A, publish=log(columns="{name: ¦1key, type: text}"))),
    (Code.BAD_VALUE, "jobs[0].outputs", file(A.replace("outputs: 1", "outputs: ¦65"))),
    (Code.BAD_VALUE, "jobs[0].operator", file(job("operator: ¦'a\n\n    b'"))),
    (Code.BAD_VALUE, "jobs[0].runtime", file(A.replace("ecs_platform", "¦ecs"))),
    (Code.BAD_VALUE, "jobs[0].timeout_seconds", file(job("timeout_seconds: ¦604801"))),
    (Code.BAD_VALUE, "jobs[0].heartbeat_timeout_seconds", file(job("heartbeat_timeout_seconds: ¦1"))),
    (Code.BAD_VALUE, "defaults.max_attempts", file(A) + "defaults: {max_attempts: ¦101}\n"),
    (Code.BAD_VALUE, "jobs[0].scaling.max_concurrency", file(job("scaling: {max_concurrency: ¦0}"))),
    (Code.BAD_VALUE, "jobs[0].max_queue_depth", file(job("max_queue_depth: ¦0"))),
    (Code.BAD_VALUE, "jobs[0].max_queue_age", file(job("max_queue_age: ¦5"))),
    (Code.BAD_VALUE, "jobs[0].idle_timeout", file(job("idle_timeout: ¦soon"))),
    (Code.BAD_VALUE, "jobs[0].backpressure_mode", file(job("backpressure_mode: ¦drop"))),
    (Code.BAD_VALUE, "jobs[0].source.path", file(job("source: {kind: webhook, path: ¦/x}"))),
    (Code.BAD_VALUE, "jobs[0].source.timezone", file(job("source: {kind: cron, schedule: '@daily', timezone: ¦Mars}"))),
    (Code.BAD_VALUE, "jobs[0].partitions.every", file(job("partitions: {kind: time, every: ¦2h}"))),
    (Code.BAD_VALUE, "jobs[0].partitions.start", file(job("partitions: {kind: time, every: 1d, start: ¦2026-02-30}"))),
    (Code.BAD_VALUE, "jobs[0].config.x[1]", file(job("config: {x: [1, ¦.inf]}"))),
    (Code.BAD_VALUE, "jobs[0].config.x", file(job("config: {x: ¦99999999999999999999}"))),
    (Code.BAD_VALUE, "jobs[0].unique_key[1]", file(job("unique_key: [x, ¦x]"))),
    (Code.BAD_VALUE, "jobs[0].operator", file(job("runtime: dispatcher;operator: ¦op"))),
    (Code.BAD_VALUE, "jobs[0].operator", file(job("runtime: dispatcher;operator: ¦cron_source"))),
    (Code.BAD_VALUE, "jobs[0].execution_strategy", file(job("¦execution_strategy: PerUpdate"))),
    (Code.BAD_VALUE, "jobs[1].when", file(A, reactive("b", "{from: {job: a}}", more=", ¦when: all"))),
    (Code.BAD_VALUE, "jobs[0].coalesce", file(job("¦coalesce: true"))),
    (Code.BAD_VALUE, "jobs[1].source", file(A, reactive("b", "{from: {job: a}}", more=", ¦source: {kind: manual}"))),
    (Code.BAD_VALUE, "jobs[1].inputs[0].on_upgrade", file(A, reactive("b", "{from: {job: a}, ¦on_upgrade: continue}"))),
    (
        Code.BAD_VALUE,
        "publish.x.write_mode",
        file(A, publish="  x: {from: {job: a}, storage: s3, ¦write_mode: direct}\n"),
    ),
    (
        Code.BAD_VALUE,
        "publish.x.freshness.max_age",
        file(A, publish="  x: {from: {job: a}, storage: s3, freshness: {max_age: ¦0}}\n"),
    ),
    # jobs and their inputs
    (Code.DUPLICATE_JOB, "jobs[1].name", file(A, A.replace("name: a", "name: ¦a"))),
    (Code.UNKNOWN_JOB, "jobs[1].inputs[0].from.job", file(A, reactive("b", "{from: {job: ¦aa}}"))),
    (Code.UNKNOWN_JOB, "publish.x.from.job", file(A, publish="  x: {from: {job: ¦b}, storage: s3}\n")),
    (
        Code.UNKNOWN_JOB,
        "publish.log.from[1].job",
        file(A, publish=log().replace("from: {job: a}", "from: [{job: a}, {job: ¦b}]")),
    ),
    (Code.UNKNOWN_OUTPUT, "jobs[1].inputs[0].from.output", file(A, reactive("b", "{from: {job: a, output: ¦1}}"))),
    (
        Code.UNKNOWN_OUTPUT,
        "jobs[1].inputs[0].from.output",
        file(source("a", outputs=0), reactive("b", "{from: ¦{job: a}}")),
    ),
    (Code.UNKNOWN_OUTPUT, "publish.x.from.output", file(A, publish="  x: {from: {job: a, output: ¦3}, storage: s3}\n")),
    (Code.UNKNOWN_DATASET, "jobs[0].inputs[0].from.dataset", file(reactive("b", "{from: {dataset: ¦price}}"))),
    (Code.UNKNOWN_DATASET, "jobs[0].inputs[0].from.dataset", file(reactive("b", "{from: {dataset: ¦hidden}}"))),
    (Code.SELF_INPUT, "jobs[0].inputs[0].from", file(reactive("b", "{from: ¦{job: b}}"))),
    (
        Code.SELF_INPUT,
        "jobs[1].inputs[0].from",
        file(A, reactive("b", "{from: ¦{dataset: log}}"), publish=log().replace("{job: a}", "[{job: a}, {job: b}]")),
    ),
    (
        Code.CYCLE,
        "jobs[0].inputs[1].from",
        file(
            reactive("a", "{from: {dataset: prices}}", "{from: ¦{job: c}}"),
            B_READS_A,
            reactive("c", "{from: {job: b}}"),
        ),
    ),
    (
        Code.CYCLE,
        "jobs[0].inputs[0].from",
        file(reactive("a", "{from: ¦{job: b}, trigger: false}", "{from: {dataset: prices}}"), B_READS_A),
    ),
    (Code.WHERE_INVALID, "jobs[1].inputs[0].where", file(A, reactive("b", "{from: {job: a}, where: 'x = 1 ¦; drop'}"))),
    (Code.WHERE_INVALID, "jobs[1].inputs[0].where", file(A, reactive("b", "{from: {job: a}, where: x = ¦y}"))),
    (
        Code.WHERE_UNKNOWN_COLUMN,
        "jobs[0].inputs[0].where",
        file(reactive("b", "{from: {dataset: prices}, where: 'symbol = ''cost'' OR ¦cost > 1'}")),
    ),
    (
        Code.WHERE_UNKNOWN_COLUMN,
        "jobs[1].inputs[0].where",
        file(A, reactive("b", "{from: {job: a}, where: ¦x = 1}"), publish=log()),
    ),
    (Code.APPEND_WITHOUT_KEY, "jobs[0].unique_key", file(A.replace("replace", "append").replace("{n", "¦{n"))),
    (Code.REACTIVE_WITHOUT_INPUTS, "jobs[0].inputs", file(reactive("b").replace("inputs: [", "inputs: ¦["))),
    (
        Code.REACTIVE_WITHOUT_INPUTS,
        "jobs[0].inputs",
        file(reactive("b").replace(", inputs: []", "").replace("{n", "¦{n")),
    ),
    (
        Code.REACTIVE_WITHOUT_INPUTS,
        "jobs[1].inputs",
        file(A, reactive("b", "{from: {job: a}, trigger: false}").replace("inputs: [", "inputs: ¦[")),
    ),
    (Code.SOURCE_WITH_INPUTS, "jobs[1].inputs", file(A, source("b", more=", ¦inputs: [{from: {job: a}}]"))),
    (Code.SOURCE_MISSING, "jobs[0].source", file(A.replace(", source: {kind: manual}", "").replace("{n", "¦{n"))),
    (
        Code.SOURCE_MISSING,
        "jobs[0].source",
        file(
            job("runtime: dispatcher;operator: cron_source")
            .replace(", source: {kind: manual}", "")
            .replace("{n", "¦{n")
        ),
    ),
    (
        Code.STRATEGY_MISSING,
        "jobs[1].execution_strategy",
        file(A, B_READS_A.replace("execution_strategy: PerUpdate, ", "").replace("{n", "¦{n")),
    ),
    (Code.CRON_INVALID, "jobs[0].source.schedule", file(job("source: {kind: cron, schedule: ¦'61 * * * *'}"))),
    (Code.WEBHOOK_TAKEN, "jobs[0].source.path", file(job("source: {kind: webhook, path: ¦orders/new}"))),
    (
        Code.WEBHOOK_TAKEN,
        "jobs[1].source.path",
        file(job("name: b;source: {kind: webhook, path: x}"), job("source: {kind: webhook, path: ¦x}")),
    ),
    (
        Code.PARTITION_MISMATCH,
        "jobs[1].inputs[0].from",
        file(
            source("a", more=", partitions: {kind: key}"),
            per_partition("b", "{from: ¦{job: a}}", more=", partitions: {kind: range, size: 5}"),
        ),
    ),
    (
        Code.PARTITION_MISMATCH,  # of another size
        "jobs[2].inputs[0].from",
        file(
            A,
            source("c", more=", partitions: {kind: range, size: 10}"),
            per_partition("b", "{from: ¦{job: c}}", more=", partitions: {kind: range, size: 500}"),
        ),
    ),
    (
        Code.PARTITION_MISMATCH,  # that begin elsewhere
        "jobs[2].inputs[1].from",
        file(
            A,
            source("c", more=", partitions: {kind: range, size: 10}"),
            per_partition(
                "b", "{from: {job: a}}", "{from: ¦{job: c}}", more=", partitions: {kind: range, size: 10, start: 5}"
            ),
        ),
    ),
    (
        Code.PARTITION_MISMATCH,  # of ranges that the server makes
        "jobs[3].inputs[0].from",
        file(
            A,
            source("c"),
            job(
                "name: r;activation: reactive;runtime: dispatcher;operator: range_aggregator;source: null;"
                "execution_strategy: PerUpdate;inputs: [{from: {job: a}}];config: {range_size: 100}"
            ).replace(", source: null", ""),
            per_partition("b", "{from: ¦{job: r}}", more=", partitions: {kind: range, size: 1000}"),
        ),
    ),
    (
        Code.PARTITION_MISMATCH,
        "jobs[1].inputs[1].from",
        file(
            source("a", more=", partitions: {kind: time, every: 1h}"),
            per_partition("b", "{from: {job: a}}", "{from: ¦{dataset: prices}}"),
        ),
    ),
    # trust
    (Code.SECRET_UNTRUSTED, "jobs[0].secrets", file(job("runtime: ecs_udf;secrets: ¦[RPC_KEY]"))),
    (Code.SECRET_UNKNOWN, "jobs[0].secrets[1]", file(job("secrets: [RPC_KEY, ¦RPC_KY]"))),
    (Code.SECRET_UNKNOWN, "jobs[0].secrets[0]", file(job("runtime: lambda;secrets: [¦RPC_KEY]"))),
    (
        Code.SECRET_UNKNOWN,
        "jobs[0].secrets[0]",
        file(job("runtime: dispatcher;operator: manual_source;secrets: [¦RPC_KEY]")),
    ),
    (Code.LAMBDA_UNTRUSTED, "jobs[0].queue", file(job("runtime: lambda;queue: ¦cells"))),
    (Code.RUNTIME_QUEUE, "jobs[0].queue", file(job("queue: ¦cells"))),
    (Code.RUNTIME_QUEUE, "jobs[0].queue", file(job("runtime: ecs_udf;queue: ¦big"))),
    (Code.RUNTIME_QUEUE, "jobs[0].queue", file(job("runtime: ecs_udf;queue: ¦platform"))),
    (Code.RUNTIME_QUEUE, "jobs[0].queue", file(job("queue: ¦bg"))),
    (Code.RUNTIME_QUEUE, "jobs[0].queue", file(job("runtime: dispatcher;operator: manual_source;queue: ¦big"))),
    (
        Code.DIRECT_UNTRUSTED,
        "publish.x.write_mode",
        file(job("runtime: ecs_udf"), publish="  x: {from: {job: a}, storage: postgres, write_mode: ¦direct}\n"),
    ),
    # publications
    (
        Code.SCHEMA_MISSING,
        "publish.x.schema",
        file(A, publish="  x: ¦{from: {job: a}, storage: postgres, write_mode: buffered}\n"),
    ),
    (
        Code.SCHEMA_INVALID,
        "publish.log.schema.unique",
        file(A, publish=log(unique="").replace("schema: {", "schema: ¦{")),
    ),
    (Code.SCHEMA_INVALID, "publish.log.schema.unique[0]", file(A, publish=log(unique=", unique: [¦id]"))),
    (Code.SCHEMA_INVALID, "publish.log.schema.unique", file(A, publish=log(unique=", unique: ¦[org_id]"))),
    (Code.SCHEMA_INVALID, "publish.log.schema.indexes[1][0]", file(A, publish=log(", indexes: [[seq, key], [¦id]]"))),
    (
        Code.SCHEMA_INVALID,
        "publish.log.schema.columns[1].name",
        file(A, publish=log(columns="{name: key, type: text}, {name: ¦Key, type: text}")),
    ),
    (
        Code.SCHEMA_INVALID,
        "publish.x.schema.on_conflict",
        file(
            A,
            publish="  x: {from: {job: a}, storage: s3, schema: {columns: [{name: a, type: text}],"
            " on_conflict: ¦update}}\n",
        ),
    ),
    (
        Code.RESERVED_COLUMN,
        "publish.log.schema.columns[1].name",
        file(A, publish=log(columns="{name: key, type: text}, {name: ¦seq, type: bigint}")),
    ),
    (Code.DATASET_TAKEN, "publish.prices", file(A, publish="  ¦prices: {from: {job: a}, storage: s3}\n")),
    (Code.DATASET_TAKEN, "publish.hidden", file(A, publish="  ¦hidden: {from: {job: a}, storage: s3}\n")),
    (
        Code.DATASET_TAKEN,
        "publish.y.from",
        file(A, publish="  x: {from: {job: a}, storage: s3}\n  y: {from: ¦{job: a}, storage: s3}\n"),
    ),
    (
        Code.MULTI_WRITER,
        "publish.x.from",
        file(A, source("b"), publish="  x: {from: ¦[{job: a}, {job: b}], storage: s3}\n"),
    ),
]
ELSEWHERE = {Code.YAML_SYNTAX, Code.YAML_ALIAS, Code.DUPLICATE_KEY, Code.TOO_LARGE}  # tests/datasets/test_read_yaml.py


@pytest.mark.parametrize(("code", "path", "text"), PROBLEMS, ids=[f"{code}-{path}" for code, path, _ in PROBLEMS])
def test_a_problem_is_reported_once_at_its_place(code: Code, path: str, text: str) -> None:
    text, line, column = marked(text)

    assert [(each.line, each.column, each.path, each.code) for each in report(text).problems] == [
        (line, column, path, code)
    ]


def test_every_code_has_a_file_that_shows_it() -> None:
    assert {code for code, _, _ in PROBLEMS} | ELSEWHERE | WARNINGS == set(Code)


def test_the_example_of_the_manual_is_valid() -> None:
    found = report(CHAIN)

    assert found.problems == ()
    assert [(each.line, each.path, each.code) for each in found.warnings] == [
        (10, "jobs[0].outputs", Code.UNUSED_OUTPUT)
    ]


# --------------------------------------------------------------------------------------------- hints


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (file(A) + "publsh: {}\n", "publish"),
        (file(A.replace("operator:", "operater:")), "operator"),
        (file(A.replace("ecs_platform", "ecs_platfrom")), "ecs_platform"),
        (file(source("follow"), reactive("b", "{from: {job: folow}}")), "follow"),
        (file(reactive("b", "{from: {dataset: price}}")), "prices"),
        (file(A, reactive("b", "{from: {dataset: lgo}}"), publish=log()), "log"),
        (file(A, reactive("b", "{from: {dataset: log}, where: kye = 'x'}"), publish=log()), "key"),
        (file(job("secrets: [RPC_KEYS]")), "RPC_KEY"),
        (file(job("queue: bigg")), "big"),
        (file(job("runtime: dispatcher;operator: manual_sorce")), "manual_source"),
    ],
)
def test_a_name_that_is_not_known_comes_with_the_nearest(text: str, hint: str) -> None:
    assert [each.hint for each in report(text).problems if each.hint] == [f"did you mean {hint}?"]


def test_no_hint_tells_of_a_dataset_that_may_not_be_read() -> None:
    [problem] = report(file(reactive("b", "{from: {dataset: hiden}}"))).problems

    assert problem.hint is None


# --------------------------------------------------------------------------------------------- what is allowed


@pytest.mark.parametrize(
    "text",
    [
        file(reactive("b", "{from: {dataset: prices}, where: symbol = 'x' AND seq > 5, on_upgrade: continue}")),
        file(source("a", more=", queue: big"), job("name: u;runtime: ecs_udf;queue: cells")),
        file(job("runtime: lambda;queue: big")),
        file(job("runtime: ecs_udf")),
        file(source("a", outputs=0).replace("update_strategy: replace, ", "")),
        file(job("runtime: dispatcher;operator: webhook_source;source: {kind: webhook, path: a/b}")),
        file(A, publish=log(", indexes: [[org_id, seq]], on_conflict: update")),
        file(A, publish=log(columns="{name: key, type: text}, {name: org_id, type: uuid}")),
        file(A, reactive("b", "{from: {job: a}, where: anything = 1}")),
        file(job("source: {kind: cron, schedule: 0 9 * * MON, timezone: Europe/Paris}")),
        file(job("partitions: {kind: time, every: 1h, start: 2026-01-31T05, timezone: Europe/Paris}")),
        file(
            source("a", more=", partitions: {kind: range, size: 10}"),
            per_partition("b", "{from: {job: a}}", more=", when: all, partitions: {kind: range, size: 10, start: 500}"),
        ),
        file(
            A,
            source("b", more=", partitions: {kind: key}"),
            per_partition(
                "c", "{from: {job: a}}", "{from: {job: b}, trigger: false}", more=", partitions: {kind: range, size: 5}"
            ),
        ),
        file(A, B_READS_A, reactive("c", "{from: {job: a}}", "{from: {job: b}}")),
    ],
)
def test_a_file_without_problems(text: str) -> None:
    assert report(text).problems == ()


@pytest.mark.parametrize("name", ["no", "yes", "on", "null", "true", "e3"])
def test_a_scalar_is_read_by_the_type_of_its_field(name: str) -> None:
    assert report(file(source(name))).problems == ()


def test_what_the_dag_has_itself_is_neither_taken_nor_there() -> None:
    """A caller loads the whole namespace, with the version before of this DAG."""
    own = Facts("default", {"x": KnownDataset("d", PRICES)}, webhooks={"hook": "d"})
    hook = job("source: {kind: webhook, path: hook}")

    assert report(file(hook, publish="  x: {from: {job: a}, storage: s3}\n"), own).valid
    assert [each.code for each in report(file(reactive("b", "{from: {dataset: x}}")), own).problems] == [
        Code.UNKNOWN_DATASET
    ]


# --------------------------------------------------------------------------------------------- cycles and trust


def test_a_cycle_is_found_across_dags() -> None:
    """The DAG `loop` reads what this one writes, and writes what this one reads."""
    reader = OtherJob("loop", "back", FACTS.jobs[1].inputs, (PRICES,))
    text, line, column = marked(file(reactive("a", "{from: ¦{dataset: prices}}")))
    [problem] = report(text, Facts("default", FACTS.datasets, (reader,), FACTS.queues)).problems

    assert (problem.line, problem.column, problem.code) == (line, column, Code.CYCLE)
    assert problem.message == "the jobs wait for each other: a → loop/back → a"


def test_the_same_loop_in_the_version_before_is_no_cycle() -> None:
    before = OtherJob("d", "back", FACTS.jobs[1].inputs, (PRICES,))

    assert report(file(reactive("a", "{from: {dataset: prices}}")), Facts("default", FACTS.datasets, (before,))).valid


def test_each_cycle_is_reported_once() -> None:
    pairs = [reactive(a, f"{{from: {{job: {b}}}}}") for a, b in ("ab", "ba", "cd", "dc")]

    assert [each.path for each in report(file(*pairs)).problems] == ["jobs[0].inputs[0].from", "jobs[2].inputs[0].from"]


def test_a_cycle_of_a_thousand_jobs_is_found() -> None:
    jobs = [reactive(f"j{number}", f"{{from: {{job: j{(number + 1) % 1000}}}}}") for number in range(1000)]
    [problem] = report(file(*jobs)).problems

    assert problem.code is Code.CYCLE
    assert len(problem.message) < 200


@pytest.mark.parametrize(
    ("queue", "runtime"),
    [(KnownQueue("pull"), "ecs_platform"), (KnownQueue("wakeup", trusted=False), "ecs_platform"), (None, "lambda")],
)
def test_the_queue_of_a_runtime_must_be_what_the_runtime_needs(queue: KnownQueue | None, runtime: str) -> None:
    facts = Facts("default", queues={"platform": queue} if queue else {})
    text, line, column = marked(file(job(f"runtime: ¦{runtime}")))
    [problem] = report(text, facts).problems

    assert (problem.line, problem.column, problem.code) == (line, column, Code.RUNTIME_QUEUE)


@pytest.mark.parametrize("runtime", ["ecs_platform", "ecs_udf"])
def test_a_deploy_makes_the_queues_of_the_wrappers(runtime: str) -> None:
    assert report(file(job(f"runtime: {runtime}")), Facts("default")).valid


# --------------------------------------------------------------------------------------------- warnings


def test_an_output_that_nobody_uses_is_a_warning() -> None:
    text, line, column = marked(file(source("a", outputs=2).replace("outputs: 2", "outputs: ¦2"), B_READS_A, publish=(
        "  x: {from: {job: b}, storage: s3, read_roles: ['*']}\n"
    )))  # fmt: skip
    found = report(text)

    assert found.valid
    assert [(each.line, each.column, each.code) for each in found.warnings] == [(line, column, Code.UNUSED_OUTPUT)]


@pytest.mark.parametrize(
    ("roles", "jobs", "warned"),
    [
        ("", (), True),
        (", read_roles: [analysts]", (), False),
        (
            "",
            (OtherJob("e", "r", (OtherInput(FACTS.jobs[1].inputs[0].dataset_uuid, None, True, OnUpgrade.CONTINUE),)),),
            False,
        ),
    ],
)
def test_a_dataset_that_nobody_reads_is_a_warning(roles: str, jobs: tuple[OtherJob, ...], warned: bool) -> None:
    text, line, column = marked(file(A, publish=f"  ¦x: {{from: {{job: a}}, storage: s3{roles}}}\n"))
    found = report(text, Facts("default", jobs=jobs)).warnings

    assert [(each.line, each.column, each.code) for each in found] == [(line, column, Code.NO_CONSUMER)] * warned


# --------------------------------------------------------------------------------------------- places in a where


@pytest.mark.parametrize(
    "where",
    [
        "where: a = ¦b",
        "where: 'a = ''x'' ¦; b'",
        "where: \"a = '\\x41\\u0041\\n' ¦; b\"",
        "where: >-\n        a = 1\n        AND ¦; b",
        "where: |\n        a = 1\n        AND ¦; b",
        "where: 'a = 1\n        AND ¦; b'",
        "where: a = 1\n        AND b¦",
        'where: "a = \\\n        1 ¦; b"',
        "where: 'é = 1'".replace("é", "¦é"),
    ],
)
def test_a_wrong_character_of_a_where_is_found_in_any_style(where: str) -> None:
    block = "  - name: b\n    activation: reactive\n    runtime: ecs_platform\n    operator: op\n    outputs: 0\n"
    block += f"    execution_strategy: PerUpdate\n    inputs:\n    - from: {{job: a}}\n      {where}\n"
    text, line, column = marked(file(A, block))
    [problem] = report(text).problems

    assert (problem.line, problem.column, problem.code) == (line, column, Code.WHERE_INVALID), problem.message


def test_windows_line_ends_move_no_place() -> None:
    text, line, column = marked(file(A, reactive("b", "{from: {job: a}, where: 'a = 1\n  AND ¦;'}")))
    [problem] = report(text.replace("\n", "\r\n")).problems

    assert (problem.line, problem.column) == (line, column)
