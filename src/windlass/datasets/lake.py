"""The lake: the object store in which tasks keep the files of datasets with storage `s3`. It may be a folder.

Each attempt writes to folders of its own, named in its claim. The files are read here before the completion of the task
is committed: marker, manifest, and the size of each file. They are visible from the commit on, and never before. This
module decides nothing; `rules.manifest` does. `clean_up` deletes what was never committed, `purge` what nobody needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

import msgspec

from windlass.core.validation import check_type
from windlass.datasets.rules.events import Files
from windlass.datasets.rules.manifest import (
    FILES_MAX,
    MANIFEST,
    MANIFEST_MAX_BYTES,
    MARKER,
    MARKER_MAX_BYTES,
    Expected,
    Manifest,
    check_size,
    check_sizes,
    digest,
    read_manifest,
    staging_prefix,
)
from windlass.datasets.tables.lake import LakeTable
from windlass.engine.engine import Engine
from windlass.engine.payloads.blob_port import Blobs, Found, check_key
from windlass.engine.payloads.objects import read_marker, write_marker
from windlass.engine.randomness import Randomness
from windlass.engine.read.metrics import Histogram
from windlass.errors import Invalid, NotFound, OutputInvalid, Unavailable
from windlass.store.store import Store

LAKE_MARKER, LAKE_PROBE = "windlass-lake.txt", "windlass-lake-probe.txt"
HEADS_AT_ONCE, HEADS_IN_TURN = 32, 8
OUTPUTS_AT_ONCE = 4
FILES_IN_ALL = 10 * FILES_MAX  # of one completion
DELETES_AT_ONCE = 16
READ_S = 60.0  # within which the outputs of a completion are read
OWN_PLACE = "give this one a folder or prefix of its own"
SET_LAKE = "set WINDLASS_LAKE, the same for every server of this database"


class WrittenOutput(msgspec.Struct, frozen=True):
    """An output that a worker says it has written: where, and what is expected there. `field` is its place in the
    request."""

    location: str
    expected: Expected
    field: str


class Lake:
    """The lake of one engine. Without a store it names no folder and reads no output."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._randomness = engine.parts.store, engine.parts.randomness
        self._root: str | None = None
        self._open: Callable[[], Blobs] | None = None
        self._blobs: Blobs | None = None
        self._checking = asyncio.Lock()
        self.commits = Histogram()  # seconds of completions with files, for metrics

    def use(self, root: str, open_blobs: Callable[[], Blobs]) -> None:
        """Use this store. `root` is its URL as workers know it, without credentials."""
        check_type("lake", root, str)
        if root != self._root:
            self._root, self._open, self._blobs = root.rstrip("/"), open_blobs, None

    @property
    def configured(self) -> bool:
        return self._root is not None

    @property
    def root(self) -> str:
        if self._root is None:
            raise Unavailable(f"this server has no lake: {SET_LAKE}")
        return self._root

    def staging(
        self, namespace: str, dataset: UUID, version: UUID, task_id: UUID, attempt: int, output_index: int
    ) -> str | None:
        """The folder for one output of one attempt; None without a lake."""
        if self._root is None:
            return None
        return staging_prefix(self._root, namespace, dataset, version, task_id, attempt, output_index)

    # ----------------------------------------------------------------------------------------- which store

    async def blobs(self) -> Blobs:
        """The store, checked to be the lake of this database: two databases may give the same folder to different
        attempts. Raises Unavailable if there is none, or another."""
        if self._open is None:
            raise Unavailable(f"this server has no lake: {SET_LAKE}")
        async with self._checking:
            if self._blobs is None:
                try:
                    blobs = self._open()
                except Invalid as error:  # a mistake of the server's settings, not of the worker
                    raise Unavailable(f"the lake cannot be used: {error.message}") from None
                await check_lake(self._store, self._randomness, blobs)
                self._blobs = blobs
        return self._blobs

    # ----------------------------------------------------------------------------------------- outputs

    async def read(self, outputs: Sequence[WrittenOutput]) -> list[Files]:
        """Read and check what lies in the folders of these outputs. Raises OutputInvalid with the field that is wrong,
        and Unavailable if the store does not answer."""
        blobs = await self.blobs()
        found: dict[int, Files] = {}
        rest = iter(enumerate(outputs))
        room = _Room(FILES_IN_ALL)

        async def work() -> None:
            for place, output in rest:
                found[place] = await _read_output(blobs, self._key(output.location), output, room)

        try:
            async with asyncio.timeout(READ_S), asyncio.TaskGroup() as group:
                for _ in range(min(OUTPUTS_AT_ONCE, len(outputs))):
                    group.create_task(work())
        except* (Invalid, Unavailable) as errors:
            raise min(errors.exceptions, key=lambda error: isinstance(error, Unavailable)) from None
        except* TimeoutError:
            raise Unavailable(f"{blobs.url} has not answered within {READ_S:.0f} seconds") from None
        return [found[place] for place in range(len(outputs))]

    def _key(self, location: str) -> str:
        return location.removeprefix(f"{self.root}/").rstrip("/")


class _Room:
    """How many more files one completion may have."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int, field: str) -> None:
        self.left -= count
        if self.left < 0:
            raise OutputInvalid(f"all outputs together may have {FILES_IN_ALL} files", field=field)


async def _read_output(blobs: Blobs, folder: str, output: WrittenOutput, room: _Room) -> Files:
    field = output.field
    marker, text = await asyncio.gather(
        _read(blobs, f"{folder}/{MARKER}", MARKER_MAX_BYTES, f"{field}.{MARKER}"),
        _read(blobs, f"{folder}/{MANIFEST}", MANIFEST_MAX_BYTES, f"{field}.{MANIFEST}"),
    )
    manifest = read_manifest(text, marker, output.expected, field)
    assert text is not None, output
    room.take(len(manifest.files), field)
    check_sizes(manifest, await _sizes(blobs, folder, manifest, field), field)
    size = sum(file.bytes for file in manifest.files)
    return Files(output.location, digest(text), manifest.rows, size)


async def _read(blobs: Blobs, key: str, most: int, field: str) -> bytes | None:
    try:
        blob = await blobs.get(_checked(key, field))
        check_size(blob.size, most, field)
        return await blob.read()
    except NotFound:
        return None


async def _sizes(blobs: Blobs, folder: str, manifest: Manifest, field: str) -> dict[str, int | None]:
    """The sizes of the files of a manifest, many at once. A request to the store has a few files, so that the outputs
    of other tasks have their turns in between."""
    paths = [file.path for file in manifest.files]
    keys = [_checked(f"{folder}/{path}", f"{field}.manifest.files[{place}].path") for place, path in enumerate(paths)]
    sizes: list[int | None] = [None] * len(keys)
    rest = iter(range(0, len(keys), HEADS_IN_TURN))

    async def work() -> None:
        for first in rest:
            end = first + HEADS_IN_TURN
            sizes[first:end] = await blobs.sizes(keys[first:end])

    await asyncio.gather(*(work() for _ in range(min(HEADS_AT_ONCE, len(keys)))))
    return dict(zip(paths, sizes, strict=True))


def _checked(key: str, field: str) -> str:
    try:
        return check_key(key)
    except Invalid as error:
        raise OutputInvalid(error.message.removeprefix("key: "), field=field) from None


async def check_lake(store: Store, randomness: Randomness, blobs: Blobs) -> None:
    """Check that a store is the lake of this database, or make it that. The marker is read first: one that another
    server has written since is then in the database too."""
    ours = await read_marker(blobs, LAKE_MARKER)
    async with store.single() as tx:
        recorded = await LakeTable(tx.session).lake()
    if recorded is None:
        if ours is not None:
            raise Unavailable(f"{blobs.url} is the lake of another database: {OWN_PLACE}")
        await try_writing(blobs)
        async with store.begin() as tx:
            recorded = await LakeTable(tx.session).choose(randomness.new_id(), blobs.url)
    if ours is None and blobs.url == recorded[1]:
        ours = await write_marker(blobs, LAKE_MARKER, recorded[0])
    if ours != recorded[0]:
        raise Unavailable(f"the lake of this database is {recorded[1]}, this server was given {blobs.url}: {SET_LAKE}")
    if blobs.url != recorded[1]:  # it was moved, or has another name from here
        async with store.begin() as tx:
            await LakeTable(tx.session).move(blobs.url)


async def delete_some(blobs: Blobs, folder: str, found: Sequence[Found], most: int) -> bool:
    """Delete objects that were found in a folder, at most so many. Returns whether the folder is empty then."""
    rest = iter([one.key for one in found[:most]])

    async def work() -> None:
        for key in rest:
            with suppress(Invalid):  # a name that we would not write
                await blobs.delete([key])

    await asyncio.gather(*(work() for _ in range(min(DELETES_AT_ONCE, len(found)))))
    if len(found) > most:
        return False
    await blobs.clear(folder)  # also what has such a name, and the parts of uploads that broke off
    return True


async def try_writing(blobs: Blobs) -> None:
    """Write an object to the lake and delete it. Raises Unavailable."""
    await blobs.put(LAKE_PROBE, b"written to see whether it can be\n")
    await blobs.delete([LAKE_PROBE])
