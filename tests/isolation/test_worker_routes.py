"""Every route of the contracts that workers call × credentials of all kinds × the own namespace and another, made from
the tables of the applications."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx
from tests.isolation.subject import ELSEWHERE, PAYLOAD, ROLES, SECRET, VICTIM, Unbuildable, Victim

from windlass import Submission
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.mount import make_callbacks
from windlass.contracts.callback.rules import scope_of
from windlass.contracts.callback.server import app as callback
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.mount import make_lease_app
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.server import app as lease
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.mount import make_machines
from windlass.contracts.machine.server import app as machine
from windlass.core.delivery import Delivery
from windlass.core.lease_token import lease_token
from windlass.core.queue import QueueConfig
from windlass.core.task import Task

DATASET = str(uuid4())


async def running(world: Victim, delivery: Delivery, kind: str) -> Task:
    """A task of the victim's that runs under this delivery."""
    engine = world.engine
    await engine.queues.put(kind, namespace=VICTIM, delivery=delivery.checked(), limits=QueueConfig())
    task_id = await engine.submit(Submission(kind=kind, queue=kind, namespace=VICTIM, payload=PAYLOAD))
    async with engine.store.begin() as tx:
        await tx.session.connection.execute(
            "update windlass.task set state = 'running', attempt = 1, lease_id = $2, worker = 'w', started_at = now() "
            "where id = $1",
            task_id, lease_token(7, kind),
        )  # fmt: skip
        await tx.heartbeats.insert_heartbeats([(task_id, 1, 60_000)], 0)
    return (await engine.tasks.get(task_id)).task


# --------------------------------------------------------------------------------------------- /internal


def internal_bodies(task: Task, message_id: UUID) -> dict[str, dict[str, Any]]:
    """What is said at each path. A fence is the true one."""
    fence = {"task_id": str(task.id), "attempt": task.attempt, "lease_token": str(task.lease_id)}
    event = {"dataset_uuid": DATASET, "dataset_version": DATASET, "cursor": 1}
    where = {"queue": "letters", "namespace": VICTIM}
    held = {"message_id": str(message_id), "deliveries": 0}
    return {
        "/internal/task-claim": {"task_id": str(task.id), "worker_id": "w"},
        "/internal/heartbeat": fence,
        "/internal/task-complete": fence | {"status": "Failed", "error_message": "forged"},
        "/internal/events": fence | {"events": [event]},
        "/internal/buffer-publish": fence
        | {"dataset_uuid": DATASET, "dataset_version": DATASET, "batch_uri": "s3://b/x", "record_count": 1},
        "/internal/invalidations": fence
        | {
            "dataset_uuid": DATASET,
            "dataset_version": DATASET,
            "scope": "partition",
            "partition_key": "0-99",
            "reason": "manual",
        },
        "/internal/wakeups/route": where,
        "/internal/wakeups/receive": where,
        "/internal/wakeups/unheard": where,
        "/internal/wakeups/bury": where | {"message_id": "1", "body": "", "deliveries": 1, "reason": ""},
        "/internal/wakeups/extend": held | {"visibility_s": 5.0},
        "/internal/wakeups/ack": held,
        "/internal/wakeups/nack": held,
    }


async def posted(app: Any, method: str, path: str, body: Any, caller: Caller, query: bytes = b"") -> tuple[int, str]:
    sent: list[Any] = []
    given = [b"" if body is None else json.dumps(body).encode()]

    async def receive() -> Any:
        if not given:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": given.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": query,
             "state": {"caller": caller}}  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


async def test_no_certificate_of_another_namespace_reaches_a_task_through_internal_routes(world: Victim) -> None:
    app = make_lease_app(world.engine, "0", "s3://scratch")
    task = await running(world, Wakeup(), "wakeup")
    bodies = internal_bodies(task, world.ids["message_id"])
    if missing := {route.path for route in lease.ROUTES if route.method == "POST"} - bodies.keys():
        raise Unbuildable(f"the matrix has no body for {sorted(missing)}: add it to `internal_bodies` of {__name__}")
    stranger, own = (Caller("CN=x", name, (), (name,)) for name in (ELSEWHERE, VICTIM))
    query = f"task_id={task.id}".encode()
    before = await world.rows()

    for path, body in bodies.items():
        status, told = await posted(app, "POST", path, body, stranger)
        nothing = json.loads(told) in ({"kept": False}, {"status": "NotClaimed", "reason": "NotFound"})
        assert status in (403, 404) or (status == 200 and nothing), (path, status, told)
        assert SECRET not in told
    assert (await posted(app, "GET", "/internal/task-fetch", None, stranger, query))[0] == 404
    assert await world.rows() == before

    assert SECRET in (await posted(app, "GET", "/internal/task-fetch", None, own, query))[1]
    for path, body in bodies.items():
        assert (await posted(app, "POST", path, body, own))[0] not in (401, 404, 500), path


# --------------------------------------------------------------------------------------------- callbacks


async def test_a_callback_is_heard_with_the_token_of_its_own_attempt_only(world: Victim) -> None:
    service, app = make_callbacks(world.engine, "0")
    task = await running(world, Push(url="https://example.com/"), "push")
    other = await running(world, Push(url="https://example.com/"), "push")
    tokens, now = await service.tokens(), await world.engine.tasks.time()
    own = tokens.make(scope_of(task, now, timedelta(hours=1)))
    foreign = tokens.make(scope_of(other, now, timedelta(hours=1)))
    body = {"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED", "progressPct": 1}
    at = {"startedAt": now.isoformat(), "heartbeatAt": now.isoformat(), "completedAt": now.isoformat()}
    wrong_kinds = [None, str(task.lease_id), *(world.keys[VICTIM, role] for role in ROLES)]
    before = await world.rows()

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://windlass") as http:
        for route in callback.TABLE.routes:
            name, path = route.name, route.path.format(task_id=task.id)
            for credential in wrong_kinds:
                headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
                assert (await http.post(path, json=body | at, headers=headers)).status_code == 401, (name, credential)
            answer = await http.post(path, json=body | at, headers={"Authorization": f"Bearer {foreign}"})
            assert answer.status_code == 403, (name, answer.text)
        assert await world.rows() == before
        for route in callback.TABLE.routes:
            name, path, headers = route.name, route.path.format(task_id=task.id), {"Authorization": f"Bearer {own}"}
            assert (await http.post(path, json=body | at, headers=headers)).status_code == 200, name


# --------------------------------------------------------------------------------------------- machines


async def test_machines_and_their_clients_reach_only_what_is_theirs(world: Victim) -> None:
    app = make_machines(world.engine)
    task = await running(world, Machine(launcher="process", command=["x"]), "machine")
    before = await world.rows()

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://windlass") as http:
        for route in machine.ROUTES:
            method, path = route.method, route.path.format(format="machine", task_id=task.id, file="file")
            for credential in (None, "wl_unknown", str(task.lease_id)):
                headers = {} if credential is None else {"Authorization": f"Bearer {credential}"}
                answer = await http.request(method, path, json={}, headers=headers)
                assert answer.status_code == 401, (path, credential, answer.text)
            for role in ROLES:
                headers = {"Authorization": f"Bearer {world.keys[ELSEWHERE, role]}", "X-Callback-Signature": "0" * 64}
                answer = await http.request(method, path, json={}, headers=headers)
                assert answer.status_code in (401, 403, 404), (path, role, answer.text)
                assert SECRET not in answer.text
        assert await world.rows() == before
        own = {"Authorization": f"Bearer {world.keys[VICTIM, ROLES[0]]}"}
        assert (await http.get(f"/status/{task.id}", headers=own)).status_code == 200
