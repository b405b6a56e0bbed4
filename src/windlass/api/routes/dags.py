"""DAGs: files that say which jobs make which datasets. Validate, plan, deploy, activate, roll back, pause, retire."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
from msgspec import UNSET

from windlass.api.framework import cursor
from windlass.api.framework.forms import In, Listed, Nothing, Paged
from windlass.api.framework.request import KEY_HEADER
from windlass.api.framework.route import Call, Table
from windlass.api.routes.dag_forms import (
    ActivateOrder,
    DagFile,
    DagForm,
    DeploymentForm,
    DeployOrder,
    EmitOrder,
    JobForm,
    JobTaskForm,
    PlanForm,
    PlanOrder,
    RollbackOrder,
    StartedForm,
    ValidationForm,
    VersionQuery,
    WebhookForm,
    WebhookSecretOrder,
    WhyForm,
    WhyQuery,
    dag_form,
    deployment_form,
    job_form,
    plan_form,
    problem_forms,
    task_form,
    webhook_form,
    why_form,
)
from windlass.core.access import Role
from windlass.core.validation import check_name
from windlass.datasets.dags import Dags
from windlass.datasets.job_views import JobViews
from windlass.datasets.requests import Order, order_of
from windlass.datasets.sources import Sources
from windlass.datasets.tables.dags import DeploymentRow
from windlass.datasets.webhooks import Webhooks
from windlass.datasets.why import Reasons
from windlass.errors import Invalid, Malformed
from windlass.net.asgi import NO_STORE, Response
from windlass.net.ids import parse_id

table = Table("dags")

NUMBER_MAX = 2**31 - 1


# --------------------------------------------------------------------------------------------- files


@table.add("POST", "/api/v1/dags/validate", Role.VIEWER, headers=(KEY_HEADER,))
async def validate_dag(call: Call[In, DagFile]) -> ValidationForm:
    """Check a DAG file. All of its problems are returned, each with its place; nothing is written."""
    namespace = call.namespace(call.query.namespace)
    found = await _dags(call).validate(call.body.yaml, namespace=namespace, caller=call.principal)
    report = found.report
    return ValidationForm(found.valid, found.name, problem_forms(report.problems), problem_forms(report.warnings))


@table.add("POST", "/api/v1/dags/{dag}/plan", Role.VIEWER, headers=(KEY_HEADER,))
async def plan_dag(call: Call[In, PlanOrder]) -> PlanForm:
    """Plan the deploy of a DAG file: what it would change, and what would be built. Nothing is written."""
    namespace, dag = _place(call)
    order = call.body
    return plan_form(
        await _dags(call).plan(dag, order.yaml, namespace=namespace, rebuild=order.rebuild, caller=call.principal)
    )


@table.add(
    "POST", "/api/v1/dags/{dag}/versions", Role.OPERATOR, status=201, known_status=200, headers=(KEY_HEADER,)
)  # fmt: skip
async def deploy_dag(call: Call[In, DeployOrder]) -> DeploymentForm | Response:
    """Deploy a DAG file. Its new version is built beside the active one. A file that is a version already is answered
    with that version and status 200; it is activated again if another one is active."""
    (namespace, dag), order = _place(call), call.body
    await call.engine.keys.declare_namespace(namespace)
    deployment, new = await _dags(call).deploy(
        dag,
        order.yaml,
        namespace=namespace,
        plan_hash=order.plan_hash,
        auto_cutover=order.cutover == "auto",
        rebuild=order.rebuild,
        caller=call.principal,
        order=_order(call, "deploy"),
    )
    form = await _deployment_form(call, deployment)
    return form if new else Response(msgspec.json.encode(form), 200, headers=(NO_STORE,))


# --------------------------------------------------------------------------------------------- reads


@table.add("GET", "/api/v1/dags", Role.VIEWER)
async def list_dags(call: Call[Paged, None]) -> Listed[DagForm]:
    """List DAGs by name."""
    query = call.query
    found = await _dags(call).page(
        namespace=call.namespace(query.namespace), after=cursor.to_name(query.after), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = page[-1].name if len(found) > query.limit else None
    return Listed([dag_form(dag) for dag in page], cursor.of_name(more))


@table.add("GET", "/api/v1/dags/{dag}", Role.VIEWER)
async def get_dag(call: Call[In, None]) -> DagForm:
    """Get a DAG."""
    namespace, dag = _place(call)
    return dag_form(await _dags(call).get(dag, namespace=namespace))


@table.add("GET", "/api/v1/dags/{dag}/versions", Role.VIEWER)
async def list_dag_versions(call: Call[Paged, None]) -> Listed[DeploymentForm]:
    """List the versions of a DAG, newest first."""
    (namespace, dag), limit = _place(call), call.query.limit
    found = await _dags(call).deployments(
        dag, namespace=namespace, before=cursor.to_number(call.query.after), limit=limit + 1
    )
    page = found[:limit]
    built = await call.engine.service(JobViews).built(page)
    more = page[-1].number if len(found) > limit else None
    return Listed([deployment_form(row, built.get(row.id, {})) for row in page], cursor.of_number(more))


@table.add("GET", "/api/v1/dags/{dag}/versions/{version}", Role.VIEWER)
async def get_dag_version(call: Call[VersionQuery, None]) -> DeploymentForm:
    """Get a version of a DAG by its id or number. With `yaml=true`, also its file."""
    namespace, dag = _place(call)
    deployment = await _dags(call).deployment(dag, _version(call), namespace=namespace)
    return await _deployment_form(call, deployment, yaml=call.query.yaml)


# --------------------------------------------------------------------------------------------- cutover


@table.add("PUT", "/api/v1/dags/{dag}/active", Role.OPERATOR)
async def activate_dag_version(call: Call[In, ActivateOrder]) -> DagForm:
    """Activate a version that is ready or was active before. Readers see its data from their next query on."""
    (namespace, dag), order = _place(call), call.body
    return dag_form(
        await _dags(call).activate(dag, order.version, namespace=namespace, expect_active=order.expect_active)
    )


@table.add("POST", "/api/v1/dags/{dag}/rollback", Role.OPERATOR, headers=(KEY_HEADER,))
async def roll_back_dag(call: Call[In, RollbackOrder]) -> DagForm:
    """Activate the version that was active before. A repeat would go forward again: send an Idempotency-Key or
    `expect_active`."""
    (namespace, dag), expected = _place(call), call.body.expect_active
    order = _order(call, "rollback")
    return dag_form(await _dags(call).rollback(dag, namespace=namespace, expect_active=expected, order=order))


@table.add("POST", "/api/v1/dags/{dag}/versions/{version}/abandon", Role.OPERATOR, headers=(KEY_HEADER,))
async def abandon_dag_version(call: Call[In, Nothing]) -> DeploymentForm:
    """Give up a version that is not active. The tasks that build it are cancelled."""
    (namespace, dag), version = _place(call), _version(call)
    order = _order(call, "abandon", str(version))
    return await _deployment_form(call, await _dags(call).abandon(dag, version, namespace=namespace, order=order))


# --------------------------------------------------------------------------------------------- pause and retire


@table.add("POST", "/api/v1/dags/{dag}/pause", Role.OPERATOR, headers=(KEY_HEADER,))
async def pause_dag(call: Call[In, Nothing]) -> DagForm:
    """Pause a DAG. Its jobs get no new tasks; what they are owed meanwhile stays owed."""
    namespace, dag = _place(call)
    return dag_form(await _dags(call).pause(dag, namespace=namespace, order=_order(call, "pause")))


@table.add("POST", "/api/v1/dags/{dag}/resume", Role.OPERATOR, headers=(KEY_HEADER,))
async def resume_dag(call: Call[In, Nothing]) -> DagForm:
    """Resume a paused DAG."""
    namespace, dag = _place(call)
    return dag_form(await _dags(call).pause(dag, namespace=namespace, paused=False, order=_order(call, "resume")))


@table.add("DELETE", "/api/v1/dags/{dag}", Role.OPERATOR)
async def retire_dag(call: Call[In, None]) -> DagForm:
    """Retire a DAG. Its sources stop and its tasks are cancelled; its data stays."""
    namespace, dag = _place(call)
    return dag_form(await _dags(call).retire(dag, namespace=namespace))


# --------------------------------------------------------------------------------------------- jobs


@table.add("GET", "/api/v1/dags/{dag}/jobs", Role.VIEWER)
async def list_dag_jobs(call: Call[Paged, None]) -> Listed[JobForm]:
    """List the jobs of the active version of a DAG by name; of the newest version, if none is active."""
    (namespace, dag), query = _place(call), call.query
    found = await call.engine.service(JobViews).jobs(
        dag, namespace=namespace, after=cursor.to_name(query.after), limit=query.limit + 1
    )
    page = found[: query.limit]
    more = page[-1].name if len(found) > query.limit else None
    return Listed([job_form(job) for job in page], cursor.of_name(more))


@table.add("GET", "/api/v1/dags/{dag}/jobs/{job}/tasks", Role.VIEWER)
async def list_dag_job_tasks(call: Call[Paged, None]) -> Listed[JobTaskForm]:
    """List the tasks of a job in all versions of its DAG, newest first."""
    (namespace, dag), limit = _place(call), call.query.limit
    found = await call.engine.service(JobViews).tasks(
        dag, _job(call), namespace=namespace, after=cursor.to_position(call.query.after), limit=limit + 1
    )
    page, more = cursor.page_of(found, limit, lambda task: (task.created_at, task.task_id))
    return Listed([task_form(task) for task in page], more)


@table.add("GET", "/api/v1/dags/{dag}/jobs/{job}/why", Role.VIEWER)
async def explain_dag_job(call: Call[WhyQuery, None]) -> WhyForm:
    """Explain why a partition of a job is there or not. A job that reads updates, and a source, are asked without a
    partition."""
    namespace, dag = _place(call)
    found = await call.engine.service(Reasons).why(
        dag, _job(call), namespace=namespace, partition_key=call.query.partition_key
    )
    return why_form(found)


@table.add(
    "POST", "/api/v1/dags/{dag}/jobs/{job}/emit", Role.SUBMITTER, status=201, headers=(KEY_HEADER,),
    errors=(400, 401, 403, 404, 409, 413, 422, 429, 503),
)  # fmt: skip
async def emit_from_source(call: Call[In, EmitOrder]) -> StartedForm:
    """Start a task of a source by hand. A repeated Idempotency-Key returns the same task."""
    (namespace, dag), order = _place(call), call.body
    in_partition = (order.partition_key, order.first, order.last) != (None, None, None)
    if order.cursor is not None and in_partition:
        raise Invalid("give a cursor or a partition, not both", field="cursor")
    if in_partition and order.partition_key is None:
        raise Invalid("a partition needs its key", field="partition_key")
    payload = None if order.payload is UNSET else msgspec.json.decode(order.payload)
    task_id = await call.engine.service(Sources).emit(
        dag,
        _job(call),
        namespace=namespace,
        key=call.key,
        payload=payload,
        cursor=order.cursor,
        partition_key=order.partition_key,
        start=order.first,
        end=order.last,
    )
    return StartedForm(task_id)


@table.add("PUT", "/api/v1/dags/{dag}/jobs/{job}/webhook-secret", Role.ADMIN)
async def set_webhook_secret(call: Call[In, WebhookSecretOrder]) -> WebhookForm:
    """Set the secret that signs requests to the webhook of a job. It is never shown. For `overlap_s` seconds, the one
    before is accepted too."""
    (namespace, dag), order = _place(call), call.body
    found = await call.engine.service(Webhooks).set_secret(
        dag, _job(call), order.secret, namespace=namespace, overlap_s=order.overlap_s
    )
    return webhook_form(namespace, found)


@table.add("DELETE", "/api/v1/dags/{dag}/jobs/{job}/webhook-secret", Role.ADMIN)
async def remove_webhook_secret(call: Call[In, None]) -> WebhookForm:
    """Remove the secret of a webhook. Requests to it need a key from now on."""
    namespace, dag = _place(call)
    return webhook_form(
        namespace, await call.engine.service(Webhooks).remove_secret(dag, _job(call), namespace=namespace)
    )


# --------------------------------------------------------------------------------------------- parts


def _order(call: Call[Any, Any], verb: str, *parts: object) -> Order | None:
    """The request, if it has an Idempotency-Key."""
    return order_of(call.key, verb, call.path["dag"], *parts, call.body)


def _dags(call: Call[Any, Any]) -> Dags:
    return call.engine.service(Dags)


def _place(call: Call[Any, Any]) -> tuple[str, str]:
    """The namespace, and the DAG in the path."""
    check_name("dag", call.path["dag"])
    return call.namespace(call.query.namespace), call.path["dag"]


def _job(call: Call[Any, Any]) -> str:
    check_name("job", call.path["job"])
    return call.path["job"]


def _version(call: Call[Any, Any]) -> UUID | int:
    """The version in the path: an id, or a number."""
    text = call.path["version"]
    if text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= NUMBER_MAX:
        return int(text)
    id_ = parse_id("deployment", text)
    if id_ is None:
        raise Malformed(f"{text[:100]!r} is neither the id nor the number of a version", field="version")
    return id_


async def _deployment_form(call: Call[Any, Any], row: DeploymentRow, *, yaml: bool = False) -> DeploymentForm:
    built = await call.engine.service(JobViews).built([row])
    return deployment_form(row, built.get(row.id, {}), await _dags(call).yaml(row.id) if yaml else UNSET)
