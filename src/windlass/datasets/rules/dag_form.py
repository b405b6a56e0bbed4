"""The fields of a DAG file: their types, ranges and defaults. Nodes to the model.

Every field is read on its own. Whether fields fit together is decided by `check`, which also reads files with
problems: a file is reported as a whole, in one go.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

import msgspec

from windlass.core.cron import parse_cron
from windlass.datasets.rules.dag import (
    Activation,
    BackpressureMode,
    Dag,
    DataCheck,
    ExecutionStrategy,
    Input,
    Job,
    Limits,
    OnChange,
    OnUpgrade,
    Output,
    Partitioning,
    PartitionKind,
    Priority,
    Publication,
    Runtime,
    Severity,
    Source,
    SourceKind,
    Storage,
    UpdateStrategy,
    When,
    WriteMode,
)
from windlass.datasets.rules.form import (
    BAD,
    Field,
    Form,
    Values,
    bad_name,
    choice,
    duration,
    fields,
    flag,
    json_object,
    listing,
    mapping,
    name,
    number,
    scalar,
    text,
    timezone,
)
from windlass.datasets.rules.node import Mapping, Node, Scalar, Sequence, character_place
from windlass.datasets.rules.predicate import WhereInvalid, parse
from windlass.datasets.rules.problem import Code, Path, Problem, in_order, shown
from windlass.datasets.rules.scalar import INT_MAX, INT_MIN
from windlass.datasets.rules.schema import Column, ColumnType, DatasetSchema, OnConflict
from windlass.errors import Invalid

JOBS_MAX = 2000
OUTPUTS_MAX = 64
WEEK_S = 7 * 86400
JOB_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,63}$")
DATASET_NAME = re.compile(r"^[a-z][a-z0-9_]{0,127}$")
COLUMN_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")
SECRET_NAME = re.compile(r"^[A-Z_][A-Z0-9_]{0,199}$")
WEBHOOK_PATH = re.compile(r"^[a-z0-9][a-z0-9/_-]{0,127}$")

_word, _sentence = text(200), text(10_000, least=0, lines=True)
_job_name, _dataset_name = name(JOB_NAME, "daily-report"), name(DATASET_NAME, "daily_report")
_column_name = name(COLUMN_NAME, "block_hash")
_output = Field(number(0, OUTPUTS_MAX - 1))


class Reading(msgspec.Struct, frozen=True):
    """What was read from a file. `dag` is None if the file has problems. `draft` is the model with the fields that can
    be read, and None if there is no mapping at all. `broken` are the paths of the fields that cannot be read."""

    problems: tuple[Problem, ...]
    dag: Dag | None = None
    draft: Dag | None = None
    root: Node | None = None
    text: str = ""
    broken: frozenset[Path] = frozenset()


def read_dag(root: Node, source: str, problems: list[Problem], zone_of: Callable[[str], tzinfo | None]) -> Reading:
    """Read the nodes of a file. `problems` are those that its YAML has already."""
    form = Form(source, problems, zone_of)
    values = fields(form, root, (), _DAG)
    if values is None:
        return Reading(in_order(form.problems), root=root, text=source)
    defaults = values.get("defaults", {})
    jobs = tuple(make(defaults) for make in values.get("jobs", ()))
    draft = Dag(values.get("name", ""), jobs, values.get("publish", ()))
    dag = None if form.problems else draft
    return Reading(in_order(form.problems), dag, draft, root, source, frozenset(form.broken))


# --------------------------------------------------------------------------------------------- parts of a job


def _cron(form: Form, node: Node, path: Path) -> Any:
    found = scalar(form, node, path, "text")
    if found is None:
        return BAD
    try:
        parse_cron(found.value)
    except Invalid as error:
        return form.wrong(node, path, shown_error(error), Code.CRON_INVALID)
    return found.value


def shown_error(error: Invalid) -> str:
    """The message of an error without the name of the field, which the path has."""
    return str(error).removeprefix(f"{error.field}: ")


def _where(form: Form, node: Node, path: Path) -> Any:
    found = scalar(form, node, path, "text")
    if found is None:
        return BAD
    try:
        parse(found.value)
    except WhereInvalid as error:
        place = character_place(found, form.text, error.offset)
        return form.add(place, path, Code.WHERE_INVALID, shown_error(error))
    return found.value


def _webhook_path(form: Form, node: Node, path: Path) -> Any:
    found = scalar(form, node, path, "text")
    if found is None or WEBHOOK_PATH.fullmatch(found.value):
        return BAD if found is None else found.value
    return form.wrong(node, path, f"must match {WEBHOOK_PATH.pattern}, and is {shown(found.value)!r}")


_KIND = Field(choice(SourceKind), required=True)
_SOURCES: dict[str, dict[str, Field]] = {
    SourceKind.CRON: {"kind": _KIND, "schedule": Field(_cron, required=True), "timezone": Field(timezone)},
    SourceKind.WEBHOOK: {"kind": _KIND, "path": Field(_webhook_path, required=True)},
    SourceKind.MANUAL: {"kind": _KIND},
    SourceKind.ALWAYS_ON: {"kind": _KIND},
}


def _make_source(values: Values) -> Source:
    defaults: Values = {"timezone": "UTC"} if values["kind"] is SourceKind.CRON else {}
    return Source(**defaults | values)


def _by_kind(
    form: Form, node: Node, path: Path, known: dict[str, dict[str, Field]], make: Callable[[Values], Any]
) -> Any:
    """A mapping whose fields depend on its `kind`. With an unknown kind, a field of any kind may be there."""
    kind = node.entries.get("kind") if isinstance(node, Mapping) else None
    of_kind = known.get(kind.value.value) if kind and isinstance(kind.value, Scalar) else None
    if of_kind is None:
        every = {key: Field(field.read) for kind_fields in known.values() for key, field in kind_fields.items()}
        of_kind = every | {"kind": next(iter(known.values()))["kind"]}
    return mapping(of_kind, make)(form, node, path)


def _source(form: Form, node: Node, path: Path) -> Any:
    return _by_kind(form, node, path, _SOURCES, _make_source)


_PARTITION_KIND = Field(choice(PartitionKind), required=True)
_PARTITIONS: dict[str, dict[str, Field]] = {
    PartitionKind.RANGE: {
        "kind": _PARTITION_KIND,
        "size": Field(number(1, INT_MAX), required=True),
        "start": Field(number(INT_MIN, INT_MAX)),
    },
    PartitionKind.TIME: {
        "kind": _PARTITION_KIND,
        "every": Field(text(10), required=True),
        "start": Field(text(40)),
        "timezone": Field(timezone),
    },
    PartitionKind.KEY: {"kind": _PARTITION_KIND},
}
_PARTITION_DEFAULTS: dict[str, Values] = {PartitionKind.RANGE: {"start": 0}, PartitionKind.TIME: {"timezone": "UTC"}}


def _partitions(form: Form, node: Node, path: Path) -> Any:
    values = _by_kind(form, node, path, _PARTITIONS, lambda values: values)
    if values is BAD:
        return BAD
    found = Partitioning(**_PARTITION_DEFAULTS.get(values["kind"], {}) | values)
    try:
        found.scheme(form.zone_of(found.timezone) if found.timezone else None)
    except Invalid as error:
        field = error.field.rpartition(".")[2]
        value = node.entries[field].value if isinstance(node, Mapping) and field in node.entries else node
        return form.wrong(value, (*path, field), shown_error(error))
    return found


_JOB_OUTPUT = {"job": Field(_job_name, required=True), "output": _output}
_DATASET = {"dataset": Field(_dataset_name, required=True)}
_read_output = mapping(_JOB_OUTPUT, lambda values: Output(values["job"], values.get("output", 0)))


def _from(form: Form, node: Node, path: Path) -> Any:
    named = isinstance(node, Mapping) and "dataset" in node.entries
    return mapping(_DATASET if named else _JOB_OUTPUT, lambda values: values)(form, node, path)


_INPUT = {
    "from": Field(_from, required=True),
    "where": Field(_where),
    "trigger": Field(flag),
    "on_upgrade": Field(choice(OnUpgrade)),
}


def _input(form: Form, node: Node, path: Path) -> Any:
    """An input without job and dataset if it cannot be read, so that the others keep their index."""
    values = fields(form, node, path, _INPUT) or {}
    return Input(**values.pop("from", {}), **values)


_inputs = listing(_input, "inputs", distinct=False, most=64)
_columns = listing(_column_name, "columns", most=100)

_LIMITS = {
    "timeout_seconds": Field(number(1, WEEK_S)),
    "heartbeat_timeout_seconds": Field(number(2, WEEK_S)),
    "max_attempts": Field(number(1, 100)),
    "scaling": Field(mapping({"max_concurrency": Field(number(1, 10_000), required=True)}, lambda values: values)),
    "priority": Field(choice(Priority)),
    "max_queue_depth": Field(number(1, INT_MAX)),
    "max_queue_age": Field(duration()),
    "idle_timeout": Field(duration()),
    "backpressure_mode": Field(choice(BackpressureMode)),
}
_SECONDS = {"max_queue_age": "max_queue_age_s", "idle_timeout": "idle_timeout_s"}


def _limits(values: Values) -> Values:
    """The limits among the fields of a mapping, by their names in the model."""
    found: Values = {_SECONDS.get(key, key): value for key, value in values.items() if key in _LIMITS}
    scaling: Values = found.pop("scaling", {})
    return found | scaling


_JOB = {
    "name": Field(_job_name, required=True),
    "activation": Field(choice(Activation), required=True),
    "runtime": Field(choice(Runtime), required=True),
    "operator": Field(_word, required=True),
    "operator_version": Field(_word),
    "queue": Field(_word),
    "source": Field(_source),
    "inputs": Field(_inputs),
    "execution_strategy": Field(choice(ExecutionStrategy)),
    "when": Field(choice(When)),
    "coalesce": Field(flag),
    "partitions": Field(_partitions),
    "config": Field(json_object),
    "secrets": Field(listing(name(SECRET_NAME, "RPC_KEY"), "secrets", most=100)),
    "outputs": Field(number(0, OUTPUTS_MAX), required=True),
    "update_strategy": Field(choice(UpdateStrategy)),
    "unique_key": Field(_columns),
    "bootstrap": Field(mapping({"reset_outputs": Field(flag)}, lambda values: values)),
    "on_change": Field(choice(OnChange)),
    **_LIMITS,
}
_UNREAD_JOB: Values = {
    "name": "", "activation": Activation.SOURCE, "runtime": Runtime.ECS_PLATFORM, "operator": "", "outputs": 0
}  # fmt: skip


def _job(form: Form, node: Node, path: Path) -> Callable[[Values], Job]:
    """A function that makes the job with the defaults of the file, which may stand below the jobs."""
    values = fields(form, node, path, _JOB) or {}
    own = {key: value for key, value in values.items() if key not in _LIMITS and key != "bootstrap"}
    own |= values.get("bootstrap", {})
    limits = _limits(values)
    return lambda defaults: Job(**_UNREAD_JOB | own, limits=Limits(**defaults | limits))


def _jobs(form: Form, node: Node, path: Path) -> Any:
    if isinstance(node, Sequence) and len(node.items) > JOBS_MAX:
        message = f"a file has at most {JOBS_MAX} jobs, and this has {len(node.items)}: split it into several DAGs"
        return form.wrong(node, path, message, Code.TOO_LARGE)
    return listing(_job, "jobs", distinct=False, least=1, most=JOBS_MAX)(form, node, path)


# --------------------------------------------------------------------------------------------- publications


def _make_column(values: Values) -> Column:
    return Column(**values)


_column = mapping(
    {
        "name": Field(_column_name, required=True),
        "type": Field(choice(ColumnType), required=True),
        "nullable": Field(flag),
    },
    _make_column,
)
_schema = mapping(
    {
        "columns": Field(listing(_column, "columns", least=1, most=500, distinct=False), required=True),
        "unique": Field(listing(_column_name, "columns", least=1, most=32)),
        "indexes": Field(listing(listing(_column_name, "columns", least=1, most=32), "indexes", most=32)),
        "on_conflict": Field(choice(OnConflict)),
    },
    lambda values: DatasetSchema(**values),
)
_check = mapping(
    {
        "name": Field(_dataset_name, required=True),
        "sql": Field(text(65_536, lines=True), required=True),
        "severity": Field(choice(Severity), required=True),
    },
    lambda values: DataCheck(**values),
)


def _writers(form: Form, node: Node, path: Path) -> Any:
    if isinstance(node, Sequence):
        return listing(_read_output, "outputs", least=1, most=JOBS_MAX)(form, node, path)
    output = _read_output(form, node, path)
    return BAD if output is BAD else (output,)


_PUBLICATION = {
    "from": Field(_writers, required=True),
    "storage": Field(choice(Storage, without=(Storage.NONE,)), required=True),
    "write_mode": Field(choice(WriteMode)),
    "schema": Field(_schema),
    "read_roles": Field(listing(_word, "groups", most=100)),
    "description": Field(_sentence),
    "freshness": Field(
        mapping({"max_age": Field(duration(least=1, never=False), required=True)}, lambda values: values)
    ),
    "checks": Field(listing(_check, "checks", most=100)),
}


def _publish(form: Form, node: Node, path: Path) -> Any:
    if not isinstance(node, Mapping):
        return fields(form, node, path, {}) or BAD
    found = []
    for key, entry in node.entries.items():
        if not DATASET_NAME.fullmatch(key):
            bad_name(form, entry.place, (*path, key), key, DATASET_NAME, "daily_report")
        values = fields(form, entry.value, (*path, key), _PUBLICATION) or {}
        found.append(_publication(key, values))
    return tuple(found)


def _publication(key: str, values: Values) -> Publication:
    own = {field: value for field, value in values.items() if field not in ("from", "freshness")}
    if "freshness" in values:
        own["max_age_s"] = values["freshness"]["max_age"]
    return Publication(**{"storage": Storage.NONE} | own, name=key, writers=values.get("from", ()))


_DAG = {
    "name": Field(_job_name, required=True),
    "defaults": Field(mapping(_LIMITS, _limits)),
    "jobs": Field(_jobs, required=True),
    "publish": Field(_publish),
}
