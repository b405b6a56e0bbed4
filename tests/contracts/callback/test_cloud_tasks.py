"""Google Cloud Tasks as the carrier: what we send is read with the vendor's own published types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from google.cloud.tasks_v2.types import CreateTaskRequest, HttpMethod
from google.cloud.tasks_v2.types import Task as CloudTask
from google.protobuf.json_format import ParseDict
from tests.contracts.callback.world import Recorder, World

from windlass import State
from windlass.contracts.callback.delivery import CloudTasks
from windlass.contracts.callback.mount import make_pusher
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.callback.wire.names import cloud_task_id
from windlass.errors import Invalid
from windlass.net.server.server import listening

pytestmark = pytest.mark.slow

VIA = CloudTasks(project="acme", location="europe-west1", queue="push", service_account_email="push@acme.example")
PARENT = "projects/acme/locations/europe-west1/queues/push"


class Google(Recorder):
    """A server that reads what it gets as Google does, and knows the names of its tasks."""

    paths: list[str]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths = [*getattr(self, "paths", []), f"{scope['method']} {scope['path']}"]
        await super().__call__(scope, receive, send)

    def created(self) -> list[CloudTask]:
        found = []
        for path, push in zip(self.paths, self.pushes, strict=True):
            assert path == f"POST /v2/{PARENT}/tasks"
            request = CreateTaskRequest(parent=PARENT)
            # Strict: a field that the vendor's type does not have, or of another type, is an error.
            ParseDict(json.loads(push.body), CreateTaskRequest.pb(request), ignore_unknown_fields=False)
            found.append(request.task)
        return found


@pytest.fixture
async def google(world: World) -> AsyncIterator[Google]:
    server = Google()
    async with pushing_through(world, server):
        yield server
        server.state.closing.set()


@asynccontextmanager
async def pushing_through(world: World, server: Google) -> AsyncIterator[None]:
    async with listening(server, "127.0.0.1", 0) as url:
        options = PushOptions(loopback=True, google_token="ya29.token", google_url=url)
        world.engine.parts.effects["push"] = make_pusher(world.engine, world.service, options, world.url).push
        await world.queue(cloud_tasks=VIA)
        yield


async def test_a_push_becomes_a_task_of_cloud_tasks(world: World, google: Google) -> None:
    await world.submit(payload=b'{"n": 1}')
    await world.send_out()

    [task] = google.created()
    [sent] = google.pushes
    assert sent.headers["authorization"] == "Bearer ya29.token"
    request = task.http_request
    envelope = json.loads(request.body)
    assert (request.url, request.http_method, envelope["payload"]) == (world.worker.url, HttpMethod.POST, {"n": 1})
    assert request.headers["webhook-id"] == f"dispatch:{envelope['runId']}:{envelope['taskId']}:1"
    assert request.headers["webhook-signature"].startswith("v1,")
    assert (request.oidc_token.service_account_email, request.oidc_token.audience) == (
        "push@acme.example", world.worker.url,
    )  # fmt: skip
    assert task.dispatch_deadline.total_seconds() == 600
    assert task.name == f"{PARENT}/tasks/{cloud_task_id(request.headers['webhook-id'])}"
    assert world.worker.pushes == []  # it is Google who calls the worker


def test_the_name_of_a_task_is_made_as_the_origin_of_the_contract_makes_it() -> None:
    assert cloud_task_id("dispatch:run1:extract:1") == "d_cxtoltqhbncw6nevn7hy53kqn6"


async def test_the_same_attempt_again_has_the_same_name_and_a_name_that_is_taken_is_delivered(
    world: World, google: Google
) -> None:
    google.answers = [(500, {}), (409, {})]
    task_id = await world.submit()
    await world.send_out()
    await world.clock.advance(2)
    await world.engine.loops.effects_tick()

    first, second = google.created()
    assert first.name == second.name
    await world.clock.advance(31)
    await world.engine.parts.outgoing.silence_tick()
    task = (await world.engine.tasks.get(task_id)).task
    assert task.error is not None
    assert (task.state, task.error.reason) == (State.QUEUED, "DISPATCH_TIMEOUT")  # it had been delivered


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_queue_is_asked_again(world: World, google: Google, status: int) -> None:
    google.answers = [(status, {}), (200, {})]
    await world.submit()
    await world.send_out()
    await world.clock.advance(2.1)

    assert await world.engine.loops.effects_tick() == 1
    assert len(google.pushes) == 2


async def test_the_worker_calls_back_as_ever(world: World, google: Google) -> None:
    await world.submit()
    await world.send_out()
    envelope = json.loads(google.created()[0].http_request.body)
    headers = {"Authorization": f"Bearer {envelope['taskToken']}"}
    body = {"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED"}
    answer = await world.http.post(f"/v1/tasks/{envelope['taskId']}/completed", json=body, headers=headers)

    assert answer.json()["finalState"] == "SUCCEEDED"


@pytest.mark.parametrize("name", ["a/b", "../x", "", "a b", "a?b"])
async def test_names_that_would_lead_elsewhere_are_refused(world: World, name: str) -> None:
    with pytest.raises(Invalid) as found:
        await world.queue(cloud_tasks=CloudTasks(project=name, location="l", queue="q"))
    assert found.value.field == "delivery.cloud_tasks.project"
