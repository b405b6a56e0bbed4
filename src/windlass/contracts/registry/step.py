"""Steps over the wire: begin, complete, fail, and what was tried."""

from __future__ import annotations

from uuid import UUID

from windlass.contracts.registry.call import Call, missing
from windlass.contracts.registry.work import about, final_errors, say
from windlass.core.access import Role
from windlass.core.check import LARGE_MAX_BYTES, check_name
from windlass.core.error import Invalid, NotFound
from windlass.core.step import Step
from windlass.core.step_attempt import AttemptState, StepAttempt
from windlass.core.transition import Instant
from windlass.core.workflow_command import StepBegin, StepComplete, StepFail
from windlass.wire import registry as wire
from windlass.wire.id import parse_id
from windlass.wire.protos import kagzi_pb2 as pb
from windlass.wire.registry_step import attempt_messages, cached_result, read_recorded_id, read_step_id

PAGE_DEFAULT = 50
_NEVER = Instant.min


async def begin_step(call: Call, request: pb.BeginStepRequest) -> pb.BeginStepResponse:
    view, holder = await about(call, request.run_id)
    name, occurrence = _step(request.step_id)
    policy = request.retry_policy if request.HasField("retry_policy") else None
    extra = wire.extra_of(view.wire)
    wanted = StepAttempt(
        call.engine.chance.new_id(), view.task.id, name, occurrence, 1, 0, 0, AttemptState.RUNNING, _NEVER,
        policy=None if policy is None else wire.policy_from(policy, view.task.policy),
        final=wire.prefixes_from(policy) or extra.non_retryable_errors,
        given=wire.json_bytes("input", request.input, empty=b"") or None,
    )  # fmt: skip
    answer = await say(call, StepBegin(view.task.id, holder, name, occurrence, wanted))
    if isinstance(answer, Step):
        return pb.BeginStepResponse(should_execute=False, cached_result=cached_result(answer))
    return pb.BeginStepResponse(should_execute=True)


async def complete_step(call: Call, request: pb.CompleteStepRequest) -> pb.Empty:
    output = wire.json_bytes("output", request.output, empty=None, most=LARGE_MAX_BYTES)
    view, holder = await about(call, request.run_id)
    name, occurrence = _step(request.step_id)
    await say(call, StepComplete(view.task.id, holder, name, occurrence, output, call.engine.chance.new_id()))
    return pb.Empty()


async def fail_step(call: Call, request: pb.FailStepRequest) -> pb.Empty:
    """If another try follows, the run sleeps until then and is polled again: this execution of it is over."""
    name, occurrence = _step(request.step_id)
    view, holder = await about(call, request.run_id)
    failure = wire.failure_from(request.error, final_errors(view))
    await say(call, StepFail(view.task.id, holder, name, occurrence, failure, call.engine.chance.new_id()))
    return pb.Empty()


async def get_step_attempt(call: Call, request: pb.GetStepAttemptRequest) -> pb.GetStepAttemptResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    given = request.step_attempt_id
    if (recorded := read_recorded_id(given)) is not None:
        task_id = recorded[0]
    else:
        attempt_id = parse_id("step", given)
        if attempt_id is None:
            raise Invalid("must be a UUID", field="step_attempt_id")
        try:
            task_id = (await call.engine.workflows.attempt(attempt_id)).task_id
        except NotFound:
            raise missing("step_attempt", given) from None
    found = [one for one in await _all(call, task_id, namespace) if one.step_attempt_id == given]
    if not found:
        raise missing("step_attempt", given)
    return pb.GetStepAttemptResponse(step_attempt=found[0])


async def list_step_attempts(call: Call, request: pb.ListStepAttemptsRequest) -> pb.ListStepAttemptsResponse:
    """Every try, in the order in which they began; of one step if it is named."""
    namespace = call.may(Role.VIEWER, request.namespace_id)
    found = await _all(call, wire.read_id("workflow_run_id", request.workflow_run_id), namespace)
    if request.step_id:
        found = [one for one in found if one.step_id == request.step_id]
    start = _read_offset(request.page_token)
    end = start + wire.page_size(request.page_size, PAGE_DEFAULT)
    token = f"o{end}" if end < len(found) else ""
    return pb.ListStepAttemptsResponse(step_attempts=found[start:end], next_page_token=token)


async def _all(call: Call, task_id: UUID, namespace: str) -> list[pb.StepAttempt]:
    view = await call.run(task_id, namespace)
    steps = await call.engine.load_steps(task_id)
    return attempt_messages(view.task, steps, await call.engine.workflows.attempts(task_id))


def _read_offset(token: str) -> int:
    """Tries are only ever added at the end, so that a count is a position."""
    if not token:
        return 0
    if token[0] != "o" or not token[1:].isascii() or not token[1:].isdigit() or len(token) > 10:
        raise Invalid("is not one that was given", field="page_token")
    return int(token[1:])


def _step(step_id: str) -> tuple[str, int]:
    check_name("step_id", step_id)
    return read_step_id(step_id)
