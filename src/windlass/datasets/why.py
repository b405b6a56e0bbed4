"""Answers why a job has, or has not, processed a partition or all of its updates. Takes no locks."""

from __future__ import annotations

from msgspec.structs import replace

from windlass.core.states import State
from windlass.datasets.rules.dag import ExecutionStrategy, When
from windlass.datasets.rules.why import Facts, InputState, TaskState, Why, why
from windlass.datasets.tables.catalog import CatalogTable, InputVersion
from windlass.datasets.tables.jobs import JobTable, LiveEdge
from windlass.datasets.tables.why import JobFacts, Progress, WhyTable
from windlass.engine.engine import Engine
from windlass.errors import Invalid, NotFound
from windlass.store.transaction import Transaction

NOTHING = Progress(None, None, None)


class Reasons:
    """The reasons of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def why(self, dag: str, job: str, *, namespace: str = "default", partition_key: str | None = None) -> Why:
        """Why a partition of a job is as it is. A job that reads updates, and a source, are asked without a partition.
        Raises NotFound, and Invalid if the job has no partitions or needs one."""
        async with self._store.begin() as tx:
            found = await WhyTable(tx.session).job(namespace, dag, job)
            if found is None:
                raise NotFound(f"there is no DAG {dag} with a job {job} in {namespace}", dag=dag, job=job)
            _check(found, job, partition_key)
            edges = [edge for edge in await JobTable(tx.session).edges_of([found.id]) if edge.trigger]
            inputs = await _inputs(tx, found, edges, partition_key)
            task = await _task(tx, found, edges, partition_key)
            has_result = await _has_result(tx, found, partition_key, inputs, task)
        if partition_key is not None and not found.outputs and has_result:
            inputs = [replace(each, made=each.given) for each in inputs]
        return why(
            Facts(
                job=job, partition_key=partition_key or "", live=found.live, has_result=has_result,
                inputs=tuple(inputs), needs_all=found.job.when is When.ALL, task=task, paused=found.paused,
                held_by=found.held_by,
            )
        )  # fmt: skip


def _check(found: JobFacts, job: str, partition_key: str | None) -> None:
    strategy = found.job.execution_strategy
    if strategy is ExecutionStrategy.PER_PARTITION and partition_key is None:
        raise Invalid(f"job {job} works by partitions: say which", field="partition_key")
    if strategy is ExecutionStrategy.PER_UPDATE and partition_key is not None:
        raise Invalid(f"job {job} reads updates: it has no partitions of its own", field="partition_key")


async def _inputs(
    tx: Transaction, found: JobFacts, edges: list[LiveEdge], partition_key: str | None
) -> list[InputState]:
    """The inputs that trigger a job, and why those that are not there are missing."""
    table = WhyTable(tx.session)
    labels = await table.labels({edge.dataset_uuid for edge in edges})
    given = [(edge.input_index, edge.dataset_version) for edge in edges if edge.dataset_version is not None]
    if partition_key is None:
        progress = await table.cursor_inputs(found, given)
    else:
        progress = await table.partition_inputs(found, partition_key, given)
    inputs = []
    for edge in edges:
        known = progress.get(edge.input_index, NOTHING)
        cause = await _cause(tx, edge, partition_key) if known.newest is None else ""
        name = labels.get(edge.dataset_uuid, str(edge.dataset_uuid))
        inputs.append(InputState(name=name, partition_key=partition_key or "", cause=cause, **known._asdict()))
    return inputs


async def _cause(tx: Transaction, edge: LiveEdge, partition_key: str | None) -> str:
    """What the job that writes an input does."""
    if edge.dataset_version is None:
        return "no version of its DAG is active"
    writers = await CatalogTable(tx.session).jobs(edge.dataset_version)
    task = None
    if partition_key is not None:
        task = await _partition_task(tx, await JobTable(tx.session).edges_of(writers), partition_key)
    return _progress(task or await WhyTable(tx.session).newest_task(writers))


def _progress(task: TaskState | None) -> str:
    if task is None or task.state not in ("queued", "running", "failed"):
        return ""
    tries = f" {task.attempt} of {task.max_attempts}" if task.max_attempts else ""
    if task.reason:
        return f"task {task.task_id} failed{tries}: {task.reason}"
    return f"task {task.task_id} is {task.state}"


async def _task(tx: Transaction, found: JobFacts, edges: list[LiveEdge], partition_key: str | None) -> TaskState | None:
    if partition_key is not None and edges:
        return await _partition_task(tx, edges, partition_key)
    return await WhyTable(tx.session).newest_task([found.id])


async def _partition_task(tx: Transaction, edges: list[LiveEdge], key: str) -> TaskState | None:
    """The newest task that was made for a partition of these inputs."""
    inputs = [
        InputVersion(edge.job_id, edge.input_index, edge.dataset_version)
        for edge in edges
        if edge.trigger and edge.by_partition and edge.dataset_version is not None
    ]
    making = (await CatalogTable(tx.session).tasks([key], inputs)).get(key)
    return None if making is None else await WhyTable(tx.session).task(making.id)


async def _has_result(
    tx: Transaction, found: JobFacts, partition_key: str | None, inputs: list[InputState], task: TaskState | None
) -> bool:
    if partition_key is None and inputs:
        return any(each.made is not None for each in inputs)
    if partition_key is not None and found.outputs:
        return await WhyTable(tx.session).has_partition(found.outputs, partition_key)
    return task is not None and task.state == State.SUCCEEDED
