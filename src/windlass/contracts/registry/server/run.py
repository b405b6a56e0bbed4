"""Calls about workflow runs: start, get, list, cancel."""

from __future__ import annotations

from windlass.contracts.registry.server.call import Call, not_found_as
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire import messages as wire
from windlass.contracts.registry.wire.field_names import wire_field_names
from windlass.core.access import Role
from windlass.core.states import State
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.validation import KEY_MAX, LARGE_MAX_BYTES, NAME_MAX, check_name, check_text
from windlass.core.worker import Contract
from windlass.errors import Conflict, InvalidState, NotFound
from windlass.net.ids import parse_id


async def start_workflow(call: Call, request: pb.StartWorkflowRequest) -> pb.StartWorkflowResponse:
    """Starts a run. The same idempotency key returns the same run, regardless of the other fields."""
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    submission = _submission(call, request, namespace)
    await call.engine.keys.declare_namespace(namespace)
    try:
        with wire_field_names():
            run_id = await call.engine.submit(submission)
    except Conflict as existing:
        run_id = existing.details["task_id"]  # type: ignore[assignment]
    return pb.StartWorkflowResponse(run_id=str(run_id))


def _submission(call: Call, request: pb.StartWorkflowRequest, namespace: str) -> Submission:
    check_name("workflow_type", request.workflow_type)
    check_name("task_queue", request.task_queue)
    for field, text, longest in (
        ("workflow_id", request.workflow_id, KEY_MAX),
        ("idempotency_key", request.idempotency_key, KEY_MAX),
        ("version", request.version, NAME_MAX),
    ):
        if text:
            check_text(field, text, longest)
    policy = request.retry_policy if request.HasField("retry_policy") else None
    context = wire.json_bytes("context", request.context, empty=b"")
    deadline = wire.instant("deadline_at", request.deadline_at) if request.HasField("deadline_at") else None
    return Submission(
        kind=request.workflow_type,
        queue=request.task_queue,
        namespace=namespace,
        payload=wire.json_bytes("input", request.input, most=LARGE_MAX_BYTES),
        idempotency_key=request.idempotency_key or None,
        deadline_at=deadline,
        policy=wire.policy_from(policy),
        wire=wire.wire_of(
            request.workflow_id, context, request.version or wire.DEFAULT_VERSION, wire.prefixes_from(policy)
        ),
        trace=call.trace,
    )


async def get_workflow_run(call: Call, request: pb.GetWorkflowRunRequest) -> pb.GetWorkflowRunResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    view = await call.engine.parts.objects.whole(await call.run(wire.read_id("run_id", request.run_id), namespace))
    run = wire.run_message(view.task, view.created_at, view.payload, view.wire)
    return pb.GetWorkflowRunResponse(workflow_run=run)


async def list_workflow_runs(call: Call, request: pb.ListWorkflowRunsRequest) -> pb.ListWorkflowRunsResponse:
    """Newest first. Large inputs are left out of the list."""
    namespace = call.may(Role.VIEWER, request.namespace_id)
    page = await call.engine.tasks.page(
        namespace=namespace,
        states=wire.states_of(request.filter_status),
        after=wire.read_page_token(request.page_token),
        limit=wire.page_size(request.page_size),
    )
    runs = [wire.run_message(row.task, row.created_at, row.payload, row.wire) for row in page.tasks]
    return pb.ListWorkflowRunsResponse(
        workflow_runs=runs, next_page_token=wire.page_token(page.next), has_more=page.next is not None
    )


async def _cannot_be_signalled(call: Call, task: Task) -> bool:
    """Whether a worker of this contract runs the task: such a worker receives no cancellation."""
    worker_id = parse_id("worker", task.worker or "")
    if task.state is not State.RUNNING or worker_id is None:
        return False
    try:
        return (await call.engine.workers.get(worker_id)).contract is Contract.REGISTRY
    except NotFound:
        return False


async def cancel_workflow_run(call: Call, request: pb.CancelWorkflowRunRequest) -> pb.Empty:
    """Ends a waiting run, or a run of a worker of this contract, at once. Workers of our SDK get a cancel signal."""
    namespace = call.may(Role.SUBMITTER, request.namespace_id)
    view = await call.run(wire.read_id("run_id", request.run_id), namespace)
    if view.task.terminal or view.task.cancel is not None:
        raise InvalidState(f"the run is {wire.shown_status(view.task)} already")
    with not_found_as("workflow_run", request.run_id):
        await call.engine.cancel(view.task.id, force=await _cannot_be_signalled(call, view.task))
    return pb.Empty()
