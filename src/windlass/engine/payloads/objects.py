"""Payloads and results that are too long for a row: stored as objects; the row holds a reference.

The object is written first, the row after it. Before either, an effect that deletes the object later is put in the
outbox; it is removed when the row is committed. If the process dies in between, the effect stays: it checks whether a
row refers to the object, and deletes the object if none does. So nothing is lost, and nothing is left behind.

All processes on one database must use the same blob store. The database records which (an object in the store carries
its id), so that a process with another store gets an error instead of writing where no other process reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Claimed
from windlass.core.payload_reference import is_reference, refer, reference_of
from windlass.core.states import Effect
from windlass.core.step import Step
from windlass.core.validation import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_payload
from windlass.engine.payloads.blob_port import Blob, Blobs
from windlass.engine.randomness import Randomness, SystemRandomness
from windlass.engine.read.doctor import Finding, Level
from windlass.engine.send.outbox import NotNow
from windlass.errors import (
    Conflict,
    InvalidState,
    LeaseLost,
    NotFound,
    Rejected,
    StoreBusy,
    TooLarge,
    Unavailable,
)
from windlass.store.notify import PendingNotifications
from windlass.store.store import Store
from windlass.store.tables.view import TaskView

log = logging.getLogger("windlass.objects")

DELETE = "delete_object"
MARKER = "windlass-store.txt"
UNCOMMITTED_S = 3600.0  # after which an upload that no row refers to is deleted
LOAD_AT_ONCE = 4
RETRY_S = 60.0
LIMIT_BYTES = 64 * 1024 * 1024
SET_BLOBS = "set WINDLASS_BLOBS, the same for every server, worker and program beside this database"
LIFECYCLE = "set a lifecycle rule of the bucket that aborts incomplete multipart uploads after a day"


class Objects:
    """The objects of one engine. Without a blob store it can do everything but store and load them."""

    def __init__(
        self,
        store: Store,
        randomness: Randomness,
        open_blobs: Callable[[], Blobs] | None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self._store, self._randomness, self._open = store, randomness, open_blobs
        self.limit_bytes = PAYLOAD_MAX_BYTES if open_blobs is None else limit_bytes
        self._blobs: Blobs | None = None
        self._checking = asyncio.Lock()

    @property
    def configured(self) -> bool:
        """Whether there is a blob store."""
        return self._open is not None

    @property
    def advice(self) -> str:
        """What an operator can do so that larger payloads are accepted; empty if nothing."""
        return "" if self.configured else f"; a blob store accepts more: {SET_BLOBS}"

    @property
    def room_bytes(self) -> int:
        """By how many bytes a message may exceed the limit of one with nothing large in it."""
        return 0 if self._open is None else self.limit_bytes

    # ----------------------------------------------------------------------------------------- which store

    async def blobs(self) -> Blobs:
        """The blob store, checked to belong to this database. Raises InvalidState if there is none, or another."""
        if self._open is None:
            stored = await self._recorded()
            elsewhere = "" if stored is None else f", but objects of this database are kept in {stored[1]}"
            raise InvalidState(f"this process was given no blob store{elsewhere}: {SET_BLOBS}")
        async with self._checking:
            if self._blobs is None:
                blobs = self._open()
                await self._check(blobs)
                self._blobs = blobs
        return self._blobs

    async def _recorded(self) -> tuple[UUID, str] | None:
        async with self._store.single() as tx:
            return await tx.objects.blob_store()

    async def _check(self, blobs: Blobs) -> None:
        recorded, ours = await self._recorded(), await read_marker(blobs, MARKER)
        if recorded is None:
            ours = ours or await write_marker(blobs, MARKER, self._randomness.new_id())
            async with self._store.begin() as tx:
                recorded = await tx.objects.choose_blob_store(ours, blobs.url)
        if ours != recorded[0]:
            raise InvalidState(
                f"objects of this database are kept in {recorded[1]}, but this process was given {blobs.url}: "
                f"{SET_BLOBS}",
                kept_in=recorded[1], given=blobs.url,
            )  # fmt: skip
        if blobs.url != recorded[1]:  # it was moved, or has another name from here
            async with self._store.begin() as tx:
                await tx.objects.move_blob_store(blobs.url)

    # ----------------------------------------------------------------------------------------- write

    async def stow(self, field: str, content: bytes, task_id: UUID, what: str, namespace: str | None = None) -> bytes:
        """Store what is too long for a row; returns the reference to it. The object is deleted after a while, unless
        `settle` finds that a row refers to it."""
        check_payload(field, content, LARGE_MAX_BYTES)
        size = len(content)
        if self.configured and size > self.limit_bytes:
            raise TooLarge(f"has {size} bytes, the limit is {self.limit_bytes}", field=field, limit=self.limit_bytes)
        try:
            blobs = await self.blobs()
        except InvalidState as error:  # for its sender it is too large, on every wire
            problem = f"has {size} bytes, a row has room for {PAYLOAD_MAX_BYTES}, and {error.message}"
            raise TooLarge(problem, field=field, limit=PAYLOAD_MAX_BYTES) from None
        reference = refer(task_id, what, size, await _digest(content))
        text = reference.encoded()
        async with self._store.begin() as tx:
            space = namespace if namespace is not None else await tx.objects.task_namespace(task_id)
            if space is None:
                raise NotFound(f"there is no task {task_id}", task_id=task_id)
            await tx.objects.insert_deletion(_deletion(text, task_id, space), UNCOMMITTED_S)
        await blobs.put(reference.key, content)
        return text

    async def settle(self, text: bytes, content: bytes, task_id: UUID) -> None:
        """Call this when the reference was committed or refused. If a row refers to the object, it stays; otherwise it
        is deleted soon. If its deletion has begun meanwhile, the object is written once more."""
        with contextlib.suppress(StoreBusy):  # then the deletion decides
            async with self._store.begin() as tx:
                begun = await tx.objects.deletion_begun(_deletion_id(text))
                if not await tx.objects.referred_to(task_id, text):
                    await tx.objects.hasten(_deletion_id(text))
                    await tx.wake(PendingNotifications(effects=True))
                    return
                await tx.outbox.delete_effects([_deletion_id(text)])
            if begun:
                await (await self.blobs()).put(reference_of(text).key, content)

    @asynccontextmanager
    async def kept(
        self, field: str, content: bytes, task_id: UUID, what: str, namespace: str | None = None
    ) -> AsyncIterator[bytes]:
        """A reference to commit within the block. After an error that leaves open whether it was committed (the
        database is away), the deletion decides later."""
        text = await self.stow(field, content, task_id, what, namespace)
        try:
            yield text
        except (Rejected, LeaseLost):
            await self.settle(text, content, task_id)
            raise
        await self.settle(text, content, task_id)

    # ----------------------------------------------------------------------------------------- read

    async def load(self, text: bytes) -> bytes:
        """The content itself, from the row or from the store. Raises NotFound if it is gone, Unavailable if the store
        does not answer."""
        if not is_reference(text):
            return text
        reference = reference_of(text)
        content = await (await (await self.blobs()).get(reference.key)).read()
        if await _digest(content) != reference.sha256:
            raise InvalidState(f"the object {reference.key} has changed since it was written", key=reference.key)
        return content

    async def open(self, text: bytes) -> Blob:
        """The object behind a reference, as a stream."""
        return await (await self.blobs()).get(reference_of(text).key)

    async def with_result(self, view: TaskView) -> TaskView:
        return replace(view, task=replace(view.task, result=await self.load(view.task.result or b"null")))

    async def whole(self, view: TaskView) -> TaskView:
        """A task with its payload and its result loaded."""
        if is_reference(view.task.result):
            view = await self.with_result(view)
        return replace(view, payload=await self.load(view.payload)) if is_reference(view.payload) else view

    async def whole_step(self, step: Step) -> Step:
        return step if not is_reference(step.result) else replace(step, result=await self.load(step.result or b""))

    async def fill(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[tuple[Claimed, Exception]]]:
        """Attempts with their payloads, and those whose payload cannot be loaded, with the error."""
        turns = asyncio.Semaphore(LOAD_AT_ONCE)

        async def one(attempt: Claimed) -> Claimed | Exception:
            async with turns:
                try:
                    return Claimed(attempt.task, await self.load(attempt.payload))
                except (Rejected, Unavailable) as error:
                    return error

        loaded = await asyncio.gather(*map(one, claimed))
        return (
            [found for found in loaded if isinstance(found, Claimed)],
            [(attempt, error) for attempt, error in zip(claimed, loaded, strict=True) if isinstance(error, Exception)],
        )

    # ----------------------------------------------------------------------------------------- delete

    async def delete(self, effect: Effect) -> None:
        """Carry out the effect `delete_object`. The row of the effect is locked meanwhile: a caller that wants to refer
        to the object deletes the effect first, and so either comes before the deletion or knows of it."""
        text = str(effect.body["reference"]).encode()
        try:
            blobs = await self.blobs()
            async with self._store.begin() as tx:
                if not await tx.objects.lock_deletion(effect.id):
                    return
                if not await tx.objects.referred_to(effect.task_id, text):
                    await blobs.delete([reference_of(text).key])
        except (InvalidState, Unavailable) as error:  # the deletion must not be given up, however long this lasts
            async with self._store.begin() as tx:
                await tx.objects.insert_deletion(effect, RETRY_S)
            raise NotNow(error.message, RETRY_S) from None


async def examine_objects(store: Store, open_blobs: Callable[[], Blobs] | None, given: str) -> Finding:
    """Whether the blob store of this process is the one that has the objects of this database."""
    async with store.single() as tx:
        kept = await tx.objects.blob_store()
    if kept is None and open_blobs is None:
        return Finding("blobs", Level.OK, "none is set: payloads and results over 2 MiB are refused")
    if kept is None:
        return Finding("blobs", Level.OK, f"no objects are kept yet; they would be in {given}")
    advice = "set WINDLASS_BLOBS as the servers have it, and see that it can be reached from here"
    try:
        why = await (await Objects(store, SystemRandomness(), open_blobs).blobs()).leftovers()
    except (Rejected, Unavailable) as error:
        return Finding("blobs", Level.WRONG, error.message, advice)
    if why is not None:
        message = f"objects are kept in {given}; parts of uploads that break off are not found there: {why}"
        return Finding("blobs", Level.NOTE, message, LIFECYCLE)
    return Finding("blobs", Level.OK, f"objects are kept in {given}")


async def _digest(content: bytes) -> str:
    return (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()


def _deletion(text: bytes, task_id: UUID, namespace: str) -> Effect:
    return Effect(_deletion_id(text), DELETE, namespace, task_id, 0, {"reference": text.decode()})


def _deletion_id(text: bytes) -> UUID:
    """One deletion per object, however it was requested; retention makes the same id in SQL."""
    return UUID(hashlib.md5(reference_of(text).key.encode(), usedforsecurity=False).hexdigest())


async def read_marker(blobs: Blobs, name: str) -> UUID | None:
    """The id of a store, if it has one."""
    try:
        text = await (await blobs.get(name)).read()
        return UUID(text.decode().strip())
    except NotFound:
        return None
    except ValueError:
        raise InvalidState(f"{name} in {blobs.url} is not ours: give objects a folder or prefix of their own") from None


async def write_marker(blobs: Blobs, name: str, new_id: UUID) -> UUID:
    """Give a store an id. Returns the id that it has then: another process may have been faster."""
    with contextlib.suppress(Conflict):
        await blobs.put(name, f"{new_id}\n".encode(), new=True)
    found = await read_marker(blobs, name)
    if found is None:
        raise Unavailable(f"{blobs.url} does not keep what is written")
    return found


def too_long(text: bytes | None) -> bool:
    """Whether it is too long for a row."""
    return isinstance(text, bytes) and len(text) > PAYLOAD_MAX_BYTES
