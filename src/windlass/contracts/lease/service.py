"""The routes of the lease contract, from what was sent to the answer. Knows no HTTP and no TLS; `app` does."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from windlass.contracts.lease import form
from windlass.core.check import (
    LARGE_MAX_BYTES,
    PAYLOAD_MAX_BYTES,
    TEXT_MAX,
    check_name,
    check_payload,
    clean_json,
    clean_text,
)
from windlass.core.dataset import SaidPublish, prefixes_of
from windlass.core.error import Invalid, LeaseLost, NotFound, Rejected, Unavailable
from windlass.core.failure import Category, Failure
from windlass.core.holder import OTHER_DELIVERY, Caller, Fence, Finish, NotClaimed
from windlass.core.task import Outcome
from windlass.core.transition import State
from windlass.engine.engine import Engine
from windlass.engine.holder import Held
from windlass.engine.large import unreadable
from windlass.engine.objects import too_long
from windlass.wire.decode import decoded_report
from windlass.wire.id import parse_id
from windlass.wire.lease import (
    AcceptedAnswer,
    ClaimedAnswer,
    ClaimRequest,
    CompleteAnswer,
    CompleteRequest,
    ErrorDetails,
    EventsRequest,
    FetchAnswer,
    HeartbeatAnswer,
    HeartbeatRequest,
    NotClaimedAnswer,
    PublishAnswer,
    PublishRequest,
)

log = logging.getLogger("windlass.lease")

T = TypeVar("T")
AUDIT_MAX = 100
WAITING = frozenset({State.QUEUED, State.BLOCKED, State.SLEEPING, State.PARKED})
_OUTCOMES = {"Completed": Outcome.SUCCEEDED, "Failed": Outcome.FAILED, "Canceled": Outcome.CANCELLED}
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (ClaimRequest, HeartbeatRequest, EventsRequest, PublishRequest, CompleteRequest)
}


class Service:
    """What holders say to one engine. `scratch_uri` is where they may leave their batches."""

    def __init__(self, engine: Engine, scratch_uri: str) -> None:
        self._engine, self._scratch_uri = engine, scratch_uri
        self.room_bytes, self.advice = engine.objects.room_bytes, engine.objects.advice

    async def claim(self, body: bytes, caller: Caller) -> ClaimedAnswer | NotClaimedAnswer:
        said = _read(ClaimRequest, body)
        check_name("worker_id", said.worker_id)
        if not await self._reaches(_task_id(said.task_id), caller):
            return form.not_claimed(NotClaimed(None), None)
        found = await self._engine.holders.claim(_task_id(said.task_id), said.worker_id, caller, said.claim_id)
        if isinstance(found, Held):
            return form.claimed(await self._fetched(found, caller), self._scratch_uri)
        if found.state in WAITING and found.waits_for != OTHER_DELIVERY:
            await self._engine.wakeups.refused(_task_id(said.task_id))  # its message is gone with this answer
        return form.not_claimed(found, None if found.until is None else await self._engine.views.time())

    async def _fetched(self, held: Held, caller: Caller) -> Held:
        """With its payload, which may be an object or name what others returned. If that cannot be had, the attempt has
        failed."""
        try:
            payload = await self._engine.payloads.whole(held.payload, held.task.namespace)
        except (Rejected, Unavailable) as error:
            task = held.task
            fence = Fence(task.id, task.attempt, task.lease_id)
            await self._engine.holders.finish(Finish(fence, caller, Outcome.FAILED, failure=unreadable(error)))
            raise Unavailable(f"the payload of task {task.id} cannot be read: {error}") from None
        return replace(held, payload=payload)

    async def _reaches(self, task_id: UUID, caller: Caller) -> bool:
        """Whether the caller may know of a task. Most may of all, which costs no look; who may not learns no more than
        that there is none."""
        if caller.namespaces is None:
            return True
        return all(map(caller.reaches, (await self._engine.views.namespaces([task_id])).values()))

    async def fetch(self, task_id: str, caller: Caller) -> FetchAnswer:
        view = await self._engine.views.get(_task_id(task_id))
        if not caller.reaches(view.task.namespace):
            raise NotFound(f"there is no task {view.task.id}")
        running = view.task.state is State.RUNNING  # then as its holder was told
        whole = partial(self._engine.payloads.whole, namespace=view.task.namespace)
        payload = await (whole if running else self._engine.objects.load)(view.payload)
        return form.fetched(view.task, payload, view.wire)

    async def heartbeat(self, body: bytes, caller: Caller) -> HeartbeatAnswer:
        said = _read(HeartbeatRequest, body)
        extended = await self._engine.holders.extend(
            Fence(_task_id(said.task_id), said.attempt, said.lease_token), caller
        )
        cancel = extended.cancel
        return HeartbeatAnswer(
            lease_expires_at=extended.expires_at,
            status="Running" if cancel is None else "Canceled",
            cancel_reason=UNSET if cancel is None else cancel.reason,
            server_time=extended.now,
        )

    async def events(self, body: bytes, caller: Caller) -> AcceptedAnswer:
        said = _read(EventsRequest, body)
        fence = Fence(_task_id(said.task_id), said.attempt, said.lease_token)
        await self._engine.holders.emit(fence, caller, form.said_events(said.events))
        return AcceptedAnswer(accepted=len(said.events))

    async def publish(self, body: bytes, caller: Caller) -> PublishAnswer:
        said = _read(PublishRequest, body)
        fence = Fence(_task_id(said.task_id), said.attempt, said.lease_token)
        batch = SaidPublish(said.dataset_uuid, said.dataset_version, said.batch_uri, said.record_count)
        batch.check()
        prefixes = prefixes_of(self._scratch_uri, batch.dataset_uuid, fence.task_id, fence.attempt)
        return PublishAnswer(publish_id=await self._engine.holders.publish(fence, caller, batch, prefixes))

    async def complete(self, body: bytes, caller: Caller) -> CompleteAnswer:
        said = _read(CompleteRequest, body)
        finish = _finish(said, caller)
        try:
            state = await self._finish(finish)
        except LeaseLost as error:
            log.warning("ignored: attempt %s of task %s by %s: %s", said.attempt, said.task_id, caller.subject, error)
            raise
        return CompleteAnswer(status=form.REPORTED[state])

    async def _finish(self, finish: Finish) -> State:
        if not too_long(finish.result):
            return await self._engine.holders.finish(finish)
        assert finish.result is not None
        fence = finish.fence
        async with self._engine.objects.kept("result", finish.result, fence.task_id, f"result-{fence.attempt}") as text:
            return await self._engine.holders.finish(replace(finish, result=text))


def _finish(said: CompleteRequest, caller: Caller) -> Finish:
    outcome = _OUTCOMES[said.status]
    fence = Fence(_task_id(said.task_id), said.attempt or 0, said.lease_token)
    if outcome is not Outcome.CANCELLED:
        if said.attempt is None or said.lease_token is None:
            raise Invalid("is missing", field="attempt" if said.attempt is None else "lease_token")
        if said.attempt < 1:
            raise Invalid("must be 1 or more", field="attempt")
    if outcome is not Outcome.SUCCEEDED:
        return Finish(fence, caller, outcome, None, _failure(said, outcome), (), _not_committed(said))
    events = form.said_events(said.events)
    outputs = msgspec.to_builtins(said.outputs or [])
    given = not isinstance(said.result, msgspec.UnsetType)
    result = bytes(said.result) if isinstance(said.result, msgspec.Raw) else _encoded({"outputs": outputs})
    check_payload("result" if given else "outputs", result, LARGE_MAX_BYTES if given else PAYLOAD_MAX_BYTES)
    return Finish(fence, caller, outcome, result, None, events, {"outputs": outputs} if given and outputs else {})


def _not_committed(said: CompleteRequest) -> dict[str, object]:
    """What an attempt that did not succeed says to have made: for people, the first of it."""
    told = {"outputs": said.outputs, "events": said.events}
    return {name: clean_json(msgspec.to_builtins(list_[:AUDIT_MAX]), TEXT_MAX) for name, list_ in told.items() if list_}


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value)


def _failure(said: CompleteRequest, outcome: Outcome) -> Failure:
    message = clean_text("error_message", said.error_message or "")
    if outcome is Outcome.CANCELLED:
        return Failure(Category.CANCELLED, message)
    more = said.error or ErrorDetails()
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


def _only_text(said: object) -> bool:
    """A failure or a cancel: what it says besides is for people."""
    return isinstance(said, CompleteRequest) and said.status != "Completed"
