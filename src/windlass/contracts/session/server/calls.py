"""Carries out the calls of remote programs, within the namespace of their key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.contracts.session.wire import calls
from windlass.contracts.session.wire.calls import CALLS, STEPS, Call, Problem
from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.progress import ProgressReport
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.errors import Forbidden, Invalid, NotFound
from windlass.net.status import known_code, public_message

WAIT_MAX_S = 20.0

_encode = msgspec.msgpack.Encoder().encode
_decoders = {name: msgspec.msgpack.Decoder(kind).decode for name, kind in CALLS.items()}
_step_decoders = {name: msgspec.msgpack.Decoder(kind).decode for name, kind in STEPS.items()}


async def answer(engine: Engine, principal: Principal, access: AttemptAccess, name: str, body: bytes) -> bytes:
    """Returns the encoded answer. Raises a `WindlassError` if there is none."""
    if name not in _decoders:
        raise NotFound(f"there is no call {name[:100]!r}")
    call = _decode(_decoders[name], body, name, "body")
    result = await _carry_out(engine, principal, access, call)
    if isinstance(result, Task):
        result = replace(result, lease_id=None)  # only the worker has the token
    return _encode(result)


def _decode(decode: Callable[[Any], Any], body: Any, name: str, field: str) -> Any:
    try:
        return decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"does not fit {name}: {error}", field=field) from None


async def _carry_out(engine: Engine, principal: Principal, access: AttemptAccess, call: Call[Any]) -> Any:
    match call:
        case calls.SubmitMany(submissions):
            check_role(principal, Role.SUBMITTER)
            for submission in submissions:
                check_reach(principal, submission.namespace)
            await _check_origins(engine, submissions)
            return await engine.submit_many(submissions)
        case calls.Wait(task_id, timeout_s):
            await _check_task(engine, principal, task_id)
            return (await engine.wait(task_id, min(timeout_s, WAIT_MAX_S))).task
        case calls.Cancel(task_id, reason, force):
            check_role(principal, Role.SUBMITTER)
            await _check_task(engine, principal, task_id)
            return await engine.cancel(task_id, reason, force=force)
        case calls.CancelRun(run_id, reason):
            check_role(principal, Role.SUBMITTER)
            if principal.namespace is not None:
                page = await engine.tasks.page(namespace=principal.namespace, run_id=run_id, limit=1)
                if not page.tasks:
                    raise NotFound("there is no such run", run_id=run_id)
            return await engine.cancel_run(run_id, reason)
        case calls.GetResults(task_ids, namespace):
            if namespace is not None:
                check_reach(principal, namespace)
            return await engine.results(task_ids, namespace or principal.namespace)
        case calls.GetProgress(task_id):
            await _check_task(engine, principal, task_id)
            return await engine.progress(task_id)
        case calls.GetCheckpoint(task_id):
            await _check_task(engine, principal, task_id)
            return await engine.checkpoint(task_id)
        case calls.WriteNotes(notes):
            check_role(principal, Role.SUBMITTER)
            return await _write(engine, principal, access, notes)
        case calls.LoadSteps(task_id):
            await _check_task(engine, principal, task_id)
            return await engine.load_steps(task_id)
        case calls.RecordStep(name, command):
            check_role(principal, Role.SUBMITTER)
            if name not in _step_decoders:
                raise Invalid(f"{name[:100]!r} is not one of {', '.join(STEPS)}", field="name")
            step: StepCommand = _decode(_step_decoders[name], command, name, "command")
            await access.check(principal, step.task_id, step.lease_id)
            return await engine.record_step(step)
        case calls.SendSignal(task_id, name, payload, signal_id):
            check_role(principal, Role.SUBMITTER)
            await _check_task(engine, principal, task_id)
            return await engine.signal(task_id, name, payload, signal_id=signal_id)
        case calls.DeclareSchedules(app, schedules, namespace, anew):
            check_role(principal, Role.SUBMITTER)
            check_reach(principal, namespace)
            if any(schedule.job_id is not None for schedule in schedules):
                raise Forbidden("only the engine sets this", field="job_id")
            return await engine.declare_schedules(app, schedules, namespace=namespace, anew=anew)
        case calls.DeclareKinds(app, policies, namespace):
            check_role(principal, Role.SUBMITTER)
            check_reach(principal, namespace)
            return await engine.declare_kinds(app, policies, namespace=namespace)
    raise AssertionError(call)


async def _check_origins(engine: Engine, submissions: Sequence[Submission]) -> None:
    """A parent must be in the namespace of its child. Only the engine sets `schedule_id`, `replay_of` and `job_id`."""
    for submission in submissions:
        for field in ("schedule_id", "replay_of", "job_id"):
            if getattr(submission, field) is not None:
                raise Forbidden("only the engine sets this", field=field)
    parents = {s.parent_id for s in submissions if s.parent_id is not None}
    known = await engine.tasks.namespaces(sorted(parents)) if parents else {}
    for submission in submissions:
        parent_id = submission.parent_id
        if parent_id is not None and known.get(parent_id) != submission.namespace:
            raise NotFound(f"there is no task {parent_id}", field="parent_id")


async def _write(
    engine: Engine, principal: Principal, access: AttemptAccess, notes: Sequence[ProgressReport]
) -> list[Problem | None]:
    refused = await access.refusals(principal, [(note.task_id, note.lease_id) for note in notes])
    accepted = [note for note in notes if (note.task_id, note.lease_id) not in refused]
    outcomes = iter(await engine.note(accepted))
    errors = [refused[key] if (key := (note.task_id, note.lease_id)) in refused else next(outcomes) for note in notes]
    return [None if error is None else Problem(known_code(error), public_message(error)) for error in errors]


async def _check_task(engine: Engine, principal: Principal, task_id: UUID) -> None:
    """Raises NotFound for a task of another namespace."""
    namespace = (await engine.tasks.get(task_id)).task.namespace
    if principal.namespace not in (None, namespace):
        raise NotFound("there is no such task", task_id=task_id)
