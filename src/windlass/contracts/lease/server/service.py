"""The routes of the lease contract, from the body of a request to the answer. Knows no HTTP and no TLS; `app` does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import (
    OTHER_DELIVERY,
    Caller,
    Invalidate,
    LeaseCredential,
    LeaseReport,
    NotClaimed,
)
from windlass.contracts.lease.server import forms
from windlass.contracts.lease.table import WritingAttempt
from windlass.contracts.lease.wakeups.planner import Wakeups
from windlass.contracts.lease.wire import messages as wire
from windlass.core.failure import Category, Failure
from windlass.core.states import TERMINAL, State
from windlass.core.task import Outcome, Task
from windlass.core.validation import (
    LARGE_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    TEXT_MAX,
    check_name,
    check_payload,
    check_text,
    clean_json,
    clean_text,
)
from windlass.datasets.backpressure import Backpressure
from windlass.datasets.inputs import NOOP, JobInputs
from windlass.datasets.lake import SET_LAKE, Lake, WrittenOutput
from windlass.datasets.rules.events import BatchReport, EventReport, Files, prefixes_of
from windlass.datasets.rules.invalidation import Bounds, InvalidPart, Reason, Scope
from windlass.datasets.rules.manifest import Expected, output_location
from windlass.datasets.rules.partition import PARTITION_MAX
from windlass.datasets.rules.writer import BUFFERED, LAKE, OutputPlace, outputs_of, production_of
from windlass.engine.engine import Engine
from windlass.engine.payloads.large import unreadable
from windlass.engine.payloads.objects import too_long
from windlass.errors import Invalid, LeaseLost, NotFound, OutputInvalid, Rejected, Unavailable
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
        wire.InvalidateRequest,
        wire.CompleteRequest,
    )
}


class Service:
    """Serves lease holders for one engine. They may write their batches under `scratch_uri`."""

    def __init__(self, engine: Engine, scratch_uri: str) -> None:
        self._engine, self._holders, self._scratch_uri = engine, engine.service(Holders), scratch_uri
        self._lake, self._stopwatch = engine.service(Lake), engine.parts.stopwatch
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
            backpressure=await self._engine.service(Backpressure).holds(_task_id(request.task_id)) or UNSET,
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

    async def invalidate(self, body: bytes, caller: Caller) -> wire.InvalidateAnswer:
        request = _read(wire.InvalidateRequest, body)
        given = request.row_filter
        rows = None if given is None else {name: Bounds(limits.gte, limits.lte) for name, limits in given.items()}
        part = InvalidPart(Scope(request.scope), Reason(request.reason), request.partition_key, rows)
        if request.partition_key is not None:
            check_text("partition_key", request.partition_key, PARTITION_MAX)
        order = Invalidate(_credential(request, caller), request.dataset_uuid, request.dataset_version, part)
        return wire.InvalidateAnswer(invalidation_id=await self._holders.invalidate(order))

    async def complete(self, body: bytes, caller: Caller) -> wire.CompleteAnswer:
        request = _read(wire.CompleteRequest, body)
        report, began_s = _report(request, caller), self._stopwatch()
        try:
            if report.outcome is Outcome.SUCCEEDED and request.outputs:
                report = await self._with_files(report, request)
            state = await self._finish(report)
            if any(event.files is not None for event in report.events):
                self._lake.commits.add(self._stopwatch() - began_s)
        except LeaseLost as error:
            log.warning(
                "ignored: attempt %s of task %s by %s: %s", request.attempt, request.task_id, caller.subject, error
            )
            raise
        return wire.CompleteAnswer(status=forms.REPORTED[state])

    async def _with_files(self, report: LeaseReport, request: wire.CompleteRequest) -> LeaseReport:
        """A report with the files of its outputs in the lake. The fence is checked first, so that a stale caller costs
        no request to the store, and once more when the report is committed. The outputs of a task that has ended, or
        that commits nothing, are not read."""
        attempt = await self._holders.attempt(report.task_id)
        if attempt.job_id is None or (production := production_of(attempt.wire)) is None:
            return report
        report.credential.checked().check(attempt, attempt.now)
        declared, outputs = outputs_of(attempt.wire), dict(enumerate(request.outputs or ()))
        written = {
            place: found
            for place, output in outputs.items()
            if declared.get(output.dataset_uuid) == output.dataset_version
            and (found := self._written(output, place, production.places[output.dataset_uuid], attempt)) is not None
        }
        if not written:
            return report
        _check_twice(written.values())
        if attempt.state in TERMINAL or not attempt.live:
            unread = {forms.output_event(outputs[place], place).id_of(report.task_id) for place in written}
            return replace(report, unread=frozenset(unread))
        files = dict(zip(written, await self._lake.read(list(written.values())), strict=True))
        return replace(report, events=_events(request, files))

    def _written(
        self, output: wire.Output, place: int, kept: OutputPlace, attempt: WritingAttempt
    ) -> WrittenOutput | None:
        """What an output in the lake must look like; None for other outputs."""
        field = f"outputs[{place}]"
        if output.output_index not in (None, kept.output_index):
            raise OutputInvalid(f"the dataset is output {kept.output_index}", field=f"{field}.output_index")
        if kept.storage != LAKE:
            if kept.write_mode == BUFFERED and output.location is not None:
                raise OutputInvalid("a buffered dataset has no location: publish batches", field=f"{field}.location")
            return None
        if output.cursor is None and output.partition_key is None:
            raise OutputInvalid("must have a cursor or a partition_key", field=field)
        ids = output.dataset_uuid, output.dataset_version, attempt.id, attempt.attempt
        staging = self._lake.staging(attempt.namespace, *ids, kept.output_index)
        if staging is None:
            raise Unavailable(f"this server has no lake: {SET_LAKE}")
        expected = Expected(*ids, output.partition_key, output.row_count)
        return WrittenOutput(output_location(staging, output.location, field), expected, field)

    async def _finish(self, report: LeaseReport) -> State:
        if not too_long(report.result):
            return await self._holders.finish(report)
        assert report.result is not None
        name = f"result-{report.credential.attempt}"
        async with self._engine.parts.objects.kept("result", report.result, report.task_id, name) as text:
            return await self._holders.finish(replace(report, result=text))


def _check_twice(outputs: Iterable[WrittenOutput]) -> None:
    """Refuse a folder that two outputs name: its rows would be there twice."""
    fields: dict[str, str] = {}
    for output in outputs:
        if (first := fields.setdefault(output.location, output.field)) != output.field:
            raise OutputInvalid(f"is also that of {first}", field=f"{output.field}.location")


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
    events = _events(request)
    outputs = msgspec.to_builtins(request.outputs or [])
    given = not isinstance(request.result, msgspec.UnsetType)
    result = (
        bytes(request.result) if isinstance(request.result, msgspec.Raw) else msgspec.json.encode({"outputs": outputs})
    )
    check_payload("result" if given else "outputs", result, LARGE_MAX_BYTES if given else PAYLOAD_MAX_BYTES)
    detail = {"outputs": outputs} if given and outputs else {}
    return LeaseReport(credential, outcome, result, detail=detail, events=events)


def _events(request: wire.CompleteRequest, files: Mapping[int, Files] | None = None) -> tuple[EventReport, ...]:
    """The events of a completion. Those of outputs come first: one that is reported twice is committed with its
    files."""
    return (*forms.reported_outputs(request.outputs, files or {}), *forms.reported_events(request.events))


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
