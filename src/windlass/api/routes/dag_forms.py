"""The forms of DAGs: files, deployments, jobs and their tasks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import asdict

from windlass.api.framework.forms import In, Key, Name
from windlass.datasets.job_views import JobView, TaskOfJob
from windlass.datasets.rules.always_on import Condition
from windlass.datasets.rules.deployment import DeploymentState
from windlass.datasets.rules.plan import Plan
from windlass.datasets.rules.problem import Problem
from windlass.datasets.rules.status import PartitionStatus
from windlass.datasets.rules.why import Because, Why
from windlass.datasets.tables.dags import BuildProgress, DagView, DeploymentRow
from windlass.datasets.webhooks import WebhookView
from windlass.engine.manage.queues import SECRET_OVERLAP_S

CURSOR_MAX = 2**63 - 1
Cursor = Annotated[int, Meta(ge=-CURSOR_MAX - 1, le=CURSOR_MAX)]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]


# --------------------------------------------------------------------------------------------- requests


class DagFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A DAG file."""

    yaml: str


class PlanOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A DAG file. Jobs in `rebuild` get new versions of their outputs, though their definition is the same."""

    yaml: str
    rebuild: list[Name] = []


class DeployOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """A DAG file to deploy. With `plan_hash`, only if the plan is still that one. With `cutover` `manual`, a version
    that is ready waits until a person activates it."""

    yaml: str
    plan_hash: Key | None = None
    cutover: Literal["auto", "manual"] = "auto"
    rebuild: list[Name] = []


class ActivateOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The version to activate, by id or number. With `expect_active`, only if that version is the active one."""

    version: UUID | Number
    expect_active: UUID | None = None


class RollbackOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """With `expect_active`, only if that version is the active one."""

    expect_active: UUID | None = None


class EmitOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """What the source reports: a payload for its operator, and either a cursor or a partition."""

    payload: Raw | UnsetType = UNSET
    cursor: Cursor | None = None
    partition_key: Key | None = None
    first: Cursor | None = field(name="start", default=None)
    last: Cursor | None = field(name="end", default=None)


class WebhookSecretOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The secret of a webhook, as in Standard Webhooks: `whsec_` and at least 16 bytes in base64. The one before is
    accepted for `overlap_s` seconds more."""

    secret: Annotated[str, Meta(max_length=1000)]
    overlap_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = SECRET_OVERLAP_S


class WhyQuery(In, frozen=True, forbid_unknown_fields=True):
    """The partition that is asked for. A job that reads updates, and a source, are asked without one."""

    partition_key: Key | None = None


class VersionQuery(In, frozen=True, forbid_unknown_fields=True):
    """With `yaml`, the answer has the file."""

    yaml: bool = False


# --------------------------------------------------------------------------------------------- answers


class FileProblem(Struct, frozen=True):
    """What is wrong at a place of a file. Lines and columns count from 1."""

    line: int
    column: int
    path: str
    code: str
    message: str
    hint: str | UnsetType = UNSET


class ValidationForm(Struct, frozen=True):
    """The problems and warnings of a file, in its order. A file with problems cannot be deployed."""

    valid: bool
    name: str
    problems: list[FileProblem]
    warnings: list[FileProblem]


class PlanForm(Plan, frozen=True):
    """What a deploy of a file would change: its jobs, the datasets that it publishes, jobs of other DAGs that read
    them, and the queues that it makes. `owed` is what has to be built. `plan_hash` names it for the deploy."""

    warnings: tuple[FileProblem, ...] = ()  # type: ignore[assignment]  # the same fields, by a name of their own


class DagForm(Struct, frozen=True, kw_only=True):
    """A DAG. `jobs` is the number of jobs of its active version, `datasets` are those that it publishes."""

    name: str
    namespace: str
    active_version: UUID | None
    previous_version: UUID | None
    paused: bool
    retired: bool
    jobs: int
    datasets: list[str]


class BuiltForm(Struct, frozen=True):
    """The tasks of a job that is built: all, those that ended, and those that failed."""

    owed: int
    done: int
    failed: int


class DeploymentForm(Struct, frozen=True, kw_only=True):
    """One version of a DAG. `plan` is the plan that it was deployed with. `built` is how far its new jobs are, while it
    is built or waits for its cutover. `reason` is why it failed."""

    id: UUID
    dag: str
    number: int
    state: DeploymentState
    plan: Raw
    plan_hash: str
    built: dict[str, BuiltForm]
    created_by: str
    created_at: datetime
    ready_at: datetime | None
    activated_at: datetime | None
    ended_at: datetime | None
    reason: str | None
    yaml: str | UnsetType = UNSET


class TaskCounts(Struct, frozen=True):
    """The number of tasks that wait, run, and failed."""

    queued: int
    running: int
    failed: int


class JobForm(Struct, frozen=True, kw_only=True):
    """A job. While it is `held` it gets no tasks, because too many wait. A job that always runs has a `state`."""

    job: str
    operator: str
    runtime: str
    queue: str
    held: bool
    tasks: TaskCounts
    state: Condition | UnsetType = UNSET


class JobTaskForm(Struct, frozen=True, kw_only=True):
    """A task of a job. `trigger` is why it was made, without payload and body. `dedupe_key` is what it is owed for; a
    replay has none."""

    task_id: UUID
    state: str
    attempt: int
    dag_version: UUID
    dedupe_key: str | None
    trigger: Raw
    inputs: Raw
    created_at: datetime


class MissingForm(Struct, frozen=True):
    """A partition of an input that is not committed."""

    name: str
    partition_key: str


class WhyForm(Struct, frozen=True, kw_only=True):
    """Why a partition of a job is there or not. `because` is the first thing that is true, `detail` is a sentence,
    `task_id` is the task that makes it, and `missing` is what it waits for."""

    state: PartitionStatus
    because: Because
    detail: str
    task_id: UUID | UnsetType = UNSET
    missing: list[MissingForm] | UnsetType = UNSET


class WebhookForm(Struct, frozen=True, kw_only=True):
    """A webhook: where to send requests, and when its secret was set; null if it has none. The secret before is
    accepted until `previous_ends_at`."""

    dag: str
    job: str
    path: str
    secret_set_at: datetime | None
    previous_ends_at: datetime | None


class StartedForm(Struct, frozen=True):
    """The task that was started."""

    task_id: UUID


def problem_forms(problems: tuple[Problem, ...]) -> list[FileProblem]:
    return [
        FileProblem(one.line, one.column, one.path, one.code.value, one.message, one.hint or UNSET) for one in problems
    ]


def plan_form(plan: Plan) -> PlanForm:
    return PlanForm(**{**asdict(plan), "warnings": tuple(problem_forms(plan.warnings))})


def dag_form(dag: DagView) -> DagForm:
    return DagForm(
        name=dag.name, namespace=dag.namespace, active_version=dag.active_version,
        previous_version=dag.previous_version, paused=dag.paused, retired=dag.retired_at is not None, jobs=dag.jobs,
        datasets=list(dag.datasets),
    )  # fmt: skip


def deployment_form(
    row: DeploymentRow, built: Mapping[str, BuildProgress], yaml: str | UnsetType = UNSET
) -> DeploymentForm:
    return DeploymentForm(
        id=row.id, dag=row.dag, number=row.number, state=DeploymentState(row.state), plan=Raw(row.plan),
        plan_hash=row.plan_hash,
        built={job: BuiltForm(one.owed, one.done, one.failed) for job, one in sorted(built.items())},
        created_by=row.created_by, created_at=row.created_at, ready_at=row.ready_at, activated_at=row.activated_at,
        ended_at=row.ended_at, reason=row.reason, yaml=yaml,
    )  # fmt: skip


def job_form(job: JobView) -> JobForm:
    counts = job.counts
    return JobForm(
        job=job.name, operator=job.definition.operator, runtime=job.definition.runtime, queue=job.queue,
        held=counts.held, tasks=TaskCounts(counts.queued, counts.running, counts.failed),
        state=job.condition or UNSET,
    )  # fmt: skip


def webhook_form(namespace: str, found: WebhookView) -> WebhookForm:
    return WebhookForm(
        dag=found.dag, job=found.job, path=f"/hooks/{namespace}/{found.path}", secret_set_at=found.set_at,
        previous_ends_at=found.previous_until,
    )  # fmt: skip


def why_form(found: Why) -> WhyForm:
    return WhyForm(
        state=found.state, because=found.because, detail=found.detail, task_id=found.task_id or UNSET,
        missing=[MissingForm(one.name, one.partition_key) for one in found.missing] or UNSET,
    )  # fmt: skip


def task_form(task: TaskOfJob) -> JobTaskForm:
    return JobTaskForm(
        task_id=task.task_id, state=task.state, attempt=task.attempt, dag_version=task.dag_version,
        dedupe_key=task.dedupe_key, trigger=Raw(task.trigger), inputs=Raw(task.inputs), created_at=task.created_at,
    )  # fmt: skip
