"""Handles the requests of clients and machines. Knows no HTTP; `app` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.rules import (
    MachineCredential,
    MachineReport,
    ObjectResult,
    export_name,
    export_task_id,
    object_prefix,
    read_export_name,
    read_result,
)
from windlass.contracts.machine.server import forms
from windlass.contracts.machine.server.forms import MODS, NAMED, CallbackForm, Receipt
from windlass.contracts.machine.sweeper import Machines
from windlass.contracts.machine.wire.signature import signed_attempt
from windlass.core.access import Principal, Role, check_role
from windlass.core.failure import Category, Failure
from windlass.core.queue import QueueConfig
from windlass.core.states import State
from windlass.core.submission import Submission
from windlass.core.task import Outcome, Task
from windlass.core.validation import PAYLOAD_MAX_BYTES, clean_text
from windlass.engine.engine import Engine
from windlass.engine.payloads.blob_port import Blob, check_key
from windlass.engine.read.tasks import TaskView
from windlass.errors import Conflict, Invalid, LeaseLost, NotFound, TooLarge, Unauthenticated, Unavailable
from windlass.net.ids import parse_id

KEYS_FRESH_S = 5.0
LAUNCHING_S = 10.0
PIECE_S = 300.0  # for each piece of a few megabytes: at least 14 kB per second
STATE_KEPT = timedelta(hours=24)
DEFAULT_COMMAND = ["windlass-export-mods"]
CONTENT_TYPES = {"xml": "application/xml", "json": "application/json", "csv": "text/csv", "txt": "text/plain"}


Signed = tuple[TaskView, int]  # a task and the attempt whose machine signed a request


class NotReady(Exception):
    """There is nothing to download, at least not yet."""


class SpawnFailed(Exception):
    """The task failed because its machine did not start."""


class MachineService:
    """The machine contract on one engine. `default_launcher` runs the formats that come with Windlass."""

    def __init__(self, engine: Engine, *, default_launcher: str | None) -> None:
        self._engine, self._machines = engine, engine.service(Machines)
        self._default_launcher = default_launcher
        self._keys: tuple[float, list[bytes]] | None = None
        self._uploads: dict[str, asyncio.Task[int]] = {}

    # ----------------------------------------------------------------------------------------- clients

    async def export(
        self, principal: Principal, format_: str, body: bytes, key: str | None, trace: str | None
    ) -> Receipt:
        """Submit an export, and wait for its machine for at most the spawn timeout."""
        check_role(principal, Role.SUBMITTER)
        namespace = principal.namespace or "default"
        machine = await self._delivery(namespace, format_)
        payload = msgspec.json.encode(forms.read_order(format_, body))
        policy = await self._engine.queues.policy(format_, namespace=namespace)
        made = self._engine.parts.randomness.new_id().int
        new_id = export_task_id(format_, made >> 80, made & 0xFFFFFFFF)
        task_id = await self._engine.submit(
            Submission(
                kind=format_, queue=format_, namespace=namespace, id=new_id, payload=payload,
                policy=policy, idempotency_key=key, trace=trace,
            )
        )  # fmt: skip
        task = await self._wait_for_launch(task_id, machine.spawn_timeout_ms / 1000)
        if task.state is State.FAILED and task.worker is None:
            raise SpawnFailed("the machine did not start" if task.error is None else task.error.message)
        return Receipt(export_name(task_id, format_))

    async def _delivery(self, namespace: str, format_: str) -> Machine:
        """The delivery of a format's queue. The queue of the built-in format is created on its first use."""
        if not NAMED.fullmatch(format_):
            raise NotFound(f"there is no export format {format_[:100]!r}")
        known = (await self._engine.queues.settings(namespace, [format_])).get(format_)
        if known is not None and isinstance(known.delivery, Machine):
            return known.delivery
        if format_ != MODS or known is not None or self._default_launcher is None:
            raise NotFound(f"there is no export format {format_!r}: create a queue of this name with delivery machine")
        made = Machine(launcher=self._default_launcher, command=DEFAULT_COMMAND)
        await self._engine.queues.put(format_, namespace=namespace, delivery=made, limits=QueueConfig())
        return made

    async def _wait_for_launch(self, task_id: UUID, seconds: float) -> Task:
        """Return the task once its machine has started, it has ended, or time is up. If its launch is under way then,
        wait a little longer, since its outcome is about to be known."""
        began_s = time.monotonic()
        with self._machines.awaiting(task_id) as wait:
            while True:
                task = (await self._engine.tasks.get(task_id)).task
                more_s = LAUNCHING_S if task.state is State.RUNNING else 0.0
                left_s = began_s + seconds + more_s - time.monotonic()
                if task.worker is not None or task.terminal or left_s <= 0:
                    return task
                await wait(left_s)

    async def status(self, principal: Principal, name: str) -> dict[str, Any]:
        check_role(principal, Role.VIEWER)
        view = await self._find(name, principal)
        return forms.state_of(view, await self._machines.of_task(view.task.id))

    async def download(self, principal: Principal, name: str) -> tuple[UUID, str, Blob]:
        """The task, its file's name, and the object as a stream. Raises NotReady, NotFound."""
        check_role(principal, Role.VIEWER)
        task = (await self._find(name, principal)).task
        object_ = read_result(task.result) if task.state is State.SUCCEEDED else None
        if object_ is None:
            raise NotReady(f"Export not ready or failed. Status: {forms.STATUS[task.state]}")
        blob = await (await self._machines.blobs()).get(object_.object_key)
        return task.id, object_.file_name, blob

    async def send_object(self, task_id: UUID, blob: Blob, send: Callable[[bytes], Awaitable[bool]]) -> None:
        """Send the object piece by piece until the client disconnects. A complete download lets the object be deleted.
        A client that stops reading is cut off, since the object could never be deleted otherwise."""
        with self._machines.using(task_id):
            async for piece in blob.pieces:
                try:
                    async with asyncio.timeout(PIECE_S):
                        connected = await send(piece)
                except TimeoutError:
                    raise Unavailable(f"the client has not read for {PIECE_S:g} s") from None
                if not connected:
                    return
            await self._machines.downloaded(task_id)

    async def _find(self, name: str, principal: Principal | None = None) -> TaskView:
        """The task of this name, if the caller may see it and it is still kept."""
        task_id = read_export_name(name) or parse_id("task", name)
        if task_id is None:
            raise NotFound("Task not found")
        try:
            view = await self._engine.tasks.get(task_id)
        except NotFound:
            raise NotFound("Task not found") from None
        task = view.task
        visible = principal is None or principal.namespace in (None, task.namespace)
        # The queue delivers to machines now, or did when the task ran.
        if not visible or not (await self._machine_of(task) or await self._machines.of_task(task.id)):
            raise NotFound("Task not found")
        ended = task.finished_at
        if ended is not None and await self._engine.parts.clock.about_now() > ended + STATE_KEPT:
            raise NotFound("Task not found")
        return view

    async def _machine_of(self, task: Task) -> Machine | None:
        return await self._engine.queues.delivery(task.queue, Machine, namespace=task.namespace)

    # ----------------------------------------------------------------------------------------- machines

    async def callback(self, name: str, signed: Signed, body: bytes) -> None:
        """A machine reports its result. Raises Invalid, Conflict, LeaseLost, in this order."""
        view, attempt = signed
        form, task = forms.read_callback(body), view.task
        if form.error is not None:  # it may contain secrets from the environment of the machine
            form = msgspec.structs.replace(form, error=await self._machines.mask(task, form.error))
        if read_export_name(form.task_id) != task.id and form.task_id != str(task.id):
            raise Invalid(f"task_id: is {form.task_id[:100]!r}, but the path has {name[:100]!r}")
        report = await self._report(task, attempt, form)
        try:
            await self._machines.report(report)
        except (LeaseLost, Conflict) as error:
            raise Conflict(error.message) from None

    async def _report(self, task: Task, attempt: int, form: CallbackForm) -> MachineReport:
        credential, kept = MachineCredential(task.id, attempt), forms.kept_of(form)

        def report(outcome: Outcome, result: bytes | None = None, failure: Failure | None = None) -> MachineReport:
            return MachineReport(credential, outcome, result, failure, task.worker or "machine", kept)

        if form.status == "error":
            text = clean_text("error", form.error or "the machine gave no reason")
            failure = Failure(Category.USER_CODE, text, "EXPORT_FAILED", retryable=False)
            return report(Outcome.FAILED, failure=failure)
        assert form.output_r2_key is not None
        assert form.output_file_name is not None
        assert form.output_file_size is not None
        prefix = object_prefix(task)
        check_key(form.output_r2_key, "output_r2_key")
        if not form.output_r2_key.startswith(prefix):
            raise Invalid(f"must begin with {prefix}", field="output_r2_key")
        object_ = ObjectResult.of(form.output_r2_key, form.output_file_size, form.metrics)
        if form.output_file_name != object_.file_name:
            raise Invalid(f"must be {object_.file_name}, the last part of output_r2_key", field="output_file_name")
        result = object_.encode()
        if len(result) > PAYLOAD_MAX_BYTES:
            raise TooLarge(f"the result has more than {PAYLOAD_MAX_BYTES} bytes")
        if task.terminal:  # only compared with the accepted report
            return report(Outcome.SUCCEEDED, result)
        mismatch = await self._mismatch(object_)
        if mismatch is not None:
            failure = Failure(Category.DATA_QUALITY, mismatch, "OBJECT_MISMATCH", retryable=False)
            return report(Outcome.FAILED, failure=failure)
        return report(Outcome.SUCCEEDED, result)

    async def _mismatch(self, object_: ObjectResult) -> str | None:
        """How the stored object differs from the one that a machine reports, or None."""
        key, size = object_.object_key, await (await self._machines.blobs()).size(object_.object_key)
        if size is None:
            return f"the callback reported success, but there is no object {key}"
        if size != object_.file_size:
            return f"the callback reported {object_.file_size} bytes, but the object {key} has {size}"
        return None

    async def upload(self, signed: Signed, file: str, content: AsyncIterable[bytes]) -> int:
        """Store the object of a machine that has no credentials for the store. A second upload of the same object
        replaces one that still runs: the machine has given that up."""
        view, attempt = signed
        task = view.task
        key = check_key(object_prefix(task) + file, "file")
        if task.attempt != attempt or task.state is not State.RUNNING:
            raise Conflict(f"attempt {attempt} has ended")
        machine = await self._machine_of(task) or Machine(launcher="")
        with self._machines.using(task.id):
            size = await self._upload(key, content, machine.upload_timeout_ms / 1000)
            now = (await self._engine.tasks.get(task.id)).task
            if now.attempt != attempt or now.state is not State.RUNNING:
                await self._machines.discard_late_object(now)
                raise Conflict(f"attempt {attempt} has ended")
        return size

    async def _upload(self, key: str, content: AsyncIterable[bytes], seconds: float) -> int:
        while (earlier := self._uploads.get(key)) is not None:
            earlier.cancel()
            await asyncio.wait([earlier])
        writing = asyncio.create_task(self._put(key, content, seconds))
        self._uploads[key] = writing
        writing.add_done_callback(lambda _: self._uploads.pop(key))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            if not writing.cancelled():  # the request was cancelled, not the upload
                writing.cancel()
                await asyncio.wait([writing])
                raise
            raise Conflict("a later upload of this object replaced this one") from None

    async def _put(self, key: str, content: AsyncIterable[bytes], seconds: float) -> int:
        try:
            async with asyncio.timeout(seconds):
                return await (await self._machines.blobs()).put(key, content)
        except TimeoutError:
            raise Unavailable(f"the upload took longer than {seconds:g} s") from None

    async def payload(self, signed: Signed) -> bytes:
        view, _ = signed
        return await self._engine.payloads.whole(view.payload, view.task.namespace)

    async def signed(self, name: str, signature: str | None) -> Signed:
        """The task and the attempt whose machine signed a request. Raises NotFound, Unauthenticated."""
        view = await self._find(name)
        task = view.task
        if signature is None:
            machine = await self._machine_of(task)
            if machine is None or machine.callback_auth == "required":
                raise Unauthenticated(
                    "a signature is required: use CALLBACK_URL unchanged or send X-Callback-Signature"
                )
            return view, task.attempt
        attempt = signed_attempt(await self._secrets(), export_name(task.id, task.kind), task.attempt, signature)
        if attempt is None:
            raise Unauthenticated("the signature is not of this task")
        return view, attempt

    async def _secrets(self) -> list[bytes]:
        """The keys as they were a moment ago, the one that signs first."""
        if self._keys is None or time.monotonic() - self._keys[0] > KEYS_FRESH_S:
            self._keys = time.monotonic(), [key for _, key in await self._engine.parts.token_keys.all()]
        return self._keys[1]


def content_type(file: str) -> str:
    return CONTENT_TYPES.get(file.rpartition(".")[2].lower(), "application/octet-stream")
