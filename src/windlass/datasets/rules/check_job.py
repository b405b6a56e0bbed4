"""Rules of one job: its fields fit together, its queue exists and has the right trust, and its inputs are there."""

from __future__ import annotations

import re
from collections.abc import Callable

from windlass.datasets.rules.dag import (
    BUILT_IN,
    QUEUES_MADE,
    Activation,
    Dag,
    ExecutionStrategy,
    Input,
    Job,
    Partitioning,
    Runtime,
    Storage,
    UpdateStrategy,
)
from windlass.datasets.rules.fact import Facts, KnownQueue
from windlass.datasets.rules.findings import Findings
from windlass.datasets.rules.predicate import parse
from windlass.datasets.rules.problem import Code, Path, shown

WAKEUP, INVOKE = "wakeup", "invoke"
# The queues that a deploy makes, as they will be.
_MADE = {"platform": KnownQueue(WAKEUP, trusted=True), "udf": KnownQueue(WAKEUP, trusted=False)}
assert set(_MADE) == QUEUES_MADE
_NAMES = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|[A-Za-z_][A-Za-z0-9_]*""")  # texts are skipped
_DELIVERY = {Runtime.ECS_PLATFORM: WAKEUP, Runtime.ECS_UDF: WAKEUP, Runtime.LAMBDA: INVOKE}


def check_jobs(dag: Dag, facts: Facts, findings: Findings) -> None:
    """Check every job that was read."""
    checker = _Checker(dag, facts, findings)
    for index in range(len(dag.jobs)):
        if findings.readable("jobs", index):
            checker.check(index)


class _Checker:
    """Checks jobs of one file; knows what earlier ones have taken."""

    def __init__(self, dag: Dag, facts: Facts, findings: Findings) -> None:
        self._dag, self._facts, self._findings = dag, facts, findings
        self._first: dict[str, int] = {}  # the job that has a name
        for index, job in enumerate(dag.jobs):
            self._first.setdefault(job.name, index)
        self._webhooks: dict[str, str] = {}
        self._names = frozenset(
            {*dag.publication, *(name for name in facts.datasets if facts.readable(dag.name, name))}
        )

    def check(self, index: int) -> None:
        job, path = self._dag.jobs[index], ("jobs", index)
        rules: tuple[tuple[tuple[str, ...], Callable[[Job, Path], None]], ...] = (
            (("name",), self._name),
            (("activation", "inputs", "source"), self._activation),
            (("execution_strategy", "activation"), self._strategy),
            (("update_strategy", "outputs", "unique_key"), self._update),
            (("runtime", "operator", "activation", "source"), self._operator),
            (("runtime", "queue"), self._queue),
            (("source",), self._webhook),
            (("inputs",), self._inputs),
            (("inputs", "partitions", "execution_strategy"), self._partitions),
        )
        for fields, rule in rules:
            if all(self._findings.readable(*path, field) for field in fields):
                rule(job, path)

    # ----------------------------------------------------------------------------------------- fields of a job

    def _name(self, job: Job, path: Path) -> None:
        if job.name and (first := self._first[job.name]) != path[1]:
            message = f"there is a job {shown(job.name)} already: jobs[{first}]"
            self._findings.value((*path, "name"), Code.DUPLICATE_JOB, message)

    def _activation(self, job: Job, path: Path) -> None:
        if job.activation is Activation.SOURCE:
            if job.source is None and not self._findings.has(*path, "source"):
                self._findings.value(
                    (*path, "source"), Code.SOURCE_MISSING, "a job with activation source needs a source"
                )
            if job.inputs:
                message = "a job with activation source has no inputs: use activation reactive, or take them out"
                self._findings.key((*path, "inputs"), Code.SOURCE_WITH_INPUTS, message)
            return
        if not any(source.trigger for source in job.inputs):
            message = (
                "no input triggers the job, so it would never run" if job.inputs else "a reactive job needs inputs"
            )
            self._findings.value((*path, "inputs"), Code.REACTIVE_WITHOUT_INPUTS, message)
        if job.source is not None:
            message = "a reactive job has no source: use activation source, or take it out"
            self._findings.key((*path, "source"), Code.BAD_VALUE, message)

    def _strategy(self, job: Job, path: Path) -> None:
        strategy = job.execution_strategy
        if job.activation is Activation.REACTIVE and strategy is None:
            message = "a reactive job needs an execution_strategy: PerUpdate or PerPartition"
            self._findings.value((*path, "execution_strategy"), Code.STRATEGY_MISSING, message)
        if job.activation is Activation.SOURCE and strategy is not None:
            message = "execution_strategy is for reactive jobs: take it out"
            self._findings.key((*path, "execution_strategy"), Code.BAD_VALUE, message)
        only = (("when", ExecutionStrategy.PER_PARTITION), ("coalesce", ExecutionStrategy.PER_UPDATE))
        for field, needed in only:
            if self._findings.has(*path, field) and strategy is not needed:
                self._findings.key((*path, field), Code.BAD_VALUE, f"{field} is for execution_strategy {needed}")

    def _update(self, job: Job, path: Path) -> None:
        if job.update_strategy is None and job.outputs:
            message = "update_strategy is missing: append adds rows, replace replaces a partition"
            self._findings.value((*path, "update_strategy"), Code.MISSING_FIELD, message)
        if job.update_strategy is UpdateStrategy.APPEND and not job.unique_key:
            message = "append needs a unique_key, so that a repeated attempt adds no row twice"
            self._findings.value((*path, "unique_key"), Code.APPEND_WITHOUT_KEY, message)

    # ----------------------------------------------------------------------------------------- where it runs

    def _operator(self, job: Job, path: Path) -> None:
        if job.runtime is not Runtime.DISPATCHER or (job.activation is Activation.SOURCE and job.source is None):
            return
        kind = job.source.kind if job.source else None
        fitting = [name for name, of in BUILT_IN.items() if of is kind]
        if job.operator not in fitting:
            named = f"of a {kind} source" if kind else "of a reactive job"
            message = f"the operators of dispatcher are built in; that {named} is {' or '.join(fitting) or 'none'}"
            self._findings.value(
                (*path, "operator"), Code.BAD_VALUE, f"{message}, and not {shown(job.operator)!r}",
                similar=(job.operator, fitting),
            )  # fmt: skip

    def _queue(self, job: Job, path: Path) -> None:
        field = (*path, "queue" if job.queue else "runtime")
        name = job.queue_name
        if job.runtime is Runtime.DISPATCHER or name is None:
            if job.queue:
                message = "runtime dispatcher runs in the server and has no queue: take it out"
                self._findings.value(field, Code.RUNTIME_QUEUE, message)
            self._secrets(job, path, KnownQueue("", secrets=()))
            return
        queue = self._facts.queues.get(name) or _MADE.get(name)
        if queue is None:
            message = f"there is no queue {shown(name)!r}, which runtime {job.runtime} needs: make it first"
            self._findings.value(field, Code.RUNTIME_QUEUE, message, similar=(name, self._facts.queues))
            return
        self._trust(job, field, name, queue)
        self._secrets(job, path, queue)

    def _trust(self, job: Job, field: Path, name: str, queue: KnownQueue) -> None:
        if job.runtime is Runtime.LAMBDA and not queue.trusted:
            message = f"queue {name} is for code that is not trusted, which must not run as a function: use ecs_udf"
            self._findings.value(field, Code.LAMBDA_UNTRUSTED, message)
        elif job.trusted is not queue.trusted:
            is_, needs = ("trusted", "one that is not") if queue.trusted else ("not trusted", "a trusted one")
            message = f"the workers of queue {name} are {is_}, and runtime {job.runtime} needs {needs}"
            self._findings.value(field, Code.RUNTIME_QUEUE, message)
        elif job.queue is None and queue.delivery != _DELIVERY[job.runtime]:
            message = (
                f"queue {name} has delivery {queue.delivery}, and runtime {job.runtime} needs {_DELIVERY[job.runtime]}"
            )
            self._findings.value(field, Code.RUNTIME_QUEUE, f"{message}; name another with queue")

    def _secrets(self, job: Job, path: Path, queue: KnownQueue) -> None:
        if not job.secrets or not self._findings.whole(*path, "secrets"):
            return
        if job.runtime is Runtime.ECS_UDF:
            message = "code that is not trusted gets no secrets: take them out, or use ecs_platform"
            self._findings.value((*path, "secrets"), Code.SECRET_UNTRUSTED, message)
            return
        for number, secret in enumerate(job.secrets):
            if secret not in queue.secrets:
                where = f"queue {job.queue_name} does not name" if job.queue_name else "the server gives no job"
                self._findings.value(
                    (*path, "secrets", number), Code.SECRET_UNKNOWN, f"{where} the secret {shown(secret)}",
                    similar=(secret, queue.secrets),
                )  # fmt: skip

    def _webhook(self, job: Job, path: Path) -> None:
        hook = job.source.path if job.source else None
        if hook is None:
            return
        owner = self._facts.webhooks.get(hook, self._dag.name)
        taken = f"DAG {owner}" if owner != self._dag.name else self._webhooks.get(hook)
        self._webhooks.setdefault(hook, f"jobs[{path[1]}]")
        if taken:
            message = f"the path {shown(hook)} belongs to {taken}: choose another"
            self._findings.value((*path, "source", "path"), Code.WEBHOOK_TAKEN, message)

    # ----------------------------------------------------------------------------------------- inputs

    def _inputs(self, job: Job, path: Path) -> None:
        for number, source in enumerate(job.inputs):
            place = (*path, "inputs", number)
            if source.job is not None:
                known = self._job_input(job, source, place)
            elif source.dataset is not None:
                known = self._dataset_input(job, source, place)
            else:
                continue  # could not be read
            if known and source.where is not None:
                self._columns(source, (*place, "where"))

    def _job_input(self, job: Job, source: Input, place: Path) -> bool:
        self._no_upgrade(place)
        if not check_output(self._dag, self._findings, source.job or "", source.output, (*place, "from")):
            return False
        return not self._reads_itself(job, source, place)

    def _dataset_input(self, job: Job, source: Input, place: Path) -> bool:
        name = source.dataset or ""
        if name in self._dag.publication:
            self._no_upgrade(place)
            return not self._reads_itself(job, source, place)
        if self._facts.readable(self._dag.name, name):
            return True
        message = f"there is no dataset {shown(name)!r}, or you may not read it"
        self._findings.value((*place, "from", "dataset"), Code.UNKNOWN_DATASET, message, similar=(name, self._names))
        return False

    def _reads_itself(self, job: Job, source: Input, place: Path) -> bool:
        if not any(writer.job == job.name for writer in self._dag.writers(source)):
            return False
        self._findings.value((*place, "from"), Code.SELF_INPUT, f"{shown(job.name)} reads what it writes itself")
        return True

    def _no_upgrade(self, place: Path) -> None:
        if self._findings.has(*place, "on_upgrade"):
            message = "on_upgrade is for datasets of other DAGs: jobs of one file change together"
            self._findings.key((*place, "on_upgrade"), Code.BAD_VALUE, message)

    def _columns(self, source: Input, path: Path) -> None:
        """The columns of a `where` are in the schema, if the dataset has one."""
        columns = self._known_columns(source)
        if columns is None or source.where is None:
            return
        for column in parse(source.where).columns:
            if column not in columns:
                self._findings.character(
                    path, _offset(source.where, column), Code.WHERE_UNKNOWN_COLUMN,
                    f"the dataset has no column {shown(column)!r}", similar=(column, columns),
                )  # fmt: skip

    def _known_columns(self, source: Input) -> frozenset[str] | None:
        writers = self._dag.writers(source)
        if writers:
            publication = self._dag.published.get(writers[0])
            schema, storage = (publication.schema, publication.storage) if publication else (None, Storage.NONE)
        else:
            known = self._facts.readable(self._dag.name, source.dataset or "")
            schema, storage = (known.schema, known.storage) if known else (None, Storage.NONE)
        return schema.names(postgres=storage is Storage.POSTGRES) if schema else None

    def _partitions(self, job: Job, path: Path) -> None:
        """The partitions of a job are those of its inputs, by their keys. Partitions of another size would have to be
        mapped by cover, which is not supported yet."""
        if job.execution_strategy is not ExecutionStrategy.PER_PARTITION:
            return
        scheme = job.partitions
        for number, source in enumerate(job.inputs):
            found = self._scheme(source) if source.trigger else None
            if found is None:
                continue
            if scheme is None:
                scheme = found
            elif not found.fits(scheme):
                of = "of the job" if job.partitions is not None else "of its first input"
                message = (
                    f"its partitions ({_scheme_text(found)}) are not those {of} ({_scheme_text(scheme)}): an input "
                    "that triggers a job has the same partitions as the job"
                )
                self._findings.value((*path, "inputs", number, "from"), Code.PARTITION_MISMATCH, message)

    def _scheme(self, source: Input) -> Partitioning | None:
        writers = self._dag.writers(source)
        if writers:
            writer = self._dag.job.get(writers[0].job)
            return writer.output_partitions if writer else None
        known = self._facts.readable(self._dag.name, source.dataset or "")
        return known.partitions if known else None


def _offset(where: str, column: str) -> int:
    """Where a condition names a column first."""
    for found in _NAMES.finditer(where):
        name = found[0][1:-1].replace('""', '"') if found[0][0] == '"' else found[0]
        if name == column:
            return found.start()
    return 0


def check_output(dag: Dag, findings: Findings, job: str, output: int, path: Path) -> bool:
    """Whether the file has this output. `path` is that of the mapping with `job` and `output`."""
    found = dag.job.get(job)
    if found is None:
        if findings.readable(*path, "job"):
            message = f"there is no job {shown(job)!r} in this file"
            findings.value((*path, "job"), Code.UNKNOWN_JOB, message, similar=(job, dag.job))
        return False
    if not findings.readable("jobs", dag.index[job], "outputs"):
        return False
    if output >= found.outputs:
        has = f"has {found.outputs} outputs, counted from 0" if found.outputs else "has no outputs"
        findings.value((*path, "output"), Code.UNKNOWN_OUTPUT, f"{shown(job)} {has}")
        return False
    return True


def _scheme_text(scheme: Partitioning) -> str:
    parts = [scheme.kind, scheme.size or scheme.every, scheme.start and f"from {scheme.start}", scheme.timezone]
    return " ".join(str(part) for part in parts if part)
