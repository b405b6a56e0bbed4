"""What clients and machines ask for, from what was sent to the answer. Knows no HTTP; `app` does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec

from windlass.contracts.machine import form
from windlass.contracts.machine.form import MODS, NAMED, CallbackForm, Receipt
from windlass.core.access import Principal, Role, check_role
from windlass.core.check import PAYLOAD_MAX_BYTES, clean_text
from windlass.core.delivery import Machine
from windlass.core.error import Conflict, Invalid, LeaseLost, NotFound, TooLarge, Unauthenticated, Unavailable
from windlass.core.failure import Category, Failure
from windlass.core.machine import CallBack, Left, export_name, export_task_id, object_prefix, read_export_name
from windlass.core.queue import QueueConfig
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.transition import State
from windlass.engine.blob import Blob, check_key
from windlass.engine.engine import Engine
from windlass.engine.machine import result_of
from windlass.engine.view import TaskView
from windlass.wire.id import parse_id
from windlass.wire.machine import signed_attempt

KEYS_FRESH_S = 5.0
LAUNCHING_S = 10.0
PIECE_S = 300.0  # for the next few megabytes: 14 kB a second
STATE_KEPT = timedelta(hours=24)
DEFAULT_COMMAND = ["windlass-export-mods"]
CONTENT_TYPES = {"xml": "application/xml", "json": "application/json", "csv": "text/csv", "txt": "text/plain"}


class NotReady(Exception):
    """There is nothing to download, or not yet."""


class SpawnFailed(Exception):
    """The task has failed, since its machine was not started."""


class MachineService:
    """The machine contract on one engine. `default_launcher` runs the formats that come with Windlass."""

    def __init__(
        self,
        engine: Engine,
        *,
        default_launcher: str | None = "process",
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._machines = engine, engine.machines
        self._default_launcher, self._stopwatch = default_launcher, stopwatch
        self._keys: tuple[float, list[bytes]] | None = None
        self._uploads: dict[str, asyncio.Task[int]] = {}

    # ----------------------------------------------------------------------------------------- clients

    async def export(
        self, principal: Principal, format_: str, body: bytes, key: str | None, trace: str | None
    ) -> Receipt:
        """Take an export in and wait for its machine, at most as long as that may take to start."""
        check_role(principal, Role.SUBMITTER)
        namespace = principal.namespace or "default"
        machine = await self._delivery(namespace, format_)
        payload = msgspec.json.encode(form.read_order(format_, body))
        policy = await self._engine.queues.policy(format_, namespace=namespace)
        task_id = await self._engine.submit(
            Submission(
                kind=format_, queue=format_, namespace=namespace, id=self._new_id(format_), payload=payload,
                policy=policy, idempotency_key=key, trace=trace,
            )
        )  # fmt: skip
        task = await self._launched(task_id, machine.spawn_timeout_ms / 1000)
        if task.state is State.FAILED and task.worker is None:
            raise SpawnFailed("the machine did not start" if task.error is None else task.error.message)
        return Receipt(export_name(task_id, format_))

    def _new_id(self, format_: str) -> UUID:
        made = self._engine.chance.new_id()
        return export_task_id(format_, made.int >> 80, made.int & 0xFFFFFFFF)

    async def _delivery(self, namespace: str, format_: str) -> Machine:
        """How exports of a format are run. The one that comes with Windlass is set up when it is first asked for."""
        if not NAMED.fullmatch(format_):
            raise NotFound(f"there is no export format {format_[:100]!r}")
        known = (await self._engine.queues.settings(namespace, [format_])).get(format_)
        if known is not None and isinstance(known.delivery, Machine):
            return known.delivery
        if format_ != MODS or known is not None or self._default_launcher is None:
            raise NotFound(f"there is no export format {format_!r}: set up a queue of this name with delivery machine")
        made = Machine(launcher=self._default_launcher, command=DEFAULT_COMMAND)
        await self._engine.queues.put(format_, namespace=namespace, delivery=made, limits=QueueConfig())
        return made

    async def _launched(self, task_id: UUID, seconds: float) -> Task:
        """The task when its machine is there, it has ended, or the time is over. One whose launch has begun by then is
        waited for a little longer: it is about to be said how that went."""
        began_s = self._stopwatch()
        with self._machines.awaiting(task_id) as wait:
            while True:
                task = (await self._engine.views.get(task_id)).task
                more_s = LAUNCHING_S if task.state is State.RUNNING else 0.0
                left_s = began_s + seconds + more_s - self._stopwatch()
                if task.worker is not None or task.terminal or left_s <= 0:
                    return task
                await wait(left_s)

    async def status(self, principal: Principal, name: str) -> dict[str, Any]:
        check_role(principal, Role.VIEWER)
        view = await self._known(name, principal)
        return form.state_of(view, await self._machines.of_task(view.task.id))

    async def download(self, principal: Principal, name: str) -> tuple[UUID, str, Blob]:
        """The task, its file's name, and the object as a stream. Raises NotReady, NotFound."""
        check_role(principal, Role.VIEWER)
        task = (await self._known(name, principal)).task
        told = form.outcome_of(task) if task.state is State.SUCCEEDED else {}
        if "output_r2_key" not in told:
            raise NotReady(f"Export not ready or failed. Status: {form.status_of(task)}")
        blob = await (await self._machines.blobs()).get(told["output_r2_key"])
        return task.id, told["output_file_name"], blob

    async def handed_over(self, task_id: UUID, blob: Blob, hand: Callable[[bytes], Awaitable[bool]]) -> None:
        """The object piece by piece, until nobody takes the next one. Whoever has got all of it needs it no more;
        whoever does not read on would keep it for ever."""
        with self._machines.using(task_id):
            async for piece in blob.pieces:
                try:
                    async with asyncio.timeout(PIECE_S):
                        taken = await hand(piece)
                except TimeoutError:
                    raise Unavailable(f"nobody has read on for {PIECE_S:g} s") from None
                if not taken:
                    return
            await self._machines.downloaded(task_id)

    async def _known(self, name: str, principal: Principal | None = None) -> TaskView:
        """The task of this name, if the caller may know of it, and as long as it is kept."""
        task_id = read_export_name(name) or parse_id("task", name)
        if task_id is None:
            raise NotFound("Task not found")
        try:
            view = await self._engine.views.get(task_id)
        except NotFound:
            raise NotFound("Task not found") from None
        task = view.task
        ours = principal is None or principal.namespace in (None, task.namespace)
        if not ours or not await self._on_machines(task):
            raise NotFound("Task not found")
        ended = task.finished_at
        if ended is not None and await self._engine.callbacks.about_now() > ended + STATE_KEPT:
            raise NotFound("Task not found")
        return view

    async def _on_machines(self, task: Task) -> bool:
        """Whether a task belongs to this contract: its queue is one of machines, or was when it ran."""
        return await self._machine_of(task) is not None or bool(await self._machines.of_task(task.id))

    async def _machine_of(self, task: Task) -> Machine | None:
        return await self._engine.queues.delivery(task.queue, Machine, namespace=task.namespace)

    # ----------------------------------------------------------------------------------------- machines

    async def callback(self, name: str, signature: str | None, read: Callable[[], Awaitable[bytes]]) -> None:
        """A machine says how it went. Raises NotFound, Unauthenticated, Invalid, Conflict, LeaseLost, in this order.
        `read` gets the body, which is not asked for before it is known who sends it."""
        view, attempt = await self._signed(name, signature)
        said, task = form.read_callback(await read()), view.task
        if said.error is not None:  # which may repeat what the machine was told
            said = msgspec.structs.replace(said, error=await self._machines.discreet(task, said.error))
        if read_export_name(said.task_id) != task.id and said.task_id != str(task.id):
            raise Invalid(f"task_id: is {said.task_id[:100]!r}, and the path says {name[:100]!r}")
        report = await self._report(task, attempt, said)
        try:
            await self._machines.report(report)
        except (LeaseLost, Conflict) as error:
            raise Conflict(error.message) from None

    async def _report(self, task: Task, attempt: int, said: CallbackForm) -> CallBack:
        worker = task.worker or "machine"
        kept = form.said_of(said)
        if said.status == "error":
            text = clean_text("error", said.error or "the machine did not say why")
            failure = Failure(Category.USER_CODE, text, "EXPORT_FAILED", retryable=False)
            return CallBack(task.id, attempt, worker, failure=failure, said=kept)
        assert said.output_r2_key is not None
        assert said.output_file_name is not None
        assert said.output_file_size is not None
        prefix = object_prefix(export_name(task.id, task.kind))
        check_key(said.output_r2_key, "output_r2_key")
        if not said.output_r2_key.startswith(prefix):
            raise Invalid(f"must begin with {prefix}", field="output_r2_key")
        left = Left(said.output_r2_key, said.output_file_size)
        if said.output_file_name != left.file_name:
            raise Invalid(f"must be {left.file_name}, as the key says", field="output_file_name")
        more: dict[str, Any] = {} if said.metrics is None else {"metrics": said.metrics}
        result = result_of(left, **more)
        if len(result) > PAYLOAD_MAX_BYTES:
            raise TooLarge("the callback says more than can be kept")
        if task.terminal:  # whether it says the same is all that is left to ask
            return CallBack(task.id, attempt, worker, result, said=kept)
        wrong = await self._wrong(left)
        if wrong is not None:
            failure = Failure(Category.DATA_QUALITY, wrong, "OBJECT_MISMATCH", retryable=False)
            return CallBack(task.id, attempt, worker, failure=failure, said=kept)
        return CallBack(task.id, attempt, worker, result, said=kept)

    async def _wrong(self, left: Left) -> str | None:
        """What is wrong with an object that a machine says it has left."""
        size = await (await self._machines.blobs()).size(left.key)
        if size is None:
            return f"the callback said success, but there is no object {left.key}"
        if size != left.size:
            return f"the callback said {left.size} bytes, but the object {left.key} has {size}"
        return None

    async def upload(self, name: str, file: str, signature: str | None, content: AsyncIterable[bytes]) -> int:
        """A machine without credentials for the store leaves its object through us, piece by piece. Of two uploads of
        one object the later one counts: whoever begins again has given the first one up."""
        view, attempt = await self._signed(name, signature)
        task = view.task
        key = check_key(object_prefix(export_name(task.id, task.kind)) + file, "file")
        if task.attempt != attempt or task.state is not State.RUNNING:
            raise Conflict("the attempt is over")
        seconds = await self._upload_s(task)
        with self._machines.using(task.id):
            size = await self._uploaded(key, content, seconds)
            now = (await self._engine.views.get(task.id)).task
            if now.attempt != attempt or now.state is not State.RUNNING:
                await self._machines.left_late(now)
                raise Conflict("the attempt is over")
        return size

    async def _upload_s(self, task: Task) -> float:
        machine = await self._machine_of(task) or Machine(launcher="")
        return machine.upload_timeout_ms / 1000

    async def _uploaded(self, key: str, content: AsyncIterable[bytes], seconds: float) -> int:
        while (earlier := self._uploads.get(key)) is not None:
            earlier.cancel()
            await asyncio.wait([earlier])
        writing = asyncio.create_task(self._put(key, content, seconds))
        self._uploads[key] = writing
        writing.add_done_callback(lambda _: self._uploads.pop(key))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            if not writing.cancelled():  # it is we who are
                writing.cancel()
                await asyncio.wait([writing])
                raise
            raise Conflict("a later upload of this object has taken its place") from None

    async def _put(self, key: str, content: AsyncIterable[bytes], seconds: float) -> int:
        try:
            async with asyncio.timeout(seconds):
                return await (await self._machines.blobs()).put(key, content)
        except TimeoutError:
            raise Unavailable(f"the upload took longer than {seconds:g} s") from None

    async def payload(self, name: str, signature: str | None) -> bytes:
        view, _ = await self._signed(name, signature)
        return await self._engine.payloads.whole(view.payload, view.task.namespace)

    async def _signed(self, name: str, signature: str | None) -> tuple[TaskView, int]:
        """The task, and which of its attempts speaks."""
        view = await self._known(name)
        task = view.task
        if signature is None:
            machine = await self._machine_of(task)
            if machine is None or machine.callback_auth == "required":
                raise Unauthenticated("a signature is needed: use CALLBACK_URL as it is, or send X-Callback-Signature")
            return view, task.attempt
        attempt = signed_attempt(await self._secrets(), export_name(task.id, task.kind), task.attempt, signature)
        if attempt is None:
            raise Unauthenticated("the signature is not of this task")
        return view, attempt

    async def _secrets(self) -> list[bytes]:
        """The keys as they were a moment ago, the one that signs first."""
        if self._keys is None or self._stopwatch() - self._keys[0] > KEYS_FRESH_S:
            self._keys = self._stopwatch(), [key for _, key in await self._engine.callbacks.token_keys()]
        return self._keys[1]


def content_type(file: str) -> str:
    return CONTENT_TYPES.get(file.rpartition(".")[2].lower(), "application/octet-stream")
