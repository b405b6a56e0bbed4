"""Who claims gets nothing of a queue whose tasks reach their workers in another way, also if that changes meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.kit.work import job, jobs, only_direct, poll, soon, state, until, waiting, worker

from windlass import Engine, Invalid, State
from windlass.contracts.callback.delivery import Push
from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.stdio.delivery import Stdio, StdioHandler
from windlass.core.delivery import PULL, Delivery
from windlass.core.queue import QueueConfig
from windlass.core.worker import Registration
from windlass.store.pool import Session

PUSH = Push(url="http://worker.example/")
STDIO = Stdio(handlers={"job": StdioHandler(script="1")})
ELSEWHERE = [
    PUSH,
    Wakeup(),
    Invoke(url="http://worker.example/"),
    Machine(launcher="process"),
    STDIO,
]
elsewhere = pytest.mark.parametrize("delivery", ELSEWHERE, ids=lambda one: type(one).__name__)


async def deliver(engine: Engine, delivery: Delivery, queue: str = "default", **limits: Any) -> None:
    await engine.queues.put(queue, delivery=delivery, limits=QueueConfig(**limits))


# What a look at a queue depends on: one lane is looked at in one statement, several and limits are not.
ONE_LANE, LANES, LIMITED = jobs(3), [job(n, concurrency_key=f"k{n}") for n in range(3)], jobs(3)


@elsewhere
@pytest.mark.parametrize(
    ("submissions", "limits"),
    [(ONE_LANE, {}), (LANES, {}), (LIMITED, {"max_running": 2})],
    ids=["one lane", "several lanes", "limited"],
)
async def test_a_claim_takes_nothing_that_is_delivered_in_another_way(
    engine: Engine, delivery: Delivery, submissions: Any, limits: dict[str, Any]
) -> None:
    lease = await worker(engine, "default", "other")
    await deliver(engine, delivery, **limits)
    ids = await engine.submit_many(submissions)
    mine = await engine.submit(job(queue="other"))

    claimed = [one for _ in range(4) for one in await engine.claim(lease, 10)]

    assert [one.task.id for one in claimed] == [mine]
    assert {await state(engine, id_) for id_ in ids} == {State.QUEUED}


@elsewhere
async def test_who_could_never_claim_anything_is_told_so(engine: Engine, delivery: Delivery) -> None:
    await deliver(engine, delivery)
    how = type(delivery).__name__.lower()

    with pytest.raises(Invalid, match=rf"queues: no tasks can be claimed from default \({how}\)"):
        await worker(engine)
    with pytest.raises(Invalid, match=rf"queue: no tasks can be claimed from default \({how}\)"):
        await engine.workers.register(Registration(namespace="default", queue="default", kinds=("job",)))

    assert await engine.tasks.workers() == []
    await worker(engine, "default", "other")
    await worker(engine, namespace="another")


async def test_a_queue_that_is_claimed_from_again_gives_what_it_kept(engine: Engine) -> None:
    lease = await worker(engine)
    [first, second] = await engine.submit_many(jobs(2))
    assert [one.task.id for one in await engine.claim(lease)] == [first]

    await deliver(engine, PUSH)
    assert await engine.claim(lease) == []

    await deliver(engine, PULL)
    assert [one.task.id for one in await engine.claim(lease)] == [second]


@only_direct
async def test_who_waits_gets_nothing_while_the_queue_pushes_and_the_task_when_it_does_not(engine: Engine) -> None:
    lease = await worker(engine, ttl_s=3600)
    async with poll(engine, lease, wait_s=60) as waits:
        await deliver(engine, PUSH)
        await until(lambda: waiting(engine) == 1)
        id_ = await engine.submit(job())  # which would be handed to who waits, were it not for the delivery
        await until(lambda: waiting(engine) == 1)
        assert await state(engine, id_) is State.QUEUED

        await deliver(engine, PULL)
        [claimed] = await soon(waits)
        assert claimed.task.id == id_


async def test_a_server_that_has_not_heard_of_the_change_begins_nothing_either(engine: Engine) -> None:
    """It has read that the queue pushes; meanwhile another server has set it up for workers that claim."""
    engine.parts.effects["push"] = _nowhere
    await deliver(engine, PUSH)
    await engine.parts.outgoing.dispatcher.reload()
    settings = dict(engine.parts.outgoing.dispatcher.queues)
    await deliver(engine, PULL)
    id_ = await engine.submit(job())
    engine.parts.outgoing.dispatcher.queues = settings
    engine.parts.outgoing.dispatcher._stale = False

    assert await engine.parts.outgoing.dispatch_tick() == 0
    assert await state(engine, id_) is State.QUEUED


async def test_the_processes_of_a_queue_are_the_only_ones_that_take_its_tasks(engine: Engine) -> None:
    await deliver(engine, STDIO)
    pool, other = await worker(engine, delivery="stdio"), await worker(engine, "default", "other")
    id_ = await engine.submit(job())

    assert await engine.claim(other) == []
    [claimed] = await engine.claim(pool)
    assert claimed.task.id == id_


async def test_a_claim_asks_the_database_once_as_before(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await worker(engine)
    await engine.submit_many(jobs(10))
    asked: list[str] = []
    fetch = Session.fetch

    async def counted(self: Session, name: str, *arguments: Any) -> Any:
        asked.append(name)
        return await fetch(self, name, *arguments)

    monkeypatch.setattr(Session, "fetch", counted)
    assert len(await engine.claim(lease, 5)) == 5
    assert len(await engine.claim(lease, 5)) == 5
    assert asked == ["start_due", "start_due"]


async def test_a_task_that_requires_labels_is_sent_where_the_queue_says_that_its_workers_have_them(
    engine: Engine,
) -> None:
    engine.parts.effects["push"] = _nowhere
    await deliver(engine, PUSH)
    id_ = await engine.submit(job(requires=("gpu", "eu")))
    assert await engine.parts.outgoing.dispatch_tick() == 0
    [waits] = await engine.tasks.why_waiting(id_)
    assert (waits.reason, waits.message) == (
        "no_capable_worker", "it requires eu, gpu, which the queue default does not list for its push workers",
    )  # fmt: skip

    await deliver(engine, replace(PUSH, labels=("eu", "gpu", "fast")))
    assert await engine.parts.outgoing.dispatch_tick() == 1
    assert await state(engine, id_) is State.RUNNING


async def _nowhere(_effect: object) -> None:
    """Nothing is carried out in these tests."""


# ------------------------------------------------------------------------------------------------- why it waits


async def test_why_a_task_waits_says_how_it_is_delivered(engine: Engine) -> None:
    await worker(engine, "default", "other")
    await deliver(engine, STDIO)
    id_ = await engine.submit(job())

    [waits] = await engine.tasks.why_waiting(id_)
    assert waits.reason == "no_capable_worker"
    assert waits.message == (
        "no live worker takes job from the queue default; its tasks are delivered by stdio, and workers that claim do "
        "not get them"
    )

    await worker(engine, delivery="stdio")
    [waits] = await engine.tasks.why_waiting(id_)
    assert waits.reason == "in_line"


async def test_why_a_task_waits_to_be_sent_says_that_nobody_can_claim_it(engine: Engine) -> None:
    await deliver(engine, PUSH)
    id_ = await engine.submit(job())

    [waits] = await engine.tasks.why_waiting(id_)
    assert (waits.reason, waits.message) == (
        "in_line", "it is sent out by push when its turn comes; workers that claim do not get it",
    )  # fmt: skip


async def test_a_queue_that_cannot_be_sent_out_holds_up_no_other(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.parts.effects["push"] = _nowhere
    for queue in ("broken", "default"):
        await engine.queues.put(queue, delivery=PUSH, limits=QueueConfig())
    held_up, other = await engine.submit(job(queue="broken")), await engine.submit(job())
    real = engine.parts.outgoing.dispatcher._dispatch_from

    async def send_out(namespace: str, queue: str) -> int:
        if queue == "broken":
            raise RuntimeError("it cannot be looked at")
        return await real(namespace, queue)

    with monkeypatch.context() as patch:
        patch.setattr(engine.parts.outgoing.dispatcher, "_dispatch_from", send_out)
        with pytest.raises(RuntimeError, match="cannot be looked at"):
            await engine.parts.outgoing.dispatch_tick()
    assert (await state(engine, other), await state(engine, held_up)) == (State.RUNNING, State.QUEUED)
    assert await engine.parts.outgoing.dispatch_tick() == 1
    assert await state(engine, held_up) is State.RUNNING
