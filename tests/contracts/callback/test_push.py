"""How an attempt reaches its worker: the envelope, its signature, and what follows from each answer."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest
from tests.contracts.callback.world import QUEUE, World
from tests.kit.work import soon, until
from tests.kit.world import ROOT, refused

from windlass import Engine, State
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.mount import make_pusher
from windlass.contracts.callback.server.options import PushOptions
from windlass.core.access import Role
from windlass.core.queue import QueueConfig
from windlass.errors import Forbidden, Invalid, StoreBusy
from windlass.net.targets import read_targets
from windlass.serve import open_server
from windlass.store.store import Store

pytestmark = pytest.mark.slow

ADMIN = {"Authorization": f"Bearer {ROOT}"}


async def test_the_envelope_has_every_field_of_the_contract(world: World) -> None:
    await world.queue(heartbeat_interval_ms=1000, heartbeat_timeout_ms=4000, cancel_grace_period_ms=5000)
    envelope = (await world.dispatched(payload=b'{"n": 1}', namespace="default")).envelope

    assert envelope["taskId"].startswith("task_")
    assert envelope["runId"].removeprefix("run_") == envelope["taskId"].removeprefix("task_")
    assert (envelope["assetId"], envelope["tenantId"], envelope["workspaceId"]) == ("export", "default", "default")
    assert envelope["taskKey"] == {
        "asset_key": {"namespace": "default", "name": "export"}, "operation": "materialize",
    }  # fmt: skip
    assert envelope["resources"] == {"memoryBytes": 536870912, "cpuMillicores": 1000, "timeoutMs": 3600000}
    assert (envelope["attempt"], envelope["deadline"], envelope["callbackBaseUrl"]) == (1, None, world.url)
    assert envelope["tokenExpiresAt"] > envelope["enqueuedAt"]
    assert [envelope[name] for name in ("heartbeatIntervalMs", "heartbeatTimeoutMs", "cancelGracePeriodMs")] == [
        1000, 4000, 5000,
    ]  # fmt: skip
    assert (envelope["payload"], envelope["kind"], envelope["queue"]) == ({"n": 1}, "export", QUEUE)


async def test_what_only_this_wire_knows_may_be_given_at_submission(world: World) -> None:
    wire = {"assetId": "raw.events", "taskKey": {"asset_key": {"namespace": "raw", "name": "events"}},
            "resources": {"memoryBytes": 7}}  # fmt: skip
    attempt = await world.dispatched(wire=msgspec.json.encode(wire), trace="00-" + "a" * 32 + "-" + "b" * 16 + "-01")

    assert (attempt.envelope["assetId"], attempt.envelope["taskKey"]) == ("raw.events", wire["taskKey"])
    assert attempt.envelope["resources"]["memoryBytes"] == 7
    assert attempt.envelope["traceparent"] == world.worker.pushes[-1].headers["traceparent"]


async def test_a_push_is_signed_as_standard_webhooks_lay_out(world: World) -> None:
    attempt = await world.dispatched()
    [push] = world.worker.pushes
    settings = (await world.engine.queues.get(QUEUE)).settings
    assert settings.signing_secret is not None
    key = base64.b64decode(settings.signing_secret.removeprefix("whsec_"))
    signed = f"{push.headers['webhook-id']}.{push.headers['webhook-timestamp']}.".encode() + push.body

    assert push.headers["webhook-id"] == f"dispatch:{attempt.envelope['runId']}:{attempt.envelope['taskId']}:1"
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert push.headers["webhook-signature"] == f"v1,{expected}"
    assert int(push.headers["webhook-timestamp"]) == int((await world.clock.now()).timestamp())


async def test_while_a_secret_is_rotated_a_push_has_both_signatures(world: World) -> None:
    before = (await world.engine.queues.get(QUEUE)).settings.signing_secret
    answer = await world.http.post(f"/api/v1/queues/{QUEUE}/rotate-secret", json={"overlap_s": 3600}, headers=ADMIN)
    after = answer.json()["signing_secret"]
    assert after != before
    await world.dispatched()
    assert len(world.worker.pushes[-1].headers["webhook-signature"].split(" ")) == 2

    await world.clock.advance(3601)
    world.engine.parts.outgoing.dispatcher.mark(None)
    await world.dispatched()
    assert len(world.worker.pushes[-1].headers["webhook-signature"].split(" ")) == 1


@pytest.mark.parametrize("status", [200, 202, 204, 409])
async def test_2xx_and_409_are_delivered(world: World, status: int) -> None:
    world.worker.answers = [(status, {})]
    attempt = await world.dispatched()
    await world.clock.advance(20)
    assert await world.engine.loops.effects_tick() == 0

    assert len(world.worker.pushes) == 1
    assert (await world.task(attempt)).state is State.RUNNING


@pytest.mark.parametrize(("status", "headers", "wait_s"), [
    (429, {"Retry-After": "7"}, 7), (503, {"Retry-After": "7"}, 7), (503, {}, 1), (429, {"Retry-After": "soon"}, 1),
    (503, {"Retry-After": "99999"}, 300),
])  # fmt: skip
async def test_a_busy_worker_is_asked_again_when_it_says(
    world: World, status: int, headers: dict[str, str], wait_s: float
) -> None:
    world.worker.answers = [(status, headers), (202, {})]
    attempt = await world.dispatched()
    await world.clock.advance(wait_s - 0.5)
    assert await world.engine.loops.effects_tick() == 0
    await world.clock.advance(0.6)
    assert await world.engine.loops.effects_tick() == 1

    first, second = world.worker.pushes
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert (await attempt.call("started")).status_code == 200


async def test_a_worker_that_is_busy_for_an_hour_loses_the_attempt(world: World) -> None:
    world.worker.answers = [(503, {"Retry-After": "300"})]
    attempt = await world.dispatched()
    for _ in range(14):
        await world.clock.advance(301)
        await world.engine.loops.effects_tick()

    task = await world.task(attempt)
    assert task.error is not None
    assert (task.losses, task.error.reason) == (1, "EFFECT_UNDELIVERABLE")


@pytest.mark.parametrize("status", [301, 400, 404, 500])
async def test_any_other_answer_is_tried_again_with_the_same_id_and_a_new_token(world: World, status: int) -> None:
    world.worker.answers = [(status, {"Location": "/elsewhere"}), (202, {})]
    await world.dispatched()
    await world.clock.advance(2)
    assert await world.engine.loops.effects_tick() == 1

    first, second = world.worker.pushes
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
    assert first.envelope["taskToken"] != second.envelope["taskToken"]


async def test_a_push_that_never_arrives_is_a_loss_of_its_task(world: World) -> None:
    world.worker.answers = [(500, {})]
    attempt = await world.dispatched()
    for _ in range(12):
        await world.clock.advance(400)
        await world.engine.loops.effects_tick()

    task = await world.task(attempt)
    assert task.error is not None
    assert (task.state, task.losses, task.error.reason) == (State.QUEUED, 1, "EFFECT_UNDELIVERABLE")
    assert len(world.worker.pushes) == 12


async def test_a_worker_that_began_though_its_answer_was_lost_is_left_alone(world: World) -> None:
    world.worker.answers = [(500, {})]
    attempt = await world.dispatched()
    assert (await attempt.call("started")).status_code == 200
    await world.clock.advance(20)
    await world.engine.loops.effects_tick()

    assert len(world.worker.pushes) == 1
    assert (await world.task(attempt)).state is State.RUNNING


async def test_what_was_cancelled_meanwhile_is_not_pushed(world: World) -> None:
    task_id = await world.submit()
    assert await world.engine.parts.outgoing.dispatch_tick() == 1
    await world.engine.cancel(task_id)
    await world.engine.loops.effects_tick()

    assert world.worker.pushes == []
    async with world.engine.store.begin() as tx:
        assert await tx.session.connection.fetchval("select count(*) from windlass.heartbeat") == 0


async def test_a_push_is_written_with_the_attempt_or_not_at_all(
    world: World, other_connection: asyncpg.Connection
) -> None:
    await world.submit()
    await other_connection.execute("alter table windlass.heartbeat rename to hidden")
    with pytest.raises(StoreBusy):
        await world.engine.parts.outgoing.dispatch_tick()
    assert await other_connection.fetchval("select state from windlass.task") == "queued"
    assert await other_connection.fetchval("select count(*) from windlass.outbox") == 0

    await other_connection.execute("alter table windlass.hidden rename to heartbeat")
    await world.send_out()
    assert len(world.worker.pushes) == 1


# --------------------------------------------------------------------------------------------- limits and wake-ups


async def test_a_task_is_updated_once_when_it_is_dispatched(world: World, other_connection: asyncpg.Connection) -> None:
    """Its token, its attempt and its effect are decided together, so that its row is written once."""
    await other_connection.execute(
        """create table updates (id uuid);
           create function count_update() returns trigger language plpgsql as
           $$ begin insert into updates values (new.id); return new; end $$;
           create trigger count_update after update on windlass.task for each row execute function count_update()"""
    )
    await world.queue()
    for _ in range(3):
        await world.submit()
    await world.engine.parts.outgoing.dispatch_tick()
    [[updates, tasks]] = await other_connection.fetch("select count(*), count(distinct id) from updates")
    assert (updates, tasks) == (3, 3)


async def test_limits_and_pauses_hold_for_what_is_pushed(world: World) -> None:
    push = (await world.engine.queues.get(QUEUE)).settings.delivery
    await world.engine.queues.put(QUEUE, delivery=push, limits=QueueConfig(max_running=2))
    for _ in range(3):
        await world.submit()
    await world.send_out()
    assert len(world.worker.pushes) == 2

    await world.engine.queues.pause(QUEUE)
    await world.engine.parts.outgoing.dispatch_tick()
    first = world.worker.pushes[0].envelope
    headers = {"Authorization": f"Bearer {first['taskToken']}"}
    body = {"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED"}
    await world.http.post(f"/v1/tasks/{first['taskId']}/completed", json=body, headers=headers)
    await world.send_out()
    assert len(world.worker.pushes) == 2

    await world.engine.queues.pause(QUEUE, paused=False)
    await world.send_out()
    assert len(world.worker.pushes) == 3


async def test_a_task_that_waits_to_be_pushed_says_why(world: World) -> None:
    await world.engine.queues.pause(QUEUE)
    task_id = await world.submit()

    assert [waiting.reason for waiting in await world.engine.tasks.why_waiting(task_id)] == ["paused"]


async def test_submitting_is_enough_nothing_is_polled(database: str, world: World) -> None:
    """A server as `windlass serve` runs it: what another process submits is pushed at once, and so is a retry."""
    store = Store(database)
    async with (
        Engine(store, poll_s=3600.0) as engine,
        open_server(engine, http="127.0.0.1:0", api_key=ROOT, push=PushOptions(loopback=True)) as url,
    ):
        await world.submit()  # by another engine
        await until(lambda: len(world.worker.pushes) == 1)
        envelope = world.worker.pushes[0].envelope
        assert envelope["callbackBaseUrl"] == url
        headers = {"Authorization": f"Bearer {envelope['taskToken']}"}
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            answer = await http.post(
                f"/v1/tasks/{envelope['taskId']}/completed",
                json={"attempt": 1, "workerId": "w", "outcome": "SUCCEEDED"}, headers=headers,
            )  # fmt: skip
        assert answer.json()["finalState"] == "SUCCEEDED"
        await engine.queues.put("new", delivery=Push(url=world.worker.url), limits=QueueConfig())
        await world.submit(queue="new")
        await soon(until(lambda: len(world.worker.pushes) == 2))


# --------------------------------------------------------------------------------------------- where it may go


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "169.254.1.1", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254",
     "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "0.0.0.0", "0.1.2.3", "::",
     "224.0.0.1", "ff02::1", "255.255.255.255", "::169.254.169.254", "::ffff:0:169.254.169.254", "2002:a9fe:a9fe::1",
     "2001:0:a9fe:a9fe:8000:0:f5ff:fff8", "2001:0:808:808:8000:0:5601:5601", "64:ff9b:1::a9fe:a9fe",
     "64:ff9b:1:a9fe:a9:fe00::", "2606:4700::5efe:a9fe:a9fe"],
)  # fmt: skip
def test_a_service_of_the_machine_itself_is_never_called_whatever_is_allowed(address: str) -> None:
    allowed = read_targets("public,private,loopback,0.0.0.0/0,::/0,worker.example,*.example")
    with pytest.raises(Forbidden):
        allowed.check("worker.example", address)


@pytest.mark.parametrize(
    "host", ["metadata.google.internal", "METADATA.google.internal.", "metadata", "x.metadata.goog"]
)
def test_a_name_of_such_a_service_is_refused_whatever_its_address(host: str) -> None:
    with pytest.raises(Forbidden):
        read_targets(f"public,{host.strip('.')}").check(host, "93.184.216.34")


PUBLIC = ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "2002:5db8:d822::1", "::ffff:93.184.216.34",
          "::ffff:0:93.184.216.34", "::93.184.216.34"]  # fmt: skip
PRIVATE = ["10.0.0.7", "192.168.1.1", "172.31.0.1", "100.64.0.1", "fd12::7", "fec0::1", "::10.0.0.7", "2002:a00:7::1",
           "::ffff:0:10.0.0.7", "64:ff9b::a00:7", "64:ff9b:1::a00:7", "198.18.0.1"]  # fmt: skip
LOOPBACK = ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1"]


@pytest.mark.parametrize("kind", ["public", "private", "loopback"])
def test_addresses_are_called_if_their_kind_is_allowed(kind: str) -> None:
    allowed = read_targets(kind)
    for other, addresses in {"public": PUBLIC, "private": PRIVATE, "loopback": LOOPBACK}.items():
        for address in addresses:
            if other == kind:
                allowed.check("worker.example", address)
                continue
            with pytest.raises(Forbidden, match="push_targets"):
                allowed.check("worker.example", address)


def test_a_network_or_a_name_may_be_allowed_alone() -> None:
    allowed = read_targets("10.1.0.0/16, fd12::/64, worker.internal, *.svc.cluster.local")
    allowed.check("a", "10.1.2.3")
    allowed.check("a", "fd12::7")
    allowed.check("worker.internal.", "10.9.9.9")
    allowed.check("shop.prod.svc.cluster.local", "172.20.0.1")
    for host, address in (("a", "10.2.0.1"), ("a", "93.184.216.34"), ("evilsvc.cluster.local", "172.20.0.1"),
                          ("worker.internal.example", "10.9.9.9")):  # fmt: skip
        with pytest.raises(Forbidden):
            allowed.check(host, address)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "10.0.0.1/8", "http://worker", "a b", "pub/lic", "*"])
def test_a_list_that_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        read_targets(text)


async def test_a_url_is_checked_when_the_queue_is_set_up(database: str) -> None:
    async with (
        Engine(Store(database), listen=False) as engine,
        open_server(engine, http="127.0.0.1:0", api_key=ROOT, push=PushOptions()) as url,
        httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as http,
    ):
        for target in ("http://127.0.0.1:1/x", "http://localhost/x", "http://169.254.169.254/latest",
                       "http://[::1]/", "http://metadata.google.internal/", "http://10.0.0.1/x", "http://2130706433/",
                       "http://[64:ff9b:1::a9fe:a9fe]/", "http://168.63.129.16/"):  # fmt: skip
            for kind in ("push", "invoke"):
                answer = await http.put("/api/v1/queues/bad", json={"delivery": {"type": kind, "url": target}})
                assert (answer.status_code, answer.json()["field"]) == (422, "delivery.url"), (kind, target)
        answer = await http.put("/api/v1/queues/good", json={"delivery": {"type": "push", "url": "http://8.8.8.8/x"}})
        assert answer.status_code == 200


async def test_private_networks_are_called_when_they_are_allowed(database: str) -> None:
    async with (
        Engine(Store(database), listen=False) as engine,
        open_server(engine, http="127.0.0.1:0", api_key=ROOT, push=PushOptions(targets="private")) as url,
        httpx.AsyncClient(base_url=url, headers=ADMIN, timeout=60) as http,
    ):
        codes = {}
        for host in ("10.0.0.1", "8.8.8.8", "127.0.0.1"):
            form = {"delivery": {"type": "push", "url": f"http://{host}/x"}}
            codes[host] = (await http.put("/api/v1/queues/one", json=form)).status_code
        assert codes == {"10.0.0.1": 200, "8.8.8.8": 422, "127.0.0.1": 422}


async def test_a_url_is_checked_again_at_each_delivery(world: World) -> None:
    attempt_of = make_pusher(world.engine, world.service, PushOptions(loopback=False), world.url)
    world.engine.parts.effects["push"] = attempt_of.push
    task_id = await world.submit()
    await world.send_out()

    assert world.worker.pushes == []
    task = (await world.engine.tasks.get(task_id)).task
    assert task.error is not None
    assert task.error.reason == "EFFECT_UNDELIVERABLE"


async def test_the_invariant_of_the_heartbeat_timeout_is_checked(world: World) -> None:
    with pytest.raises(Invalid) as found:
        await world.queue(heartbeat_interval_ms=1000, heartbeat_timeout_ms=1999)
    assert found.value.field == "delivery.heartbeat_timeout_ms"
    await world.queue(heartbeat_interval_ms=1000, heartbeat_timeout_ms=2000)
    await world.queue(heartbeat_interval_ms=60_000)
    push: Any = (await world.engine.queues.get(QUEUE)).settings.delivery
    assert push.heartbeat_timeout_ms == 180_000


# --------------------------------------------------------------------------------------------- headers of a queue

SECRETS = {"SHOP_TOKEN": "hunter2-hunter2", "BROKEN": "line\nbreak"}


def with_secrets(world: World) -> None:
    options = PushOptions(loopback=True, secrets=SECRETS)
    world.engine.parts.effects["push"] = make_pusher(world.engine, world.service, options, world.url).push


async def test_headers_of_a_queue_go_with_each_push_and_may_name_secrets_of_the_server(world: World) -> None:
    with_secrets(world)
    await world.queue(headers={"Authorization": "Bearer ${SHOP_TOKEN}", "X-Tenant": "acme"})
    await world.submit()
    await world.send_out()

    [push] = world.worker.pushes
    assert push.headers["authorization"] == "Bearer hunter2-hunter2"
    assert push.headers["x-tenant"] == "acme"
    assert push.headers["user-agent"] == "windlass"


@pytest.mark.parametrize("name", ["NOT_THERE", "BROKEN", "DATABASE_URL"])
async def test_a_secret_that_is_not_there_or_is_no_header_is_said_and_shown_to_nobody(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://hunter2@db")
    with_secrets(world)
    await world.queue(headers={"X-Token": f"${{{name}}}"})
    task_id = await world.submit()
    await world.send_out()

    assert world.worker.pushes == []
    [why] = await world.engine.tasks.why_waiting(task_id)
    assert ("PUSH_SECRET_" in why.message) != ("not printable" in why.message)
    assert "line" not in why.message


async def test_a_worker_that_repeats_a_secret_does_not_get_it_into_the_task(world: World) -> None:
    with_secrets(world)
    world.worker.answers = [(401, {})]
    world.worker.says = b"who is Bearer hunter2-hunter2?"
    await world.queue(headers={"Authorization": "Bearer ${SHOP_TOKEN}"})
    task_id = await world.submit()
    await world.send_out()

    [why] = await world.engine.tasks.why_waiting(task_id)
    assert "who is Bearer ***?" in why.message


@pytest.mark.parametrize(
    "headers",
    [{"Host": "x"}, {"webhook-signature": "v1,x"}, {"a b": "x"}, {"X-A": "x\r\nX-B: y"}, {"X-A": ""}, {"X-A": "é"},
     {"X-A": "1", "x-a": "2"}, {"X-A": "(hidden)"}, {f"X-{n}": "1" for n in range(21)}, {"Content-Length": "0"}],
    ids=str,
)  # fmt: skip
async def test_what_is_no_header_or_is_ours_is_refused(world: World, headers: dict[str, str]) -> None:
    with pytest.raises(Invalid, match=r"delivery\.headers"):
        await world.queue(headers=headers)


async def test_headers_are_hidden_and_secrets_are_named_by_admins_of_all_namespaces_only(world: World) -> None:
    keys = [
        (await world.engine.keys.create_key(name=str(role), role=role, namespace="default"))[1]
        for role in (Role.ADMIN, Role.VIEWER)
    ]
    plain, named = ({"Authorization": value} for value in ("Bearer x", "Bearer ${SHOP_TOKEN}"))

    async def put(headers: dict[str, str], key: dict[str, str]) -> int:
        delivery = {"type": "push", "url": world.worker.url, "headers": headers}
        return (await world.http.put("/api/v1/queues/headed", json={"delivery": delivery}, headers=key)).status_code

    own, viewer = ({"Authorization": f"Bearer {key}"} for key in keys)
    assert [await put(plain, own), await put(named, own), await put(named, ADMIN)] == [200, 403, 200]
    seen = (await world.http.get("/api/v1/queues/headed", headers=viewer)).json()
    assert seen["delivery"]["headers"] == {"Authorization": "(hidden)"}


# --------------------------------------------------------------------------------------------- documents


async def test_the_documents_are_served_to_whoever_has_a_key(world: World) -> None:
    for path in ("/v1/openapi.json", "/v1/task-envelope.schema.json"):
        refused(await world.http.get(path), 401, "invalid_token")
        assert (await world.http.get(path, headers=ADMIN)).status_code == 200


async def test_why_a_task_waits_that_was_sent_and_not_taken(world: World) -> None:
    world.worker.answers = [(401, {}), (202, {})]
    task_id = await world.submit()
    assert [wait.reason for wait in await world.engine.tasks.why_waiting(task_id)] == ["in_line"]

    await world.engine.parts.outgoing.dispatch_tick()
    (on_its_way,) = await world.engine.tasks.why_waiting(task_id)
    await world.engine.loops.effects_tick()
    (refused_,) = await world.engine.tasks.why_waiting(task_id)
    await world.clock.advance(10)
    await world.engine.loops.effects_tick()
    (taken,) = await world.engine.tasks.why_waiting(task_id)

    assert (on_its_way.reason, on_its_way.until) == ("not_delivered", None)
    assert refused_.reason == "not_delivered"
    assert "answered 401" in refused_.message
    assert refused_.until is not None
    assert taken.reason == "not_started"
