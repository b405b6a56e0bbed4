"""Calls about steps: begin, complete, fail, and lists of step attempts."""

from __future__ import annotations

from uuid import UUID

from windlass.contracts.registry.commands import StepBegin, StepComplete, StepFail
from windlass.contracts.registry.rules import AttemptState, StepAttempt
from windlass.contracts.registry.server.call import Call, missing
from windlass.contracts.registry.server.work import carry_out, credential_of
from windlass.contracts.registry.step_try import StepAttemptTable
from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire import messages as wire
from windlass.contracts.registry.wire.step import attempt_messages, cached_result, read_step_id, task_of_recorded_id
from windlass.core.access import Role
from windlass.core.states import Instant
from windlass.core.step import Step
from windlass.core.validation import LARGE_MAX_BYTES, check_name
from windlass.errors import Invalid

PAGE_DEFAULT = 50


async def begin_step(call: Call, request: pb.BeginStepRequest) -> pb.BeginStepResponse:
    credential = credential_of(call, request.run_id)
    options = await call.run_options(credential.task_id)
    name, occurrence = _step(request.step_id)
    policy = request.retry_policy if request.HasField("retry_policy") else None
    wanted = StepAttempt(
        call.engine.parts.randomness.new_id(), credential.task_id, name, occurrence, 1, 0, 0, AttemptState.RUNNING,
        Instant.min,
        policy=None if policy is None else wire.policy_from(policy, options.policy),
        final=wire.prefixes_from(policy) or options.final_errors,
        given=wire.json_bytes("input", request.input, empty=b"") or None,
    )  # fmt: skip
    answer = await carry_out(call, StepBegin(credential, name, occurrence, wanted))
    if isinstance(answer, Step):
        return pb.BeginStepResponse(should_execute=False, cached_result=cached_result(answer))
    return pb.BeginStepResponse(should_execute=True)


async def complete_step(call: Call, request: pb.CompleteStepRequest) -> pb.Empty:
    output = wire.json_bytes("output", request.output, empty=None, most=LARGE_MAX_BYTES)
    credential = credential_of(call, request.run_id)
    name, occurrence = _step(request.step_id)
    await carry_out(call, StepComplete(credential, name, occurrence, output, call.engine.parts.randomness.new_id()))
    return pb.Empty()


async def fail_step(call: Call, request: pb.FailStepRequest) -> pb.Empty:
    """If the step is retried, the run sleeps until then and is polled again; this execution of it ends."""
    name, occurrence = _step(request.step_id)
    credential = credential_of(call, request.run_id)
    failure = wire.failure_from(request.error, (await call.run_options(credential.task_id)).final_errors)
    await carry_out(call, StepFail(credential, name, occurrence, failure, call.engine.parts.randomness.new_id()))
    return pb.Empty()


async def get_step_attempt(call: Call, request: pb.GetStepAttemptRequest) -> pb.GetStepAttemptResponse:
    namespace = call.may(Role.VIEWER, request.namespace_id)
    id_text = request.step_attempt_id
    task_id = task_of_recorded_id(id_text)
    if task_id is None:
        attempt_id = wire.read_id("step_attempt_id", id_text, "step")
        async with call.engine.store.single() as tx:
            attempt = await StepAttemptTable(tx.session).get_attempt(attempt_id)
        task_id = None if attempt is None else attempt.task_id
    for found in [] if task_id is None else await _all(call, task_id, namespace):
        if found.step_attempt_id == id_text:
            return pb.GetStepAttemptResponse(step_attempt=found)
    raise missing("step_attempt", id_text)


async def list_step_attempts(call: Call, request: pb.ListStepAttemptsRequest) -> pb.ListStepAttemptsResponse:
    """Every step attempt in start order; of one step if `step_id` is set."""
    namespace = call.may(Role.VIEWER, request.namespace_id)
    found = await _all(call, wire.read_id("workflow_run_id", request.workflow_run_id), namespace)
    if request.step_id:
        found = [attempt for attempt in found if attempt.step_id == request.step_id]
    start = _read_offset(request.page_token)
    end = start + wire.page_size(request.page_size, PAGE_DEFAULT)
    token = f"o{end}" if end < len(found) else ""
    return pb.ListStepAttemptsResponse(step_attempts=found[start:end], next_page_token=token)


async def _all(call: Call, task_id: UUID, namespace: str) -> list[pb.StepAttempt]:
    view = await call.run(task_id, namespace)
    steps = await call.engine.load_steps(task_id)
    async with call.engine.store.single() as tx:
        attempts = await StepAttemptTable(tx.session).task_attempts(task_id)
    return attempt_messages(view.task, steps, attempts)


def _read_offset(token: str) -> int:
    """A page token is an offset: step attempts are only ever appended."""
    if not token:
        return 0
    if token[0] != "o" or not token[1:].isascii() or not token[1:].isdigit() or len(token) > 10:
        raise Invalid("is not a page token of this server", field="page_token")
    return int(token[1:])


def _step(step_id: str) -> tuple[str, int]:
    check_name("step_id", step_id)
    return read_step_id(step_id)
