"""What a worker says about the run that it executes. A run is only reported by who may still report it."""

from __future__ import annotations

from windlass.contracts.registry.call import LEASE_TOKEN, WORKER_ID, Call, missing
from windlass.core.access import Role
from windlass.core.check import LARGE_MAX_BYTES
from windlass.core.error import Invalid, InvalidState, NotFound
from windlass.core.step import Step
from windlass.core.step_attempt import Holder, StepAttempt
from windlass.core.task import Task
from windlass.core.worker import Beat
from windlass.core.workflow_command import SLEEP_MAX_S, WorkflowCommand, WorkflowComplete, WorkflowFail, WorkflowSleep
from windlass.engine.view import TaskView
from windlass.wire import registry as wire
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.registry_worker import read_token


async def complete_workflow(call: Call, request: pb.CompleteWorkflowRequest) -> pb.Empty:
    output = wire.json_bytes("output", request.output, empty=None, most=LARGE_MAX_BYTES)
    view, holder = await about(call, request.run_id)
    await say(call, WorkflowComplete(view.task.id, holder, output))
    return pb.Empty()


async def fail_workflow(call: Call, request: pb.FailWorkflowRequest) -> pb.Empty:
    """Another try follows within the run's policy, unless the error is final."""
    view, holder = await about(call, request.run_id)
    await say(call, WorkflowFail(view.task.id, holder, wire.failure_from(request.error, final_errors(view))))
    return pb.Empty()


async def schedule_sleep(call: Call, request: pb.ScheduleSleepRequest) -> pb.Empty:
    if request.duration_seconds > SLEEP_MAX_S:
        raise Invalid(f"must be at most {SLEEP_MAX_S:.0f} (30 days)", field="duration_seconds")
    view, holder = await about(call, request.run_id)
    await say(call, WorkflowSleep(view.task.id, holder, float(request.duration_seconds)))
    return pb.Empty()


async def record_heartbeat(call: Call, request: pb.RecordHeartbeatRequest) -> pb.Empty:
    """A sign of life for one run, from the worker that runs it."""
    if not request.worker_id:
        raise Invalid("cannot be empty", field="worker_id")
    worker_id = wire.read_id("worker_id", request.worker_id, "worker")
    view, _ = await about(call, request.run_id)
    task = view.task
    if wire.status_of_run(task) != pb.WORKFLOW_STATUS_RUNNING or task.worker != str(worker_id):
        raise InvalidState(f"the run is {wire.shown_status(task)}, or not with this worker")
    try:
        await call.engine.workers.beat(Beat(worker_id))
    except NotFound:
        raise InvalidState("the worker is offline") from None
    return pb.Empty()


async def about(call: Call, run_id: str) -> tuple[TaskView, Holder]:
    """The run that is meant, and who says that it has it."""
    call.may_by_id(Role.SUBMITTER)
    id_ = wire.read_id("run_id", run_id)
    worker, token = call.metadata.get(WORKER_ID), call.metadata.get(LEASE_TOKEN)
    read = None if token is None else read_token(token)
    holder = Holder(None if read is None else read.attempt, None if read is None else read.lease_id, worker)
    return await call.run(id_), holder


async def say(call: Call, said: WorkflowCommand) -> Task | Step | StepAttempt:
    try:
        return await call.engine.workflows.say(said)
    except NotFound:
        raise missing("workflow_run", said.task_id) from None


def final_errors(view: TaskView) -> tuple[str, ...]:
    return wire.extra_of(view.wire).non_retryable_errors
