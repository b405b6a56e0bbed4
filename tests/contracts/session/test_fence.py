"""Who may speak for an attempt: its holder, over the wire of its delivery, with a key of its namespace. Nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import grpc
import msgspec
import pytest
from tests.kit.work import begin, job, task

from windlass import Engine, Invalid, State
from windlass.contracts.callback.delivery import PUSH, Push
from windlass.contracts.session.wire import methods as paths
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.messages import report_message
from windlass.core.access import Role
from windlass.core.command import Complete
from windlass.core.ids import derived_id
from windlass.core.progress import Amount, ProgressReport
from windlass.core.queue import QueueConfig
from windlass.core.schedule import ScheduleSpec
from windlass.core.step import Place
from windlass.core.step_command import StepChild, StepTime
from windlass.core.task import Task
from windlass.core.upstream import results_payload


class Caller:
    """Somebody with a key."""

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self._channel, self._metadata = channel, (("authorization", f"Bearer {key}"),)

    async def ask(self, path: str, request: Any, reply: Any) -> Any:
        """The answer, or the status by which it was refused."""
        method = self._channel.unary_unary(path, type(request).SerializeToString, reply.FromString)
        try:
            return await method(request, metadata=self._metadata, timeout=30)
        except grpc.aio.AioRpcError as error:
            return error.code().name

    async def call(self, name: str, /, **asked: Any) -> Any:
        told = await self.ask(paths.CALL, pb.CallRequest(name=name, body=msgspec.msgpack.encode(asked)), pb.CallReply)
        return told if isinstance(told, str) else msgspec.msgpack.decode(told.body)

    async def report_late(self, held: Task, token: UUID) -> Any:
        said = report_message(1, Complete(held.id, held.attempt, token, b'"forged"'))
        told = await self.ask(paths.REPORT_LATE, pb.LateReports(lease_id=token.bytes, reports=[said]), pb.Answers)
        return "accepted" if told.accepted else told.refused[0].code

    async def note(self, held: Task, token: UUID) -> Any:
        [told] = await self.call("WriteNotes", notes=[ProgressReport(held.id, held.attempt, token, Amount(1.0))])
        return "accepted" if told is None else told["code"]

    async def step(self, command: Any) -> Any:
        return await self.call("RecordStep", name=type(command).__name__, command=msgspec.to_builtins(command))


@pytest.fixture
async def callers(live_engine: Engine, server: str) -> AsyncIterator[tuple[Caller, Caller]]:
    """Submitters of the default namespace and of another."""
    keys = [
        (await live_engine.keys.create_key(name="k", role=Role.SUBMITTER, namespace=namespace))[1]
        for namespace in ("default", "other")
    ]
    async with grpc.aio.insecure_channel(server.removeprefix("http://")) as channel:
        yield Caller(channel, keys[0]), Caller(channel, keys[1])


async def pushed(engine: Engine) -> Task:
    """An attempt that was sent out."""
    push = Push(url="https://example.com/tasks").checked()
    await engine.queues.put("out", delivery=push, limits=QueueConfig())

    async def nowhere(_: Any) -> None: ...

    engine.parts.effects[PUSH] = nowhere
    engine.parts.outgoing.dispatcher.mark(None)
    task_id = await engine.submit(job(queue="out"))
    while (await task(engine, task_id)).attempt == 0:
        await engine.parts.outgoing.dispatch_tick()
    return await task(engine, task_id)


async def test_the_token_of_an_attempt_that_was_sent_out_cannot_be_computed(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    held = await pushed(live_engine)
    guess = derived_id("attempt", held.id, held.attempt)

    assert held.lease_id != guess
    for caller in callers:
        assert await caller.report_late(held, guess) == "lease_lost"
        assert await caller.note(held, guess) == "lease_lost"
    assert (await task(live_engine, held.id)).state is State.RUNNING


async def test_the_true_token_of_an_attempt_that_was_sent_out_opens_nothing_here(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    held = await pushed(live_engine)
    assert held.lease_id is not None

    for caller in callers:
        assert await caller.report_late(held, held.lease_id) == "lease_lost"
        assert await caller.note(held, held.lease_id) == "lease_lost"
        for path, request in _by_lease(held.lease_id):
            assert await caller.ask(path, request, pb.Lost) == "NOT_FOUND"
    assert (await task(live_engine, held.id)).state is State.RUNNING


async def test_a_caller_of_another_namespace_cannot_speak_for_an_attempt_whose_token_it_has(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    held = (await begin(live_engine)).task
    token = held.lease_id
    assert token is not None
    _, stranger = callers

    assert await stranger.report_late(held, token) == "not_found"
    assert await stranger.note(held, token) == "not_found"
    assert await stranger.step(StepTime(held.id, held.attempt, token, Place(0, "now"))) == "NOT_FOUND"
    for path, request in _by_lease(token):
        assert await stranger.ask(path, request, pb.Lost) == "NOT_FOUND"
    assert await task(live_engine, held.id) == held


async def test_its_holder_may_also_when_nobody_knows_the_lease_any_more(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    held = (await begin(live_engine)).task
    assert held.lease_id is not None
    async with live_engine.store.begin() as tx:
        await tx.session.connection.execute("delete from windlass.lease")
    own, stranger = callers

    assert await stranger.report_late(held, held.lease_id) == "not_found"
    assert await own.note(held, held.lease_id) == "accepted"
    assert await own.report_late(held, held.lease_id) == "accepted"


async def test_nobody_is_told_a_token(live_engine: Engine, callers: tuple[Caller, Caller]) -> None:
    held = (await begin(live_engine)).task
    own, _ = callers

    for name, asked in (("Wait", {}), ("SendSignal", {"name": "s"}), ("Cancel", {})):
        told = await own.call(name, task_id=held.id, **asked)
        assert told["id"] == str(held.id)
        assert told["lease_id"] is None
    workers = await live_engine.workers.page()
    assert held.lease_id not in {worker.id for worker in workers.workers}


async def test_a_workflow_is_not_told_what_a_task_of_another_namespace_returned(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    secret = await begin(live_engine)
    await live_engine.complete(secret, b'"secret"')
    lease = await live_engine.open_lease("eve", ["default"], namespace="other")
    await live_engine.submit(job(namespace="other"))
    [flow] = await live_engine.claim(lease)
    _, stranger = callers

    said = StepChild(flow.task.id, flow.task.attempt, lease.id, Place(0, "child"), child_id=secret.task.id)
    told = await stranger.step(said)

    assert (told["state"], told["result"]) == ("failed", None)
    assert told["error"]["reason"] == "GONE"


def _by_lease(token: UUID) -> list[tuple[str, Any]]:
    return [(paths.EXTEND, pb.ExtendRequest(lease_id=token.bytes)), (paths.LOSE, pb.LoseRequest(lease_id=token.bytes))]


async def test_a_submission_names_nothing_of_another_namespace(
    live_engine: Engine, callers: tuple[Caller, Caller]
) -> None:
    workflow = (await begin(live_engine)).task
    schedule = await live_engine.schedules.create(ScheduleSpec(kind="job", queue="default", cron="0 0 * * *"))
    run_id = UUID(int=7)
    await live_engine.submit(job(run_id=run_id))
    own, stranger = callers

    for origin, status in (
        ({"parent_id": workflow.id}, "NOT_FOUND"),
        ({"schedule_id": schedule.id}, "PERMISSION_DENIED"),
        ({"replay_of": workflow.id}, "PERMISSION_DENIED"),
        ({"job_id": workflow.id}, "PERMISSION_DENIED"),
        ({"run_id": run_id}, "INVALID_ARGUMENT"),
    ):
        said = [job(namespace="other", **origin)]
        assert await stranger.call("SubmitMany", submissions=said) == status, origin
    assert (await live_engine.schedules.get(schedule.id)) == schedule
    assert len(await own.call("SubmitMany", submissions=[job(parent_id=workflow.id)])) == 1


@pytest.mark.parametrize("namespace", [None, "other"])
async def test_a_payload_is_not_filled_with_what_a_task_of_another_namespace_returned(
    live_engine: Engine, callers: tuple[Caller, Caller], namespace: str | None
) -> None:
    secret = await begin(live_engine)
    await live_engine.complete(secret, b'"secret"')
    _, stranger = callers

    with pytest.raises(Invalid):
        await live_engine.payloads.whole(results_payload("x", secret.task.id), "other")
    assert await stranger.call("GetResults", task_ids=[secret.task.id], namespace=namespace) == {}
    assert await stranger.call("GetResults", task_ids=[secret.task.id], namespace="default") == "PERMISSION_DENIED"
    assert await live_engine.results([secret.task.id], "other") == {}
