"""Queues that call a function for each task: at a URL, and of AWS Lambda, through a server that speaks its API."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import pytest
from tests.contracts.lease.function import Function, function
from tests.contracts.lease.world import SCRATCH, Holder, World
from tests.kit.ports import free_port
from tests.kit.world import ok, refused

from windlass import State
from windlass.contracts.lease.delivery import INVOKE, Invoke
from windlass.contracts.lease.server.invoke import Invoker
from windlass.contracts.lease.server.lambda_function import Lambda
from windlass.contracts.lease.wakeups.carriers.aws import AwsClient
from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS, CarrierOptions
from windlass.contracts.lease.wakeups.doctor import examine_carriers
from windlass.core.queue import QueueConfig
from windlass.core.retry import Policy
from windlass.engine.read.doctor import Level
from windlass.engine.send.outbox import NotNow
from windlass.errors import NotFound, Unauthenticated
from windlass.net.signature import check_signature, signing_key
from windlass.net.targets import Targets, read_targets

pytestmark = pytest.mark.slow

QUEUE = "functions"
LEASE_S = 120


@pytest.fixture
async def called(world: World) -> AsyncIterator[Function]:
    """A function at a URL, and an engine that calls it when a test lets it."""
    async with function() as made:
        await set_up(world, Invoke(url=made.url, lease_ms=LEASE_S * 1000))
        world.engine.parts.effects[INVOKE] = Invoker(
            world.engine, scratch_uri=SCRATCH, targets=read_targets("loopback")
        ).invoke
        yield made


async def set_up(world: World, delivery: Invoke, **limits: Any) -> None:
    await world.engine.queues.put(QUEUE, delivery=delivery, limits=QueueConfig(**limits))


async def send_out(world: World) -> None:
    while await world.engine.parts.outgoing.dispatch_tick() + await world.engine.loops.effects_tick():
        pass


async def submit(world: World, **fields: Any) -> UUID:
    task_id = await world.submit(queue=QUEUE, **fields)
    await send_out(world)
    return task_id


def holder(world: World, call: dict[str, Any]) -> Holder:
    return Holder(world, {"task": call, "attempt": call["attempt"], "lease_token": call["lease_token"]})


async def test_a_function_gets_all_that_it_needs_and_reports_like_any_worker(world: World, called: Function) -> None:
    task_id = await submit(world, wire={"job": {"dag_name": "monad", "name": "follow"}, "inputs": [{"a": 1}]})

    [call] = called.calls
    assert {name: call[name] for name in ("task_id", "attempt", "job", "operator", "config", "inputs")} == {
        "task_id": str(task_id), "attempt": 1, "job": {"dag_name": "monad", "name": "follow"},
        "operator": "block_follower", "config": {"chain": 1}, "inputs": [{"a": 1}],
    }  # fmt: skip
    assert call["scratch_uri"].startswith(SCRATCH)
    assert call["lease_expires_at"] > (await world.clock.now()).isoformat()
    assert (await world.task(task_id)).state is State.RUNNING
    ok(await holder(world, call).heartbeat())
    ok(await holder(world, call).complete(outputs=[]))
    assert (await world.task(task_id)).state is State.SUCCEEDED


async def test_the_lease_is_taken_before_the_function_is_called(world: World, called: Function) -> None:
    task_id = await world.submit(queue=QUEUE)
    await world.engine.parts.outgoing.dispatch_tick()

    assert called.calls == []
    assert (await world.task(task_id)).state is State.RUNNING
    assert (await world.claim(task_id))["reason"] == "AlreadyRunning"
    await send_out(world)
    assert len(called.calls) == 1


async def test_limits_hold_for_functions(world: World, called: Function) -> None:
    await set_up(world, Invoke(url=called.url), max_running=1)
    first, second = await submit(world), await submit(world)
    assert [call["task_id"] for call in called.calls] == [str(first)]

    ok(await holder(world, called.calls[0]).complete())
    await send_out(world)
    assert [call["task_id"] for call in called.calls] == [str(first), str(second)]


async def test_a_function_that_did_not_take_a_task_is_called_again_with_the_same_key(
    world: World, called: Function
) -> None:
    called.answers = [(500, {}), (302, {"location": "http://127.0.0.1:1/"}), (503, {"retry-after": "7"})]
    await submit(world)
    for _ in range(3):
        await world.clock.advance(10.0)
        await send_out(world)

    assert len(called.calls) == 4
    assert len({headers["idempotency-key"] for headers in called.headers}) == 1
    assert len({call["lease_token"] for call in called.calls}) == 1


async def test_a_function_that_is_silent_loses_its_attempt_and_the_next_has_another_token(
    world: World, called: Function
) -> None:
    await submit(world)
    await world.expire(LEASE_S)
    await world.clock.advance(600.0)
    await send_out(world)

    first, second = called.calls
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert first["lease_token"] != second["lease_token"]
    refused(await holder(world, first).complete(), 409, "stale_lease")
    ok(await holder(world, second).complete())


async def test_a_task_with_a_lease_of_its_own_loses_its_attempt_sooner(world: World, called: Function) -> None:
    task_id = await submit(world, policy=Policy(lease_s=30.0))
    [call] = called.calls
    assert datetime.fromisoformat(call["lease_expires_at"]) == await world.clock.now() + timedelta(seconds=30)
    await world.expire(29)
    assert (await world.task(task_id)).state == "running"

    await world.expire(2)

    assert (await world.task(task_id)).state == "queued"


async def test_a_heartbeat_extends_the_lease_and_no_second_call_is_made(world: World, called: Function) -> None:
    called.answers = [(500, {})]  # its answer was lost, say
    task_id = await submit(world)
    ok(await holder(world, called.calls[0]).heartbeat())
    await world.clock.advance(5.0)
    await send_out(world)
    assert len(called.calls) == 1

    await world.expire(LEASE_S - 10)
    assert (await world.task(task_id)).state is State.RUNNING
    ok(await holder(world, called.calls[0]).heartbeat())
    await world.expire(LEASE_S - 10)
    assert (await world.task(task_id)).state is State.RUNNING


def signed_by(world_now: datetime, called: Function, place: int, secret: str) -> str:
    """The id under which a call was signed with this secret."""
    return check_signature(
        [signing_key(secret)], called.headers[place], called.bodies[place], world_now.timestamp(), tolerance_s=1
    )


async def secret_of(world: World) -> str:
    secret = (await world.engine.queues.get(QUEUE)).settings.signing_secret
    assert secret is not None
    return secret


async def test_a_call_is_signed_as_pushes_are(world: World, called: Function) -> None:
    called.answers = [(500, {})]
    await submit(world)
    first = signed_by(await world.clock.now(), called, 0, await secret_of(world))
    await world.clock.advance(10.0)
    await send_out(world)
    now = await world.clock.now()

    assert signed_by(now, called, 1, await secret_of(world)) == first == called.headers[0]["idempotency-key"]
    with pytest.raises(Unauthenticated, match="does not match"):
        signed_by(now, called, 1, "whsec_" + base64.b64encode(bytes(32)).decode())
    called.bodies[1] += b" "
    with pytest.raises(Unauthenticated, match="does not match"):
        signed_by(now, called, 1, await secret_of(world))


async def test_a_secret_of_calls_is_rotated_without_a_moment_in_which_one_is_refused(
    world: World, called: Function
) -> None:
    old = await secret_of(world)
    new = (await world.engine.queues.rotate_secret(QUEUE, overlap_s=60.0)).settings.signing_secret
    assert new not in (None, old)
    await submit(world)
    now = await world.clock.now()
    assert signed_by(now, called, 0, old) == signed_by(now, called, 0, str(new))

    await world.clock.advance(61.0)
    world.engine.parts.outgoing.dispatcher.mark(None)
    await submit(world)
    now = await world.clock.now()
    assert signed_by(now, called, 1, str(new))
    with pytest.raises(Unauthenticated):
        signed_by(now, called, 1, old)


async def test_a_function_of_aws_has_no_secret_of_ours(world: World) -> None:
    await set_up(world, Invoke(function="resize"))
    assert (await world.engine.queues.get(QUEUE)).settings.signing_secret is None
    with pytest.raises(NotFound):
        await world.engine.queues.rotate_secret(QUEUE)


async def test_no_call_goes_to_an_address_of_the_machine_itself(world: World, called: Function) -> None:
    world.engine.parts.effects[INVOKE] = Invoker(world.engine, scratch_uri=SCRATCH, targets=Targets()).invoke
    task_id = await submit(world)

    assert called.calls == []
    [dead] = await world.engine.parts.repair.effects(dead=True)
    assert "push_targets" in (dead.error or "")
    assert (await world.task(task_id)).state is State.QUEUED


# --------------------------------------------------------------------------------------------- AWS Lambda


@pytest.fixture
def aws(aws_port: int) -> CarrierOptions:
    url = f"http://127.0.0.1:{aws_port}"
    httpx.post(f"{url}/moto-api/config", json={"lambda": {"use_docker": False}}, timeout=60).raise_for_status()
    return CarrierOptions(aws_region="eu-west-1", aws_endpoint_url=url)


@pytest.fixture
async def resize(aws: CarrierOptions) -> AsyncIterator[str]:
    """A function that AWS knows."""
    iam, functions = AwsClient("iam", aws), AwsClient("lambda", aws)
    name = f"resize-{os.urandom(4).hex()}"
    role = await iam.call("create_role", RoleName=name, AssumeRolePolicyDocument="{}", Path="/")
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as packed:
        packed.writestr("run.py", "def handler(event, context): return event")
    await functions.call(
        "create_function", FunctionName=name, Runtime="python3.12", Role=role["Role"]["Arn"], Handler="run.handler",
        Code={"ZipFile": code.getvalue()},
    )  # fmt: skip
    yield name
    await iam.close()
    await functions.close()


async def test_a_function_of_lambda_is_called_through_its_api(world: World, aws: CarrierOptions, resize: str) -> None:
    await set_up(world, Invoke(function=resize, lease_ms=LEASE_S * 1000))
    client = Lambda(aws)
    world.engine.parts.effects[INVOKE] = Invoker(
        world.engine, scratch_uri=SCRATCH, targets=Targets(), call_function=client.call
    ).invoke
    recorder = f"{aws.aws_endpoint_url}/moto-api/recorder"
    async with httpx.AsyncClient(timeout=30) as http:
        (await http.post(f"{recorder}/reset-recording")).raise_for_status()
        (await http.post(f"{recorder}/start-recording")).raise_for_status()
        task_id = await submit(world)
        (await http.post(f"{recorder}/stop-recording")).raise_for_status()
        lines = (await http.get(f"{recorder}/download-recording")).text.splitlines()
    await client.close()

    [asked] = [line for line in map(json.loads, lines) if "/invocations" in line["url"]]
    assert asked["headers"]["X-Amz-Invocation-Type"] == "Event"
    call = json.loads(base64.b64decode(asked["body"]))
    assert call["task_id"] == str(task_id)
    ok(await holder(world, call).complete())
    assert (await world.task(task_id)).state is State.SUCCEEDED


async def test_while_aws_is_away_a_call_is_put_off(world: World, aws: CarrierOptions) -> None:
    nobody = Lambda(CarrierOptions(aws_region="eu-west-1", aws_endpoint_url=f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(NotNow):
        await nobody.call("resize", b"{}")
    await nobody.close()


async def test_the_retries_of_aws_have_to_be_off(aws: CarrierOptions, resize: str) -> None:
    [finding] = await examine_carriers([Invoke(function=resize)], 0, aws)
    assert (finding.name, finding.level) == ("lambda", Level.WRONG)
    assert "--maximum-retry-attempts 0" in finding.advice

    client = AwsClient("lambda", aws)
    await client.call("put_function_event_invoke_config", FunctionName=resize, MaximumRetryAttempts=0)
    await client.close()
    [finding] = await examine_carriers([Invoke(function=resize)], 0, aws)
    assert finding.level is Level.OK


async def test_without_a_region_doctor_says_what_is_missing() -> None:
    [finding] = await examine_carriers([Invoke(function="resize")], 0, NO_CARRIERS)
    assert (finding.level, finding.advice) == (Level.WRONG, "set WINDLASS_AWS_REGION")
