"""Whether a DAG file can be deployed: all of its problems and warnings, in the order of the file."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import msgspec

from windlass.datasets.rules import check_job, check_publish
from windlass.datasets.rules.cycle import groups, shortest
from windlass.datasets.rules.dag import Dag, Job, Output
from windlass.datasets.rules.dag_form import Reading
from windlass.datasets.rules.fact import Facts
from windlass.datasets.rules.findings import Findings
from windlass.datasets.rules.problem import WARNINGS, Code, Problem, in_order

Node = tuple[str, str]  # DAG and job
Writers = dict[UUID, list[Node]]  # of each dataset


class Report(msgspec.Struct, frozen=True):
    """The problems and warnings of a file. A file with problems cannot be deployed."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.problems


def check(reading: Reading, facts: Facts) -> Report:
    """Check what was read against the namespace. Fields that could not be read are not judged again."""
    dag = reading.draft
    if dag is None or reading.root is None:
        return Report(reading.problems)
    findings = Findings(reading, reading.root)
    check_job.check_jobs(dag, facts, findings)
    check_publish.check_publications(dag, facts, findings)
    _check_cycles(dag, facts, findings)
    problems = [problem for problem in findings.problems if problem.code not in WARNINGS]
    if not reading.problems and not problems:
        _warn(dag, facts, findings)
    warnings = in_order(problem for problem in findings.problems if problem.code in WARNINGS)
    return Report(in_order([*reading.problems, *problems]), warnings)


# --------------------------------------------------------------------------------------------- cycles


def _check_cycles(dag: Dag, facts: Facts, findings: Findings) -> None:
    """Each group of jobs that wait for each other is reported once, at the first input of this file that is part."""
    writers = _writers(dag, facts)
    inputs = {index: list(_sources(dag, facts, job, writers)) for index, job in enumerate(dag.jobs)}
    graph = _graph(dag, facts, inputs, writers)
    reported: set[frozenset[Node]] = set()
    group_of = {node: group for group in groups(graph) for node in group}
    for index, sources in inputs.items():
        reader = (dag.name, dag.jobs[index].name)
        for number, writer in sources:
            group = group_of.get(reader)
            if group is None or writer not in group or group in reported or writer == reader:
                continue
            reported.add(group)
            way = shortest(graph, reader, writer, group)
            names = [job if of == dag.name else f"{of}/{job}" for of, job in [*way, reader]]
            message = f"the jobs wait for each other: {_cut(names)}"
            findings.value(("jobs", index, "inputs", number, "from"), Code.CYCLE, message)


def _cut(names: list[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:6], "…", *names[-5:]]
    return " → ".join(shown)


def _graph(
    dag: Dag, facts: Facts, inputs: dict[int, list[tuple[int, Node]]], writers: Writers
) -> dict[Node, list[Node]]:
    """Each job with those that read what it writes."""
    graph: dict[Node, list[Node]] = {(dag.name, job.name): [] for job in dag.jobs}
    graph |= {(other.dag, other.job): [] for other in facts.jobs if other.dag != dag.name}
    for index, sources in inputs.items():
        for _, writer in sources:
            if writer in graph:
                graph[writer].append((dag.name, dag.jobs[index].name))
    for other in facts.jobs:
        if other.dag != dag.name:
            for each in other.inputs:
                for writer in writers.get(each.dataset_uuid, ()):
                    graph[writer].append((other.dag, other.job))
    return graph


def _writers(dag: Dag, facts: Facts) -> Writers:
    """Each dataset with the jobs that write it."""
    found: Writers = {}
    for dataset in dag.datasets(facts.namespace):
        found[dataset.dataset_uuid] = [(dag.name, job) for job, _ in dataset.writers if job in dag.job]
    for other in facts.jobs:
        for dataset_uuid in other.outputs if other.dag != dag.name else ():
            found.setdefault(dataset_uuid, []).append((other.dag, other.job))
    return found


def _sources(dag: Dag, facts: Facts, job: Job, writers: Writers) -> Iterator[tuple[int, Node]]:
    """The jobs that write what a job reads, each with the index of the input."""
    for number, source in enumerate(job.inputs):
        if own := dag.writers(source):
            yield from ((number, (dag.name, writer.job)) for writer in own)
        elif source.dataset and (known := facts.readable(dag.name, source.dataset)):
            yield from ((number, writer) for writer in writers.get(known.dataset_uuid, ()))


# --------------------------------------------------------------------------------------------- warnings


def _warn(dag: Dag, facts: Facts, findings: Findings) -> None:
    read = {output for job in dag.jobs for source in job.inputs for output in dag.writers(source)}
    for index, job in enumerate(dag.jobs):
        for number in range(job.outputs):
            output = Output(job.name, number)
            if output not in read and output not in dag.published:
                message = f"output {number} of {job.name} is neither published nor read by a job"
                findings.value(("jobs", index, "outputs"), Code.UNUSED_OUTPUT, message)
    others = {each.dataset_uuid for other in facts.jobs if other.dag != dag.name for each in other.inputs}
    for publication in dag.publish:
        dataset_uuid = dag.dataset_uuid(facts.namespace, publication.writers[0])
        if not publication.read_roles and dataset_uuid not in others and read.isdisjoint(publication.writers):
            message = f"no job reads {publication.name}, and no read_roles are named: only operators can read it"
            findings.key(("publish", publication.name), Code.NO_CONSUMER, message)
