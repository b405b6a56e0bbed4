"""Claiming one task by its id, keeping its lease, and losing it."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
import pytest
from tests.contracts.lease.world import LEASE_S, QUEUE, SCRATCH, WORKER, Holder, World, client, nobody
from tests.kit.world import ok, refused

from windlass import Engine, State
from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import Caller
from windlass.core.lease_token import delivery_of
from windlass.core.queue import Rate
from windlass.core.upstream import FROM, results_payload
from windlass.net.ids import ulid
from windlass.store.store import Store

pytestmark = pytest.mark.slow

HOLDER = Caller("CN=wrapper", "ab" * 32)


async def test_a_claim_gives_a_lease_and_the_whole_task(world: World) -> None:
    task_id = await world.submit()

    told = await world.claim(task_id)

    now = await world.clock.now()
    assert told["status"] == "Claimed"
    assert told["attempt"] == 1
    assert delivery_of(UUID(told["lease_token"])) == "wakeup"
    assert datetime.fromisoformat(told["lease_expires_at"]) == now + timedelta(seconds=LEASE_S)
    assert told["scratch_uri"] == f"{SCRATCH}/tasks/{task_id}/1/"
    task = told["task"]
    assert (task["task_id"], task["attempt"]) == (str(task_id), 1)
    assert task["job"] == {"dag_name": "default", "name": "block_follower"}
    assert task["operator"] == "block_follower"
    assert task["config"] == {"chain": 1}
    assert task["inputs"] == []
    stored = await world.task(task_id)
    assert (stored.state, stored.attempt, stored.worker) == (State.RUNNING, 1, WORKER)
    assert str(stored.lease_id) == told["lease_token"]


async def test_a_claim_whose_answer_was_lost_is_told_what_it_began(world: World) -> None:
    task_id, claim_id = await world.submit(), nobody()
    said = {"task_id": str(task_id), "worker_id": WORKER, "claim_id": claim_id}

    first = ok(await world.post("task-claim", said))
    again = ok(await world.post("task-claim", said))
    assert (first["status"], again["status"]) == ("Claimed", "Claimed")
    assert {name: first[name] for name in ("attempt", "lease_token", "task", "lease_expires_at")} == {
        name: again[name] for name in ("attempt", "lease_token", "task", "lease_expires_at")
    }
    assert len(await world.entries(task_id, "claimed")) == 1
    async with client(world.url, world.tls_files, world.tls_files.second) as other:
        told = ok(await world.post("task-claim", said, other))  # another's chance, overheard
    assert told == {"status": "NotClaimed", "reason": "AlreadyRunning"}
    told = ok(await world.post("task-claim", {**said, "claim_id": nobody()}))
    assert told == {"status": "NotClaimed", "reason": "AlreadyRunning"}

    ok(await Holder(world, again).complete())
    told = ok(await world.post("task-claim", said))
    assert told == {"status": "NotClaimed", "reason": "Completed"}


async def test_what_only_this_wire_knows_may_be_given_at_submission(world: World) -> None:
    inputs = [{"from": {"dataset": "alert_events"}, "where": "severity = 'critical'"}]
    wire = {"job": {"dag_name": "monad", "name": "follow"}, "operator": "cryo", "inputs": inputs}
    task_id = await world.submit(wire=wire, payload=b"[1, 2]")

    task = (await world.claim(task_id))["task"]

    assert task["job"] == {"dag_name": "monad", "name": "follow"}
    assert (task["operator"], task["inputs"]) == ("cryo", inputs)
    assert task["config"] == {"value": [1, 2]}


async def test_what_other_tasks_returned_stands_in_the_task(world: World) -> None:
    source = await world.held(payload=b"{}")
    ok(await source.complete(result=[1, 2]))
    payload = msgspec.json.encode({"add": 3, FROM: {"numbers": str(source.task_id)}})

    holder = await world.held(payload=payload)

    assert holder.reply["task"]["config"] == {"add": 3, "numbers": [1, 2]}
    told = ok(await world.http.get("/internal/task-fetch", params={"task_id": str(holder.task_id)}))
    assert told["config"] == holder.reply["task"]["config"]


async def test_the_id_is_read_in_both_spellings(world: World) -> None:
    task_id = await world.submit()

    assert (await world.claim(ulid("task", task_id)))["status"] == "Claimed"


async def test_two_hundred_concurrent_claims_give_one_lease(world: World) -> None:
    task_id = await world.submit()

    told = await asyncio.gather(*(world.claim(task_id) for _ in range(200)))

    claimed = [one for one in told if one["status"] == "Claimed"]
    assert len(claimed) == 1
    assert {one["reason"] for one in told if one["status"] == "NotClaimed"} == {"AlreadyRunning"}
    assert (await world.task(task_id)).attempt == 1
    assert len(await world.entries(task_id, "claimed")) == 1


async def test_claims_through_many_engines_give_one_lease(world: World, database: str) -> None:
    task_id = await world.submit()
    engines = [Engine(Store(database), listen=False) for _ in range(4)]
    try:
        found = await asyncio.gather(
            *(engines[n % 4].service(Holders).claim(task_id, f"worker {n}", HOLDER) for n in range(200))
        )
    finally:
        for engine in engines:
            await engine.close()

    assert sum(isinstance(one, Held) for one in found) == 1
    assert (await world.task(task_id)).attempt == 1


async def test_a_claim_of_a_row_that_somebody_holds_waits_for_it(world: World) -> None:
    task_id = await world.submit()
    async with world.engine.store.begin() as tx:
        await tx.tasks.load_tasks([task_id])
        claiming = asyncio.create_task(world.claim(task_id))
        await asyncio.wait([claiming], timeout=0.2)
        assert not claiming.done()

    assert (await claiming)["status"] == "Claimed"


async def test_a_claim_at_once_writes_what_the_rule_says(world: World) -> None:
    """Through a limited queue claims go the way of load, decide, apply."""
    await world.queue("limited", max_running=100)
    for policy_free in ({}, {"deadline_at": await world.clock.now() + timedelta(hours=1)}):
        at_once, by_rule = await world.submit(**policy_free), await world.submit(queue="limited", **policy_free)
        await world.claim(at_once)
        await world.claim(by_rule)

        one, other = [
            {
                k: v
                for k, v in (await world.engine.tasks.get(id_)).task.__rich_repr__()
                if k not in ("id", "queue", "lease_id")
            }
            for id_ in (at_once, by_rule)
        ]
        assert one == other
        first, second = [(await world.entries(id_, "claimed"))[0] for id_ in (at_once, by_rule)]
        assert (first.at, first.attempt, first.worker, first.detail) == (
            second.at, second.attempt, second.worker, second.detail,
        )  # fmt: skip
    [beats] = await world.rows("heartbeat")
    assert len({row[1:] for row in beats}) == 1


@pytest.mark.parametrize("limits", [{}, {"max_running": 100}], ids=["at once", "by rule"])
async def test_why_a_task_is_not_claimed(world: World, limits: dict[str, int]) -> None:
    await world.queue(**limits)
    running, completed, failed, cancelled = [(await world.held()) for _ in range(4)]
    await completed.complete()
    await failed.complete("Failed", error_message="bad", error={"retryable": False})
    await world.engine.cancel(cancelled.task_id, force=True)
    waiting = await world.submit(delay_s=90)

    assert await world.claim(running.task_id) == {"status": "NotClaimed", "reason": "AlreadyRunning"}
    assert await world.claim(completed.task_id) == {"status": "NotClaimed", "reason": "Completed"}
    assert await world.claim(failed.task_id) == {"status": "NotClaimed", "reason": "Completed", "detail": "Failed"}
    assert await world.claim(cancelled.task_id) == {"status": "NotClaimed", "reason": "Canceled"}
    assert await world.claim(nobody()) == {"status": "NotClaimed", "reason": "NotFound"}
    assert await world.claim(waiting) == {
        "status": "NotClaimed", "reason": "AlreadyRunning", "detail": "NotReady", "waits_for": "scheduled",
        "retry_after_s": 90.0,
    }  # fmt: skip


async def test_a_message_that_comes_before_its_task_is_visible_finds_nothing_and_does_no_harm(world: World) -> None:
    """The wake-up after the commit is another one."""
    early = UUID(int=77)
    assert (await world.claim(early))["reason"] == "NotFound"

    await world.submit(id=early)

    assert (await world.claim(early))["status"] == "Claimed"


async def test_tasks_of_queues_with_another_delivery_cannot_be_taken(world: World) -> None:
    task_id = await world.submit(queue="pulled")

    assert await world.claim(task_id) == {"status": "NotClaimed", "reason": "NotFound", "detail": "OtherDelivery"}
    assert (await world.task(task_id)).state is State.QUEUED


async def test_a_task_that_wants_labels_is_not_for_holders(world: World) -> None:
    task_id = await world.submit(requires=("gpu",))

    assert (await world.claim(task_id))["waits_for"] == "no_capable_worker"


# --------------------------------------------------------------------------------------------- limits


async def test_a_paused_queue_gives_nothing(world: World) -> None:
    task_id = await world.submit()
    await world.engine.pause_queue(QUEUE)
    assert await world.claim(task_id) == {
        "status": "NotClaimed", "reason": "AlreadyRunning", "detail": "NotReady", "waits_for": "paused",
    }  # fmt: skip

    await world.engine.pause_queue(QUEUE, paused=False)

    assert (await world.claim(task_id))["status"] == "Claimed"


@pytest.mark.parametrize(
    "limits",
    [{"max_running": 3}, {"max_running_per_kind": {"block_follower": 3}}, {"max_running_per_key": 3}],
    ids=["queue", "kind", "key"],
)
async def test_limits_hold_exactly_with_claims_through_many_engines(
    world: World, database: str, limits: dict[str, int]
) -> None:
    await world.queue(**limits)
    ids = [await world.submit(concurrency_key="one") for _ in range(12)]
    engines = [Engine(Store(database), listen=False) for _ in range(3)]
    try:
        found = await asyncio.gather(
            *(engines[n % 3].service(Holders).claim(id_, "worker", HOLDER) for n, id_ in enumerate(ids))
        )
    finally:
        for engine in engines:
            await engine.close()

    assert sum(isinstance(one, Held) for one in found) == 3
    assert {one.waits_for for one in found if not isinstance(one, Held)} == {"concurrency_limit"}


async def test_a_place_that_becomes_free_is_taken(world: World) -> None:
    await world.queue(max_running=1)
    first, second = await world.held(), await world.submit()
    assert (await world.claim(second))["waits_for"] == "concurrency_limit"

    ok(await first.complete())

    assert (await world.claim(second))["status"] == "Claimed"


async def test_a_rate_holds_and_says_when_there_is_room(world: World) -> None:
    await world.queue(rate=Rate(2, 60.0))
    ids = [await world.submit() for _ in range(3)]
    told = await asyncio.gather(*(world.claim(id_) for id_ in ids))

    late = [one for one in told if one["status"] == "NotClaimed"]
    assert [(one["waits_for"], one["retry_after_s"]) for one in late] == [("rate_limit", 60.0)]


# --------------------------------------------------------------------------------------------- the lease


async def test_a_heartbeat_extends_the_lease(world: World) -> None:
    holder = await world.held()
    await world.expire(LEASE_S - 1)

    told = ok(await holder.heartbeat())

    now = await world.clock.now()
    assert datetime.fromisoformat(told["lease_expires_at"]) == now + timedelta(seconds=LEASE_S)
    assert told["status"] == "Running"
    await world.expire(LEASE_S - 1)
    assert (await holder.task()).state is State.RUNNING


async def test_a_lease_that_has_run_out_cannot_be_revived(world: World) -> None:
    holder = await world.held()
    await world.clock.advance(LEASE_S)
    before = await world.rows()

    told = refused(await holder.heartbeat(), 409, "stale_lease")

    assert told["task_status"] == "Running"
    assert await world.rows() == before
    await world.expire(0)
    assert refused(await holder.heartbeat(), 409, "stale_lease")["task_status"] == "Queued"


async def test_a_lost_lease_goes_to_the_next_who_claims_with_another_token(world: World) -> None:
    holder = await world.held()
    await world.expire()
    task = await holder.task()
    assert (task.state, task.failures, task.losses) == (State.QUEUED, 1, 0)
    assert task.error is not None
    assert task.error.reason == "LEASE_EXPIRED"
    assert str(task.lease_id) == holder.reply["lease_token"]  # kept for a late reply
    await world.clock.advance(600)

    second = await world.hold(holder.task_id)

    assert second.reply["attempt"] == 2
    assert second.reply["lease_token"] != holder.reply["lease_token"]


async def test_lost_leases_count_like_failed_attempts_of_which_there_are_three(world: World) -> None:
    holder = await world.held()
    ok(await holder.complete("Failed", error_message="first"))
    for _ in range(2):
        await world.clock.advance(600)
        holder = await world.hold(holder.task_id)
        await world.expire()

    task = await holder.task()
    assert (task.state, task.failures) == (State.FAILED, 3)
    assert (await world.claim(holder.task_id))["detail"] == "Failed"


@pytest.mark.parametrize("route", ["heartbeat", "task-complete", "events", "buffer-publish"])
async def test_every_fenced_call_of_a_superseded_attempt_or_with_another_token_is_refused(
    world: World, route: str
) -> None:
    body = {
        "heartbeat": {},
        "task-complete": {"status": "Completed"},
        "events": {"events": [{"dataset_uuid": nobody(), "dataset_version": nobody(), "cursor": 1}]},
        "buffer-publish": {
            "dataset_uuid": nobody(), "dataset_version": nobody(), "batch_uri": "s3://b/x", "record_count": 1,
        },
    }[route]  # fmt: skip
    old = await world.held()
    await world.expire()
    await world.clock.advance(600)
    current = await world.hold(old.task_id)
    before = await world.rows()

    told = refused(await old.say(route, **body), 409, "stale_lease")
    assert (told["task_status"], told["current_attempt"]) == ("Running", 2)
    refused(await current.say(route, lease_token=nobody(), **body), 409, "stale_lease")
    refused(await current.say(route, attempt=3, **body), 409, "stale_lease")
    refused(await current.say(route, attempt=1, **body), 409, "stale_lease")
    refused(await current.say(route, task_id=nobody(), **body), 404, "task_not_found")

    assert await world.rows() == before


# --------------------------------------------------------------------------------------------- who called


async def test_the_caller_is_kept_with_each_call(world: World) -> None:
    holder = await world.held()
    async with client(world.url, world.tls_files, world.tls_files.second) as second:
        ok(await holder.say("heartbeat", second))
        ok(await holder.say("heartbeat", second))
        ok(await holder.heartbeat())
        ok(await holder.say("task-complete", second, status="Completed"))

    [claimed] = await world.entries(holder.task_id, "claimed")
    heard = await world.entries(holder.task_id, "heard")
    [reported] = await world.entries(holder.task_id, "reported")
    told = claimed.detail["caller"]
    assert told["subject"] == "O=Windlass development,CN=wrapper-1"
    assert told["names"] == ["URI:windlass:worker:wrapper-1"]
    assert len(told["fingerprint"]) == 64
    assert [one.detail["caller"]["subject"].partition("CN=")[2] for one in heard] == ["wrapper-2", "wrapper-1"]
    assert reported.detail["caller"]["subject"].endswith("CN=wrapper-2")


async def test_signs_of_life_of_many_holders_share_one_statement(world: World) -> None:
    holders: list[Holder] = [await world.held() for _ in range(20)]
    await world.clock.advance(30)

    told = await asyncio.gather(*(holder.heartbeat() for holder in holders))

    assert {answer.status_code for answer in told} == {200}
    assert len({answer.json()["lease_expires_at"] for answer in told}) == 1


# --------------------------------------------------------------------------------------------- fetch


async def test_a_task_is_fetched_without_what_only_its_holder_knows(world: World) -> None:
    holder = await world.held()

    told = ok(await world.http.get("/internal/task-fetch", params={"task_id": str(holder.task_id)}))

    assert told["status"] == "Running"
    assert {**holder.reply["task"], "status": "Running"} == told
    assert holder.reply["lease_token"] not in str(told)


async def test_fetch_says_how_a_task_is(world: World) -> None:
    async def status(task_id: UUID) -> str:
        told = ok(await world.http.get("/internal/task-fetch", params={"task_id": str(task_id)}))
        return str(told["status"])

    holder, queued = await world.held(), await world.submit()
    assert (await status(queued), await status(holder.task_id)) == ("Queued", "Running")
    before = await world.rows()
    await world.engine.cancel(holder.task_id, "rollback")
    await world.engine.cancel(queued)

    assert (await status(queued), await status(holder.task_id)) == ("Canceled", "Canceled")
    assert (await holder.task()).cancel.signalled_at is None  # type: ignore[union-attr]
    assert await world.rows("heartbeat") == [before[1]]
    refused(await world.http.get("/internal/task-fetch", params={"task_id": nobody()}), 404, "task_not_found")


async def test_what_other_tasks_returned_is_in_the_config(world: World) -> None:
    first = await world.held()
    ok(await first.complete(result={"blocks": 7}))
    told = await world.claim(await world.submit(payload=results_payload("upstream", first.task_id)))

    assert told["task"]["config"] == {"upstream": {"blocks": 7}}
