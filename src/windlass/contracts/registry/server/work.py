"""Reports of a worker about its run: turns requests into commands, and carries out all commands about workflows."""

from __future__ import annotations

from msgspec.structs import replace

from windlass.contracts.registry.commands import StepComplete, StepFail, WorkflowCommand, WorkflowReport, WorkflowSleep
from windlass.contracts.registry.rules import RunCredential
from windlass.contracts.registry.server.call import Call, not_found_as
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire import messages as wire
from windlass.contracts.registry.wire.service import LEASE_TOKEN, WORKER_ID
from windlass.contracts.registry.wire.worker import read_token
from windlass.core.access import Role, check_role
from windlass.core.step import Step
from windlass.core.task import Outcome
from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from windlass.core.worker import WorkerHeartbeat
from windlass.engine.engine import Engine
from windlass.errors import Invalid, InvalidState, NotFound

SLEEP_MAX_S = 30 * 86400


async def complete_workflow(call: Call, request: pb.CompleteWorkflowRequest) -> pb.Empty:
    output = wire.json_bytes("output", request.output, empty=None, most=LARGE_MAX_BYTES)
    await carry_out(call, WorkflowReport(credential_of(call, request.run_id), Outcome.SUCCEEDED, output))
    return pb.Empty()


async def fail_workflow(call: Call, request: pb.FailWorkflowRequest) -> pb.Empty:
    """The run is retried within its policy, unless the error is final."""
    credential = credential_of(call, request.run_id)
    failure = wire.failure_from(request.error, (await call.run_options(credential.task_id)).final_errors)
    await carry_out(call, WorkflowReport(credential, Outcome.FAILED, failure=failure))
    return pb.Empty()


async def schedule_sleep(call: Call, request: pb.ScheduleSleepRequest) -> pb.Empty:
    if request.duration_seconds > SLEEP_MAX_S:
        raise Invalid(f"must be at most {SLEEP_MAX_S} (30 days)", field="duration_seconds")
    await carry_out(call, WorkflowSleep(credential_of(call, request.run_id), float(request.duration_seconds)))
    return pb.Empty()


async def record_heartbeat(call: Call, request: pb.RecordHeartbeatRequest) -> pb.Empty:
    """Extends one run, for the worker that runs it."""
    if not request.worker_id:
        raise Invalid("cannot be empty", field="worker_id")
    worker_id = wire.read_id("worker_id", request.worker_id, "worker")
    task = (await call.run(credential_of(call, request.run_id).task_id)).task
    if wire.status_of_run(task) != pb.WORKFLOW_STATUS_RUNNING or task.worker != str(worker_id):
        raise InvalidState(f"run {task.id} is {wire.shown_status(task)}, or it is leased to another worker")
    try:
        await call.engine.workers.heartbeat(WorkerHeartbeat(worker_id))
    except NotFound:
        raise InvalidState("the worker is offline") from None
    return pb.Empty()


def credential_of(call: Call, run_id: str) -> RunCredential:
    """The namespace of the run is checked with its command."""
    check_role(call.principal, Role.SUBMITTER)
    task_id, attempt, lease_id = wire.read_id("run_id", run_id), None, None
    if (text := call.metadata.get(LEASE_TOKEN)) is not None:
        token = read_token(text)
        attempt, lease_id = token.attempt or None, token.lease_id
    worker = call.metadata.get(WORKER_ID)
    return RunCredential(task_id, attempt, lease_id, worker=worker, namespace=call.principal.namespace)


async def carry_out(call: Call, command: WorkflowCommand) -> object:
    with not_found_as("workflow_run", command.task_id):
        return await run_command(call.engine, command)


async def run_command(engine: Engine, command: WorkflowCommand) -> object:
    """Returns the run, the step or the step attempt of the command. Its fields have been checked."""
    if isinstance(command, WorkflowReport | StepFail):
        command = replace(command, jitter=engine.parts.randomness.jitter())
    result = command.result if isinstance(command, WorkflowReport | StepComplete) else None
    if result is not None and len(result) > PAYLOAD_MAX_BYTES:
        what = "result" if isinstance(command, WorkflowReport) else "step"
        async with engine.parts.objects.kept("output", result, command.task_id, what) as reference:
            return await engine.workflows.carry_out(replace(command, result=reference))
    answer = await engine.workflows.carry_out(command)
    return await engine.parts.objects.whole_step(answer) if isinstance(answer, Step) else answer
