"""The long poll: a worker requests one run and waits for it.

A waiting poll keeps the worker alive and costs no more than a heartbeat. A caller that cancels its poll has claimed
nothing; a run that was claimed at just that moment is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from windlass.contracts.registry.server.call import TRACE, Call
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.messages import extra_of
from windlass.contracts.registry.wire.service import ATTEMPT, CONTEXT, LEASE_TOKEN, WORKER_ID
from windlass.contracts.registry.wire.worker import Token, read_token
from windlass.core.access import Role
from windlass.core.command import Claimed
from windlass.core.lease import Lease
from windlass.core.task import Task
from windlass.core.worker import Worker, WorkerState
from windlass.engine.liveness.workers import lease_of_worker
from windlass.errors import Invalid, InvalidState, LeaseLost, NotFound, Unavailable
from windlass.net.ids import parse_id

UNKNOWN = "Worker not registered or offline. Call RegisterWorker first."
DRAINING = "Worker is draining and not accepting new work"
CONTEXT_MAX_BYTES = 4096  # limit of gRPC metadata; a larger context is read with GetWorkflowRun
ANSWER_BEFORE_S = 0.5  # before the deadline of the caller, so that nothing is claimed for a call that has just ended


async def poll_activity(call: Call, request: pb.PollActivityRequest) -> pb.PollActivityResponse:
    """Returns one run, or an empty response if none came in time."""
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    wait_s, remaining_s = call.options.poll_timeout_s, call.context.time_remaining()
    if remaining_s is not None:
        wait_s = max(0.0, min(wait_s, remaining_s - ANSWER_BEFORE_S))
    until_s = asyncio.get_running_loop().time() + wait_s
    worker, queue, just_read = await _worker(call, request)
    while True:
        lease = _lease(call, worker, queue, namespace, request)
        claimed = await _claim(call, lease, max(0.0, until_s - asyncio.get_running_loop().time()))
        if claimed is None:
            return pb.PollActivityResponse()
        if just_read or LEASE_TOKEN in call.metadata:
            return await _answer(call, claimed)
        try:
            worker, just_read = await call.shared.workers.read(worker.id), True
        except BaseException:
            call.engine.workers.rescue([claimed])
            raise
        if worker.lease_id == lease.id:
            return await _answer(call, claimed)
        call.engine.workers.rescue([claimed])  # the worker registered again meanwhile and polls under another lease


async def _answer(call: Call, claimed: Claimed) -> pb.PollActivityResponse:
    task, give_back = claimed.task, partial(call.engine.workers.rescue, [claimed])
    # A call that is not done in this callback was cancelled before its response was sent.
    call.context.add_done_callback(lambda context: None if context.done() else give_back())
    try:
        call.context.set_trailing_metadata(await _metadata(call, task))
    except Exception:
        give_back()
        raise
    return pb.PollActivityResponse(run_id=str(task.id), workflow_type=task.kind, workflow_input=claimed.payload)


async def _worker(call: Call, request: pb.PollActivityRequest) -> tuple[Worker, str, bool]:
    """Returns the worker, its queue, and whether the worker was read just now. The request has both as text, in either
    order: the one that names a known worker is the worker."""
    if not request.supported_workflow_types:
        raise Invalid("cannot be empty", field="supported_workflow_types")
    pairs = ((request.worker_id, request.task_queue), (request.task_queue, request.worker_id))
    ids = [(found, queue) for text, queue in pairs if (found := parse_id("worker", text)) is not None]
    if not ids:
        raise Invalid("must be a UUID", field="worker_id")
    for worker_id, queue in ids:
        with contextlib.suppress(NotFound):
            worker, just_read = await call.shared.workers.get(worker_id)
            if call.reaches(worker.namespace):
                return worker, queue, just_read
    raise InvalidState(UNKNOWN)


def _lease(call: Call, worker: Worker, queue: str, namespace: str, request: pb.PollActivityRequest) -> Lease:
    """The lease of this poll, with the kinds that the worker has registered and requests now."""
    lease = lease_of_worker(worker)
    if (token := call.metadata.get(LEASE_TOKEN)) is not None:
        lease = replace(lease, id=read_token(token).lease_id)
    if lease.id == worker.lease_id:
        _check_online(worker)
    if (queue or worker.queues[0]) != worker.queues[0]:
        raise InvalidState(f"the worker is registered for the queue {worker.queues[0]}, not {queue}")
    if namespace != worker.namespace:
        raise InvalidState(f"the worker is registered in the namespace {worker.namespace}")
    kinds = {kind for kind in request.supported_workflow_types if worker.kinds is None or kind in worker.kinds}
    if not kinds:
        raise InvalidState("the worker is registered for none of these workflow types")
    return replace(lease, kinds=tuple(sorted(kinds)))


def _check_online(worker: Worker) -> None:
    match worker.state:
        case WorkerState.OFFLINE:
            raise InvalidState(UNKNOWN)
        case WorkerState.DRAINING:
            raise InvalidState(DRAINING)


async def _claim(call: Call, lease: Lease, wait_s: float) -> Claimed | None:
    """Claims one run. A drain or the end of the worker ends the wait. If the call is cancelled, the engine gives back
    what it claimed at this moment."""
    claiming = asyncio.ensure_future(call.engine.claim(lease, 1, wait_s=wait_s))
    watching = asyncio.ensure_future(_gone(call, lease, wait_s + 1.0))
    try:
        with call.shared.polls.extending(UUID(lease.worker), lease.id):
            await asyncio.wait({claiming, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not claiming.done() and (gone := watching.result()) is not None:
            raise gone
        found = await claiming
    except LeaseLost:
        call.shared.workers.forget(UUID(lease.worker))
        raise InvalidState(UNKNOWN) from None
    finally:
        claiming.cancel()
        watching.cancel()
        me, ended = asyncio.current_task(), claiming.done() and not claiming.cancelled()
        if me is not None and me.cancelling() and ended and claiming.exception() is None:
            call.engine.workers.rescue(claiming.result())
    return found[0] if found else None


async def _gone(call: Call, lease: Lease, wait_s: float) -> InvalidState | None:
    """Waits until the worker may claim no more and returns the reason; None after `wait_s` without news of it."""
    while await call.engine.workers.await_notification(lease.id, wait_s):
        try:
            worker = await call.shared.workers.read(UUID(lease.worker))
            if worker.lease_id == lease.id:
                _check_online(worker)
        except NotFound:
            return InvalidState(UNKNOWN)
        except InvalidState as error:
            return error
    return None


async def _metadata(call: Call, task: Task) -> tuple[tuple[str, str | bytes], ...]:
    assert task.lease_id is not None, task.id
    more: list[tuple[str, str | bytes]] = [
        (LEASE_TOKEN, str(Token(task.lease_id, task.attempt))),
        (ATTEMPT, str(task.attempt)),
        (WORKER_ID, task.worker or ""),
    ]
    if task.trace is not None:
        more.append((TRACE, task.trace))
    with contextlib.suppress(NotFound, Unavailable):
        context = bytes(extra_of((await call.engine.tasks.get(task.id)).wire).context)
        if context and len(context) <= CONTEXT_MAX_BYTES:
            more.append((CONTEXT, context))
    return tuple(more)
