"""Payloads and results that are too long for a row: kept as objects, and what the row holds is a reference.

The object is written first, the row after it; before either, an effect is put in the outbox that deletes the object
later. When the row is committed the effect is taken back. Whoever dies in between leaves the effect, which looks if a
row refers to the object, and deletes it if none does: nothing is lost, and nothing is left behind.

All processes beside one database must use one blob store. The database knows which (an object in it carries its id), so
that a process that was given another one is told so, instead of writing where nobody will look.
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

from windlass.core.check import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_payload
from windlass.core.command import Claimed
from windlass.core.error import (
    Conflict,
    InvalidState,
    LeaseLost,
    NotFound,
    Rejected,
    StoreBusy,
    TooLarge,
    Unavailable,
)
from windlass.core.reference import is_reference, refer, reference_of
from windlass.core.step import Step
from windlass.core.transition import Effect
from windlass.engine.blob import Blob, Blobs
from windlass.engine.chance import Chance, SystemChance
from windlass.engine.doctor import Finding, Level
from windlass.engine.outbox import NotNow
from windlass.store.store import Store
from windlass.store.view import TaskView
from windlass.store.wake import Wakes

log = logging.getLogger("windlass.objects")

DELETE = "delete_object"
MARKER = "windlass-store.txt"
UNCOMMITTED_S = 3600.0  # after which an upload that no row refers to is deleted
LOAD_AT_ONCE = 4
AWAY_AGAIN_S = 60.0
LIMIT_BYTES = 64 * 1024 * 1024
SET_BLOBS = "set WINDLASS_BLOBS, the same for every server, worker and program beside this database"
LIFECYCLE = "set a lifecycle rule of the bucket that aborts incomplete multipart uploads after a day"


class Objects:
    """The objects of one engine. Without a blob store it can do all but keep and read them."""

    def __init__(
        self, store: Store, chance: Chance, open_blobs: Callable[[], Blobs] | None, limit_bytes: int = LIMIT_BYTES
    ) -> None:
        self._store, self._chance, self._open = store, chance, open_blobs
        self.limit_bytes = PAYLOAD_MAX_BYTES if open_blobs is None else limit_bytes
        self._blobs: Blobs | None = None
        self._checking = asyncio.Lock()

    @property
    def configured(self) -> bool:
        """Whether there is a blob store."""
        return self._open is not None

    @property
    def advice(self) -> str:
        """What an operator can do for who has more than is taken; empty if that is nothing."""
        return "" if self.configured else f"; a blob store keeps more: {SET_BLOBS}"

    @property
    def room_bytes(self) -> int:
        """By how much a message may be longer than one that holds nothing large."""
        return 0 if self._open is None else self.limit_bytes

    # ----------------------------------------------------------------------------------------- which store

    async def blobs(self) -> Blobs:
        """The blob store, once it is known to be that of this database. InvalidState if there is none, or another."""
        if self._open is None:
            raise await self._no_store()
        async with self._checking:
            if self._blobs is None:
                blobs = self._open()
                await self._check(blobs)
                self._blobs = blobs
        return self._blobs

    async def _no_store(self) -> InvalidState:
        async with self._store.single() as tx:
            kept = await tx.objects.blob_store()
        known = "" if kept is None else f", but objects of this database are kept in {kept[1]}"
        return InvalidState(f"this process was given no blob store{known}: {SET_BLOBS}")

    async def _check(self, blobs: Blobs) -> None:
        async with self._store.single() as tx:
            kept = await tx.objects.blob_store()
        ours = await _marker(blobs)
        if kept is None:
            ours = ours or await _mark(blobs, self._chance.new_id())
            async with self._store.begin() as tx:
                kept = await tx.objects.choose_blob_store(ours, blobs.url)
        if ours != kept[0]:
            raise InvalidState(
                f"objects of this database are kept in {kept[1]}, but this process was given {blobs.url}: "
                f"{SET_BLOBS}",
                kept_in=kept[1], given=blobs.url,
            )  # fmt: skip
        if blobs.url != kept[1]:  # moved, or seen by another name
            async with self._store.begin() as tx:
                await tx.objects.move_blob_store(blobs.url)

    # ----------------------------------------------------------------------------------------- write

    async def stow(self, field: str, content: bytes, task_id: UUID, what: str, namespace: str | None = None) -> bytes:
        """Keep what is too long for a row; returns the reference for it. It is deleted after a while, unless `settle`
        finds that a row refers to it."""
        check_payload(field, content, LARGE_MAX_BYTES)
        size = len(content)
        if self.configured and size > self.limit_bytes:
            raise TooLarge(f"has {size} bytes, the limit is {self.limit_bytes}", field=field, limit=self.limit_bytes)
        try:
            blobs = await self.blobs()
        except InvalidState as error:  # as far as its sender is concerned it is too large, on every wire
            problem = f"has {size} bytes, a row has room for {PAYLOAD_MAX_BYTES}, and {error.message}"
            raise TooLarge(problem, field=field, limit=PAYLOAD_MAX_BYTES) from None
        digest = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
        reference = refer(task_id, what, len(content), digest)
        text = reference.encoded()
        async with self._store.begin() as tx:
            space = namespace if namespace is not None else await tx.objects.task_namespace(task_id)
            if space is None:
                raise NotFound(f"there is no task {task_id}", task_id=task_id)
            await tx.objects.insert_deletion(_deletion(text, task_id, space), UNCOMMITTED_S)
        await blobs.put(reference.key, content)
        return text

    async def settle(self, text: bytes, content: bytes, task_id: UUID) -> None:
        """What was to be committed is, or was refused. If a row refers to the object it stays; otherwise it is deleted
        as soon as may be. Should its deletion have begun in the meantime, because all this took so long, that is over
        or will not happen now, and the object is written once more."""
        with contextlib.suppress(StoreBusy):  # then the deletion will find out
            async with self._store.begin() as tx:
                begun = await tx.objects.deletion_begun(_deletion_id(text))
                if not await tx.objects.referred_to(task_id, text):
                    await tx.objects.hasten(_deletion_id(text))
                    await tx.wake(Wakes(effects=True))
                    return
                await tx.outbox.delete_effects([_deletion_id(text)])
            if begun:
                await (await self.blobs()).put(reference_of(text).key, content)

    @asynccontextmanager
    async def kept(self, field: str, content: bytes, task_id: UUID, what: str) -> AsyncIterator[bytes]:
        """A reference to commit within the block. After an error that says nothing about that (the database is away),
        it is found out later whether it was."""
        text = await self.stow(field, content, task_id, what)
        try:
            yield text
        except (Rejected, LeaseLost):
            await self.settle(text, content, task_id)
            raise
        await self.settle(text, content, task_id)

    # ----------------------------------------------------------------------------------------- read

    async def load(self, text: bytes) -> bytes:
        """The content itself, wherever it is kept. NotFound if it is gone, Unavailable while its store is away."""
        if not is_reference(text):
            return text
        reference = reference_of(text)
        content = await (await (await self.blobs()).get(reference.key)).read()
        digest = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
        if digest != reference.sha256:
            raise InvalidState(f"the object {reference.key} is not what was written", key=reference.key)
        return content

    async def open(self, text: bytes) -> Blob:
        """The object behind a reference, as a stream."""
        return await (await self.blobs()).get(reference_of(text).key)

    async def with_result(self, view: TaskView) -> TaskView:
        return replace(view, task=replace(view.task, result=await self.load(view.task.result or b"null")))

    async def whole(self, view: TaskView) -> TaskView:
        """A task with its payload and its result, where these are kept elsewhere."""
        if is_reference(view.task.result):
            view = await self.with_result(view)
        return replace(view, payload=await self.load(view.payload)) if is_reference(view.payload) else view

    async def whole_step(self, step: Step) -> Step:
        return step if not is_reference(step.result) else replace(step, result=await self.load(step.result or b""))

    async def fill(self, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[tuple[Claimed, Exception]]]:
        """Attempts with their payloads, and those whose payload cannot be had, with the reason."""
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
            [(attempt, why) for attempt, why in zip(claimed, loaded, strict=True) if isinstance(why, Exception)],
        )

    # ----------------------------------------------------------------------------------------- delete

    async def delete_later(self, prefix: str, task_id: UUID, namespace: str, after_s: float = 0.0) -> None:
        """All objects below a path are deleted after a while, through the outbox. Said again, the last word counts."""
        effect = Effect(_id(prefix), DELETE, namespace, task_id, 0, {"prefix": prefix})
        async with self._store.begin() as tx:
            await tx.objects.insert_deletion(effect, after_s)

    async def delete(self, effect: Effect) -> None:
        """Carries out the effect `delete_object`. The row of the effect is locked meanwhile: who wants to refer to the
        object takes the effect back first, and so either comes before the deletion or knows of it."""
        try:
            blobs = await self.blobs()
            await self._delete(blobs, effect)
        except (InvalidState, Unavailable) as error:  # it must not be given up, however long this lasts
            async with self._store.begin() as tx:
                await tx.objects.insert_deletion(effect, AWAY_AGAIN_S)
            raise NotNow(error.message, AWAY_AGAIN_S) from None

    async def _delete(self, blobs: Blobs, effect: Effect) -> None:
        async with self._store.begin() as tx:
            if not await tx.objects.lock_deletion(effect.id):
                return
            if "prefix" in effect.body:
                await blobs.clear(str(effect.body["prefix"]))
                return
            text = str(effect.body["reference"]).encode()
            if not await tx.objects.referred_to(effect.task_id, text):
                await blobs.delete([reference_of(text).key])


async def examine_objects(store: Store, open_blobs: Callable[[], Blobs] | None, given: str) -> Finding:
    """Whether the blob store that this process was given is the one that keeps the objects of this database."""
    async with store.single() as tx:
        kept = await tx.objects.blob_store()
    if kept is None and open_blobs is None:
        return Finding("blobs", Level.OK, "none is set: payloads and results over 2 MiB are refused")
    if kept is None:
        return Finding("blobs", Level.OK, f"no objects are kept yet; they would be in {given}")
    advice = "set WINDLASS_BLOBS as the servers have it, and see that it can be reached from here"
    try:
        why = await (await Objects(store, SystemChance(), open_blobs).blobs()).leftovers()
    except (Rejected, Unavailable) as error:
        return Finding("blobs", Level.WRONG, error.message, advice)
    if why is not None:
        message = f"objects are kept in {given}; parts of uploads that break off are not found there: {why}"
        return Finding("blobs", Level.NOTE, message, LIFECYCLE)
    return Finding("blobs", Level.OK, f"objects are kept in {given}")


def _deletion(text: bytes, task_id: UUID, namespace: str) -> Effect:
    return Effect(_deletion_id(text), DELETE, namespace, task_id, 0, {"reference": text.decode()})


def _deletion_id(text: bytes) -> UUID:
    return _id(reference_of(text).key)


def _id(key: str) -> UUID:
    """One deletion an object, whoever asks for it; retention makes the same id in SQL."""
    return UUID(hashlib.md5(key.encode(), usedforsecurity=False).hexdigest())


async def _marker(blobs: Blobs) -> UUID | None:
    """The id of a store, if it has one."""
    try:
        text = await (await blobs.get(MARKER)).read()
        return UUID(text.decode().strip())
    except NotFound:
        return None
    except ValueError:
        raise InvalidState(
            f"{MARKER} in {blobs.url} is not ours: give objects a folder or prefix of their own"
        ) from None


async def _mark(blobs: Blobs, new_id: UUID) -> UUID:
    with contextlib.suppress(Conflict):
        await blobs.put(MARKER, f"{new_id}\n".encode(), new=True)
    found = await _marker(blobs)  # somebody may have been faster
    if found is None:
        raise Unavailable(f"{blobs.url} does not keep what is written")
    return found


def too_long(text: bytes | None) -> bool:
    """Whether it has to be kept elsewhere."""
    return isinstance(text, bytes) and len(text) > PAYLOAD_MAX_BYTES
