"""The calls of programs far from the database, carried out by the engine within the namespace of their key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.contracts.session.reach import Reach
from windlass.core.access import Principal, Role, check_reach, check_role
from windlass.core.error import Forbidden, Invalid, NotFound, WindlassError
from windlass.core.note import Note
from windlass.core.step_command import StepCommand
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.engine.engine import Engine
from windlass.wire import call as calls
from windlass.wire.call import CALLS, STEPS, Call, Problem
from windlass.wire.status import known_code, told_message

WAIT_MAX_S = 20.0

_encode = msgspec.msgpack.Encoder().encode
_decoders = {name: msgspec.msgpack.Decoder(kind).decode for name, kind in CALLS.items()}


async def answer(engine: Engine, principal: Principal, reach: Reach, name: str, body: bytes) -> bytes:
    """Raises an error of our tree for whatever cannot be answered."""
    if name not in _decoders:
        raise NotFound(f"there is no call {name[:100]!r}")
    try:
        asked = _decoders[name](body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"does not fit {name}: {error}", field="body") from None
    told = await _carry_out(engine, principal, reach, asked)
    return _encode(replace(told, lease_id=None) if isinstance(told, Task) else told)  # whose token only its holder has


async def _carry_out(engine: Engine, principal: Principal, reach: Reach, asked: Call) -> Any:
    match asked:
        case calls.SubmitMany(submissions):
            check_role(principal, Role.SUBMITTER)
            for submission in submissions:
                check_reach(principal, submission.namespace)
            await _check_origins(engine, submissions)
            return await engine.submit_many(submissions)
        case calls.Wait(task_id, timeout_s):
            await _reached(engine, principal, task_id)
            return (await engine.wait(task_id, min(timeout_s, WAIT_MAX_S))).task
        case calls.Cancel(task_id, reason, force):
            check_role(principal, Role.SUBMITTER)
            await _reached(engine, principal, task_id)
            return await engine.cancel(task_id, reason, force=force)
        case calls.CancelRun(run_id, reason):
            check_role(principal, Role.SUBMITTER)
            await _reached_run(engine, principal, run_id)
            return await engine.cancel_run(run_id, reason)
        case calls.GetResults(task_ids, namespace):
            if namespace is not None:
                check_reach(principal, namespace)
            return await engine.results(task_ids, namespace or principal.namespace)
        case calls.GetProgress(task_id):
            await _reached(engine, principal, task_id)
            return await engine.progress(task_id)
        case calls.GetCheckpoint(task_id):
            await _reached(engine, principal, task_id)
            return await engine.checkpoint(task_id)
        case calls.WriteNotes(notes):
            check_role(principal, Role.SUBMITTER)
            return await _write(engine, principal, reach, notes)
        case calls.LoadSteps(task_id):
            await _reached(engine, principal, task_id)
            return await engine.load_steps(task_id)
        case calls.RecordStep(name, said):
            check_role(principal, Role.SUBMITTER)
            step = _step(name, said)
            await reach.check(principal, step.task_id, step.lease_id)
            return await engine.record_step(step)
        case calls.SendSignal(task_id, name, payload, signal_id):
            check_role(principal, Role.SUBMITTER)
            await _reached(engine, principal, task_id)
            return await engine.signal(task_id, name, payload, signal_id=signal_id)
        case calls.DeclareSchedules(app, schedules, namespace, anew):
            check_role(principal, Role.SUBMITTER)
            check_reach(principal, namespace)
            return await engine.declare_schedules(app, schedules, namespace=namespace, anew=anew)
        case calls.DeclareKinds(app, policies, namespace):
            check_role(principal, Role.SUBMITTER)
            check_reach(principal, namespace)
            return await engine.declare_kinds(app, policies, namespace=namespace)
    raise AssertionError(asked)


async def _check_origins(engine: Engine, submissions: Sequence[Submission]) -> None:
    """What a task comes from is within its namespace. Schedules and replays name themselves, and nobody else does."""
    for submission in submissions:
        for field in ("schedule_id", "replay_of"):
            if getattr(submission, field) is not None:
                raise Forbidden("only the engine sets this", field=field)
    parents = {s.parent_id for s in submissions if s.parent_id is not None}
    known = await engine.views.namespaces(sorted(parents)) if parents else {}
    for submission in submissions:
        parent_id = submission.parent_id
        if parent_id is not None and known.get(parent_id) != submission.namespace:
            raise NotFound(f"there is no task {parent_id}", field="parent_id")


async def _write(engine: Engine, principal: Principal, reach: Reach, notes: Sequence[Note]) -> list[Problem | None]:
    refused = await reach.refusals(principal, [(note.task_id, note.lease_id) for note in notes])
    heard = [note for note in notes if (note.task_id, note.lease_id) not in refused]
    outcomes = iter(await engine.note(heard))
    told = [refused[key] if (key := (note.task_id, note.lease_id)) in refused else next(outcomes) for note in notes]
    return [None if error is None else _problem(error) for error in told]


def _step(name: str, said: msgspec.Raw) -> StepCommand:
    if name not in STEPS:
        raise Invalid(f"{name[:100]!r} is not one of {', '.join(STEPS)}", field="name")
    try:
        step: StepCommand = msgspec.msgpack.decode(said, type=STEPS[name])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"does not fit {name}: {error}", field="said") from None
    return step


async def _reached(engine: Engine, principal: Principal, task_id: UUID) -> Task:
    """A task of another namespace is not there, as far as this caller can see."""
    task = (await engine.views.get(task_id)).task
    if principal.namespace is not None and task.namespace != principal.namespace:
        raise NotFound("there is no such task", task_id=task_id)
    return task


async def _reached_run(engine: Engine, principal: Principal, run_id: UUID) -> None:
    if principal.namespace is not None:
        page = await engine.views.page(namespace=principal.namespace, run_id=run_id, limit=1)
        if not page.tasks:
            raise NotFound("there is no such run", run_id=run_id)


def _problem(error: WindlassError) -> Problem:
    return Problem(known_code(error), told_message(error))
