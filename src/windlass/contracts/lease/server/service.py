"""The routes of the lease contract, from the body of a request to the answer. Knows no HTTP and no TLS; `app` does."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import OTHER_DELIVERY, Caller, LeaseCredential, LeaseReport, NotClaimed
from windlass.contracts.lease.server import forms
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire import messages as wire
from windlass.core.failure import Category, Failure
from windlass.core.states import State
from windlass.core.task import Outcome, Task
from windlass.core.validation import (
    LARGE_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    TEXT_MAX,
    check_name,
    check_payload,
    clean_json,
    clean_text,
)
from windlass.datasets.inputs import NOOP, JobInputs
from windlass.datasets.rules.events import BatchReport, prefixes_of
from windlass.engine.engine import Engine
from windlass.engine.payloads.large import unreadable
from windlass.engine.payloads.objects import too_long
from windlass.errors import Invalid, LeaseLost, NotFound, Rejected, Unavailable
from windlass.net.decode import decoded_report
from windlass.net.ids import parse_id

log = logging.getLogger("windlass.lease")

T = TypeVar("T")
AUDIT_MAX = 100
_OUTCOMES = {"Completed": Outcome.SUCCEEDED, "Failed": Outcome.FAILED, "Canceled": Outcome.CANCELLED}
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (
        wire.ClaimRequest,
        wire.HeartbeatRequest,
        wire.EventsRequest,
        wire.PublishRequest,
        wire.CompleteRequest,
    )
}


class Service:
    """Serves lease holders for one engine. They may write their batches under `scratch_uri`."""

    def __init__(self, engine: Engine, scratch_uri: str) -> None:
        self._engine, self._holders, self._scratch_uri = engine, engine.service(Holders), scratch_uri
        self.room_bytes, self.advice = engine.parts.objects.room_bytes, engine.parts.objects.advice

    async def claim(self, body: bytes, caller: Caller) -> wire.ClaimedAnswer | wire.NotClaimedAnswer:
        request = _read(wire.ClaimRequest, body)
        check_name("worker_id", request.worker_id)
        task_id = _task_id(request.task_id)
        if not await self._reaches(task_id, caller):
            return forms.not_claimed(NotClaimed(None), None)
        found = await self._holders.claim(task_id, request.worker_id, caller, request.claim_id)
        if isinstance(found, Held):
            fetched = await self._fetched(found, caller)
            if fetched.task.job_id is None or fetched.wire is None:
                return forms.claimed(fetched, self._scratch_uri)
            reading = await self._engine.service(JobInputs).begin(fetched.task, fetched.wire)
            if not reading.noop:
                return forms.claimed(replace(fetched, wire=reading.wire), self._scratch_uri)
            await self._finish(LeaseReport(_holder(fetched.task, caller), Outcome.SUCCEEDED, NOOP))
            return forms.not_claimed(NotClaimed(State.SUCCEEDED), None)
        waits = found.state is not None and forms.STATUS[found.state] == forms.QUEUED
        if waits and found.waits_for != OTHER_DELIVERY:
            await self._engine.service(Wakeups).refused(task_id)  # the worker acks its message after this answer
        return forms.not_claimed(found, None if found.until is None else await self._engine.tasks.time())

    async def _fetched(self, held: Held, caller: Caller) -> Held:
        """Load the payload, which may be an object or refer to results of other tasks. If that fails, the attempt
        fails."""
        try:
            payload = await self._engine.payloads.whole(held.payload, held.task.namespace)
        except (Rejected, Unavailable) as error:
            await self._holders.finish(
                LeaseReport(_holder(held.task, caller), Outcome.FAILED, failure=unreadable(error))
            )
            raise Unavailable(f"the payload of task {held.task.id} cannot be read: {error}") from None
        return replace(held, payload=payload)

    async def _reaches(self, task_id: UUID, caller: Caller) -> bool:
        """Whether the caller may know of a task. Most callers may know of all tasks, which costs no query. Others learn
        only that there is no such task."""
        if caller.namespaces is None:
            return True
        return all(map(caller.reaches, (await self._engine.tasks.namespaces([task_id])).values()))

    async def fetch(self, task_id: str, caller: Caller) -> wire.FetchAnswer:
        view = await self._engine.tasks.get(_task_id(task_id))
        if not caller.reaches(view.task.namespace):
            raise NotFound(f"there is no task {view.task.id}")
        running = view.task.state is State.RUNNING  # then with the payload that its holder got
        whole = partial(self._engine.payloads.whole, namespace=view.task.namespace)
        payload = await (whole if running else self._engine.parts.objects.load)(view.payload)
        return forms.fetched(view.task, payload, view.wire)

    async def heartbeat(self, body: bytes, caller: Caller) -> wire.HeartbeatAnswer:
        request = _read(wire.HeartbeatRequest, body)
        answer = await self._holders.extend(_credential(request, caller))
        assert answer.expires_at is not None, answer
        cancel = answer.cancel
        return wire.HeartbeatAnswer(
            lease_expires_at=answer.expires_at,
            status="Running" if cancel is None else "Canceled",
            cancel_reason=UNSET if cancel is None else cancel.reason,
            server_time=answer.now,
        )

    async def events(self, body: bytes, caller: Caller) -> wire.AcceptedAnswer:
        request = _read(wire.EventsRequest, body)
        await self._holders.emit(_credential(request, caller), forms.reported_events(request.events))
        return wire.AcceptedAnswer(accepted=len(request.events))

    async def publish(self, body: bytes, caller: Caller) -> wire.PublishAnswer:
        request = _read(wire.PublishRequest, body)
        credential = _credential(request, caller)
        batch = BatchReport(request.dataset_uuid, request.dataset_version, request.batch_uri, request.record_count)
        batch.check()
        prefixes = prefixes_of(self._scratch_uri, batch.dataset_uuid, credential.task_id, credential.attempt)
        return wire.PublishAnswer(publish_id=await self._holders.publish(credential, batch, prefixes))

    async def complete(self, body: bytes, caller: Caller) -> wire.CompleteAnswer:
        request = _read(wire.CompleteRequest, body)
        report = _report(request, caller)
        try:
            state = await self._finish(report)
        except LeaseLost as error:
            log.warning(
                "ignored: attempt %s of task %s by %s: %s", request.attempt, request.task_id, caller.subject, error
            )
            raise
        return wire.CompleteAnswer(status=forms.REPORTED[state])

    async def _finish(self, report: LeaseReport) -> State:
        if not too_long(report.result):
            return await self._holders.finish(report)
        assert report.result is not None
        name = f"result-{report.credential.attempt}"
        async with self._engine.parts.objects.kept("result", report.result, report.task_id, name) as text:
            return await self._holders.finish(replace(report, result=text))


def _holder(task: Task, caller: Caller) -> LeaseCredential:
    """The credential of a caller that has just claimed a task."""
    return LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=caller)


def _credential(request: wire.Fenced | wire.CompleteRequest, caller: Caller) -> LeaseCredential:
    task_id = _task_id(request.task_id)
    return LeaseCredential(task_id, attempt=request.attempt or 0, token=request.lease_token, caller=caller)


def _report(request: wire.CompleteRequest, caller: Caller) -> LeaseReport:
    outcome, credential = _OUTCOMES[request.status], _credential(request, caller)
    if outcome is not Outcome.CANCELLED:
        if request.attempt is None or request.lease_token is None:
            raise Invalid("is missing", field="attempt" if request.attempt is None else "lease_token")
        if request.attempt < 1:
            raise Invalid("must be 1 or more", field="attempt")
    if outcome is not Outcome.SUCCEEDED:
        failure = _failure(request, outcome)
        return LeaseReport(credential, outcome, failure=failure, detail=_not_committed(request))
    events = (*forms.reported_events(request.events), *forms.reported_outputs(request.outputs))
    outputs = msgspec.to_builtins(request.outputs or [])
    given = not isinstance(request.result, msgspec.UnsetType)
    result = (
        bytes(request.result) if isinstance(request.result, msgspec.Raw) else msgspec.json.encode({"outputs": outputs})
    )
    check_payload("result" if given else "outputs", result, LARGE_MAX_BYTES if given else PAYLOAD_MAX_BYTES)
    detail = {"outputs": outputs} if given and outputs else {}
    return LeaseReport(credential, outcome, result, detail=detail, events=events)


def _not_committed(request: wire.CompleteRequest) -> dict[str, object]:
    """The first outputs and events of an attempt that did not succeed, for people to read."""
    reported = {"outputs": request.outputs, "events": request.events}
    return {
        name: clean_json(msgspec.to_builtins(list_[:AUDIT_MAX]), TEXT_MAX) for name, list_ in reported.items() if list_
    }


def _failure(request: wire.CompleteRequest, outcome: Outcome) -> Failure:
    message = clean_text("error_message", request.error_message or "")
    if outcome is Outcome.CANCELLED:
        return Failure(Category.CANCELLED, message)
    more = request.error or wire.ErrorDetails()
    return Failure(
        Category(more.category), message or "the worker did not say why", more.reason, more.stack_trace, more.retryable,
        more.retry_after_s,
    )  # fmt: skip


def _task_id(text: str) -> UUID:
    found = parse_id("task", text)
    if found is None:
        raise Invalid(f"{text[:100]!r} is not an id of a task", field="task_id")
    return found


def _read(kind: type[T], body: bytes) -> T:
    found: T = decoded_report(_DECODERS[kind], body, _only_text)
    return found


def _only_text(request: object) -> bool:
    """Whether this is a failure or a cancel: its other fields are for people, so text may be repaired."""
    return isinstance(request, wire.CompleteRequest) and request.status != "Completed"
