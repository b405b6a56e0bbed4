"""Runs over the wire: start, get, list, cancel, and what is refused."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from tests.contracts.registry.client import Client, Refused, shown

from windlass import Engine
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.core.access import Role

pytestmark = pytest.mark.slow


async def test_a_run_is_started_and_told_with_all_that_was_given(client: Client) -> None:
    deadline = Timestamp()
    deadline.FromDatetime(datetime(2100, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
    run_id = await client.start(
        "invoice", "billing", {"n": 1}, workflow_id="order-7", context=b'{"tenant": "acme"}', version="3",
        deadline_at=deadline, namespace_id="shop",
    )  # fmt: skip

    run = await client.run(run_id, namespace_id="shop")

    assert (run.run_id, run.business_id, run.task_queue, run.workflow_type) == (run_id, "order-7", "billing", "invoice")
    assert (run.namespace_id, run.version, run.attempts, run.worker_id) == ("shop", "3", 0, "")
    assert (json.loads(run.input), run.output, json.loads(run.context)) == ({"n": 1}, b"", {"tenant": "acme"})
    assert shown(run.status) == "PENDING"
    assert run.deadline_at == deadline
    assert run.HasField("error")
    assert (run.error.code, run.error.message) == (0, "")
    assert run.HasField("created_at")
    assert not run.HasField("started_at")
    assert not run.HasField("finished_at")


async def test_an_empty_input_is_null_and_defaults_are_filled_in(client: Client, live_engine: Engine) -> None:
    started = await client.StartWorkflow(workflow_type="greet", task_queue="q")
    run = await client.run(started.run_id)

    assert (run.input, run.version, run.business_id, run.namespace_id) == (b"null", "1", "", "default")
    policy = (await live_engine.tasks.get(UUID(started.run_id))).task.policy
    assert (policy.max_attempts, policy.max_losses) == (5, 5)
    assert (policy.retry_delay_s, policy.retry_factor, policy.retry_delay_max_s) == (1.0, 2.0, 60.0)


async def test_a_retry_policy_is_taken_field_by_field(client: Client, live_engine: Engine) -> None:
    given = pb.RetryPolicy(maximum_attempts=-1, initial_interval_ms=200, backoff_coefficient=3.0)
    run_id = await client.start(retry_policy=given)

    policy = (await live_engine.tasks.get(UUID(run_id))).task.policy

    assert policy.max_attempts == policy.max_losses == 1_000_000
    assert (policy.retry_delay_s, policy.retry_factor, policy.retry_delay_max_s) == (0.2, 3.0, 60.0)


async def test_the_same_idempotency_key_is_the_same_run_whatever_else_is_said(client: Client) -> None:
    first = await client.start(payload=1, idempotency_key="once")

    assert await client.start(payload=1, idempotency_key="once") == first
    assert await client.start("other", "elsewhere", 2, idempotency_key="once") == first
    assert await client.start(payload=1, idempotency_key="once", namespace_id="shop") != first


async def test_a_crowd_with_one_idempotency_key_starts_one_run(client: Client) -> None:
    started = await asyncio.gather(*(client.start(payload=n, idempotency_key="crowd") for n in range(20)))

    assert len(set(started)) == 1


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"workflow_type": "", "task_queue": "q"}, "workflow_type"),
        ({"workflow_type": "a", "task_queue": ""}, "task_queue"),
        ({"workflow_type": "a", "task_queue": "q", "input": b"{"}, "input"),
        ({"workflow_type": "a", "task_queue": "q", "context": b"nope"}, "context"),
        ({"workflow_type": "a", "task_queue": "q", "namespace_id": "a\nb"}, "namespace_id"),
        ({"workflow_type": "a", "task_queue": "q", "deadline_at": Timestamp(seconds=2**62)}, "deadline_at"),
        ({"workflow_type": "a", "task_queue": "q", "retry_policy": pb.RetryPolicy(initial_interval_ms=-1)}, "initial"),
        ({"workflow_type": "a", "task_queue": "q", "retry_policy": pb.RetryPolicy(backoff_coefficient=0.5)}, "backoff"),
    ],
)
async def test_what_cannot_be_started_is_refused_with_the_field_named(
    client: Client, fields: dict[str, Any], field: str
) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", field) as refused:
        await client.StartWorkflow(**fields)

    assert refused.detail.non_retryable
    assert field in refused.detail.message
    assert not (await client.ListWorkflowRuns()).workflow_runs


async def test_too_large_a_payload_is_refused(client: Client) -> None:
    with Refused("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "input"):
        await client.start(payload="x" * (2 * 1024 * 1024))


async def test_too_large_a_message_is_refused_before_it_is_read(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.start(payload="x" * (9 * 1024 * 1024))

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_unknown_run_is_not_found(client: Client) -> None:
    unknown = str(uuid4())

    with Refused("NOT_FOUND", "NOT_FOUND") as refused:
        await client.GetWorkflowRun(run_id=unknown)

    assert (refused.detail.subject, refused.detail.subject_id) == ("workflow_run", unknown)
    assert refused.detail.non_retryable
    with Refused("NOT_FOUND", "NOT_FOUND"):
        await client.CancelWorkflowRun(run_id=unknown)


@pytest.mark.parametrize("method", ["GetWorkflowRun", "CancelWorkflowRun"])
async def test_what_is_no_id_is_an_invalid_argument(client: Client, method: str) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "run_id"):
        await getattr(client, method)(run_id="not-a-uuid")


async def test_a_run_of_another_namespace_is_not_there(client: Client) -> None:
    run_id = await client.start(namespace_id="shop")

    for method in ("GetWorkflowRun", "CancelWorkflowRun"):
        for other in ("other", ""):  # which means the default one, also for a key that reaches all
            with Refused("NOT_FOUND", "NOT_FOUND"):
                await getattr(client, method)(run_id=run_id, namespace_id=other)


async def test_paging_neither_loses_nor_repeats_a_run(client: Client) -> None:
    started = [await client.start(payload=n) for n in range(7)]
    seen: list[str] = []
    token = ""
    while True:
        page = await client.ListWorkflowRuns(page_size=3, page_token=token)
        seen += [run.run_id for run in page.workflow_runs]
        token = page.next_page_token
        assert page.prev_page_token == ""
        assert page.has_more is bool(token)
        if not token:
            break

    assert seen == started[::-1]


async def test_a_page_has_its_default_and_its_longest_size(client: Client, live_engine: Engine) -> None:
    for n in range(105):
        await client.start(payload=n)

    assert len((await client.ListWorkflowRuns()).workflow_runs) == 20
    assert len((await client.ListWorkflowRuns(page_size=1000)).workflow_runs) == 100


async def test_runs_are_filtered_by_status(client: Client) -> None:
    waiting, cancelled = await client.start(), await client.start()
    await client.CancelWorkflowRun(run_id=cancelled)

    async def with_status(status: str) -> list[str]:
        return [run.run_id for run in (await client.ListWorkflowRuns(filter_status=status)).workflow_runs]

    assert await with_status("PENDING") == [waiting]
    assert await with_status("CANCELLED") == [cancelled]
    assert await with_status("RUNNING") == await with_status("SLEEPING") == await with_status("COMPLETED") == []
    for wrong in ("pending", "UNSPECIFIED", "OTHER"):
        with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "filter_status"):
            await client.ListWorkflowRuns(filter_status=wrong)


@pytest.mark.parametrize("token", ["nope", "AAAA", "!!!!"])
async def test_a_page_token_that_nobody_gave_is_an_invalid_argument(client: Client, token: str) -> None:
    with Refused("INVALID_ARGUMENT", "INVALID_ARGUMENT", "page_token"):
        await client.ListWorkflowRuns(page_token=token)


async def test_a_waiting_run_is_cancelled_once(client: Client) -> None:
    run_id = await client.start()

    await client.CancelWorkflowRun(run_id=run_id)

    assert await client.status(run_id) == "CANCELLED"
    with Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED"):
        await client.CancelWorkflowRun(run_id=run_id)


async def test_nothing_is_answered_without_a_key_but_health(client: Client, server: str, connect: Any) -> None:
    stranger = connect(server, key=None)

    assert (await stranger.HealthCheck()).status == pb.HealthCheckResponse.SERVING
    for method in ("ListWorkflowRuns", "GetWorkflowRun", "StartWorkflow", "CreateSchedule"):
        with Refused("UNAUTHENTICATED", "UNAUTHORIZED"):
            await getattr(stranger, method)()
    with Refused("UNAUTHENTICATED", "UNAUTHORIZED"):
        await connect(server, key="wl_wrong").ListWorkflowRuns()


async def test_a_key_opens_its_own_namespace_only(live_engine: Engine, server: str, connect: Any) -> None:
    _, key = await live_engine.keys.create_key(name="shop", role=Role.SUBMITTER, namespace="shop")
    _, viewer = await live_engine.keys.create_key(name="eye", role=Role.VIEWER, namespace="shop")
    theirs = await connect(server).start()
    shop = connect(server, key=key)

    ours = await shop.start(namespace_id="shop")

    assert (await shop.run(ours, namespace_id="shop")).namespace_id == "shop"
    with Refused("NOT_FOUND", "NOT_FOUND"):
        await shop.run(theirs, namespace_id="shop")
    for default in ("default", ""):
        with Refused("PERMISSION_DENIED", "UNAUTHORIZED"):
            await shop.start(namespace_id=default)
        with Refused("PERMISSION_DENIED", "UNAUTHORIZED"):
            await shop.run(theirs, namespace_id=default)
    with Refused("PERMISSION_DENIED", "UNAUTHORIZED"):
        await connect(server, key=viewer).start()


async def test_every_method_of_the_proto_is_served(server: str, connect: Any) -> None:
    """And each wants a key: a method without a handler would say UNIMPLEMENTED."""
    stranger = connect(server, key=None)

    for name in pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name:
        if name != "HealthCheck":
            with Refused("UNAUTHENTICATED", "UNAUTHORIZED"):
                await getattr(stranger, name)()
