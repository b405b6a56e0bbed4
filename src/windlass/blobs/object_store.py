"""The blob store on `obstore`: a folder, memory, S3 and compatible stores, Google, Azure.

It uploads parts of a fixed size, few at a time, and downloads in pieces. It resumes a download that breaks off, and
aborts an upload that breaks off. Errors of the driver become ours here.
"""

from __future__ import annotations

import asyncio
import glob
import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions as fault
from obstore import store as driver

from windlass.blobs.address import Address, read_address
from windlass.blobs.leftover import Leftovers, find_leftovers
from windlass.engine.payloads.blob_port import PIECE_BYTES, Blob, Found, check_key
from windlass.errors import Conflict, Invalid, NotFound, Unavailable

PART_BYTES = 5 * 1024 * 1024  # the minimum of S3
PARTS_AT_ONCE = 2
ONE_PUT_BYTES = 16 * 1024 * 1024
THREADS = 32  # of one store
CHUNK_BYTES = 1024 * 1024
PAGE = 500  # objects in a page of a list
GIVE_UP_S = 10.0  # to abort an upload that broke off, while its sender waits
_PART = re.compile(r"#[0-9]+$")
_RETRY = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}


def open_store(url: str) -> ObjectStore:
    """The store that a URL names; see `blobs.address`. Sends no request yet."""
    address = read_address(url)
    try:
        return ObjectStore(address, _driver(address))
    except (fault.BaseError, OSError, ValueError, TypeError) as error:
        raise Invalid(f"{address.shown} cannot be used: {_first_line(error)}", field="blobs") from None


def _driver(address: Address) -> Any:
    if address.scheme == "file":
        Path(address.place).mkdir(mode=0o700, parents=True, exist_ok=True)  # other users must not read payloads
        return driver.LocalStore(address.place, automatic_cleanup=True)
    if address.scheme == "memory":
        return driver.MemoryStore()
    client: Any = {"connect_timeout": "5s", "timeout": "60s"}
    if address.options.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    stores: Any = {"s3": driver.S3Store, "gs": driver.GCSStore, "az": driver.AzureStore}
    return stores[address.scheme](
        address.place, prefix=address.prefix or None, client_options=client, retry_config=_RETRY,
        config=dict(address.options),
    )  # fmt: skip


class ObjectStore:
    """Implements `engine.payloads.blob_port.Blobs`."""

    def __init__(self, address: Address, store: Any) -> None:
        self._address, self._store = address, store
        self._folder = Path(address.place) if address.scheme == "file" else None
        # Finds the parts of aborted uploads, or says why they stay in the store for ever. Azure deletes them after a
        # week; a folder has no such parts, see `_sweep`.
        self._parts: Leftovers | str | None = None
        if address.scheme == "s3":
            self._parts = find_leftovers(address.place, address.prefix, store.config, os.environ)
        elif address.scheme == "gs":
            self._parts = "Google lists them for keys of another kind only"

    @property
    def url(self) -> str:
        return self._address.shown

    async def leftovers(self) -> str | None:
        if isinstance(self._parts, Leftovers):
            return await self._parts.problem()
        return self._parts

    async def put(self, key: str, content: bytes | AsyncIterable[bytes], *, new: bool = False) -> int:
        check_key(key)
        if not isinstance(content, bytes | bytearray | memoryview):
            if new:
                raise Invalid("a stream cannot be written only if the object is new", field="new")
            source = _Source(content)
            await self._put_in_parts(key, source, source)
            return source.size
        if len(content) > ONE_PUT_BYTES and not new:
            await self._put_in_parts(key, content)
        else:
            await self._put(key, content, mode="create" if new else "overwrite", use_multipart=False)
        return len(content)

    async def _put_in_parts(self, key: str, content: Any, source: _Source | None = None) -> None:
        """All or nothing: the driver aborts an upload that it cannot finish. A cancelled caller waits for that too, so
        that nothing is written after this has raised."""
        writing = asyncio.create_task(self._put(key, content, use_multipart=True))
        try:
            await asyncio.shield(writing)
        except BaseException as error:
            if source is not None:
                source.close()
            await asyncio.wait([writing], timeout=GIVE_UP_S)
            writing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # it is raised below
            cancelled = isinstance(error, asyncio.CancelledError)
            raise (None if cancelled or source is None else source.problem) or error from None

    async def _put(self, key: str, content: Any, **options: Any) -> None:
        try:
            await self._call(
                key, obstore.put, key, content, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE, **options
            )
        except NotFound:
            raise Unavailable(f"{self.url} accepts no object: does the bucket exist?", key=key) from None

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Blob:
        check_key(key)
        meta = await self._call(key, obstore.head, key)
        size = int(meta["size"])
        end = size if end is None else min(end, size)
        if not 0 <= start <= end:
            raise Invalid(f"must lie within the {size} bytes of the object", field="range")
        return Blob(key, size, end - start, self._pieces(key, start, end, meta))

    async def _pieces(self, key: str, start: int, end: int, meta: Any) -> AsyncIterator[bytes]:
        """Resumes a download that broke off, as long as each request returns something: a slow reader may lose its
        connection more than once."""
        while start < end:
            before = start
            try:
                async with aclosing(self._flow(key, start, end, meta)) as flow:
                    async for piece in flow:
                        start += len(piece)
                        yield piece
            except Unavailable:
                if start == before:
                    raise
            else:
                if start != end:
                    raise Unavailable(f"{key} ended after {start} bytes, not {end}", key=key)

    async def _flow(self, key: str, start: int, end: int, meta: Any) -> AsyncGenerator[bytes, None]:
        """The pieces of one request."""
        response, skip = await self._call(key, _get_range, key, start, end, meta)
        chunks = response.stream(min_chunk_size=CHUNK_BYTES)
        left = end - start
        while left > 0 and (chunk := await self._call(key, lambda _: next(chunks, None))) is not None:
            whole = memoryview(chunk)
            wanted, skip = whole[skip : skip + left], max(0, skip - len(whole))
            for first in range(0, len(wanted), PIECE_BYTES):
                yield bytes(wanted[first : first + PIECE_BYTES])
            left -= len(wanted)

    async def size(self, key: str) -> int | None:
        check_key(key)
        try:
            return int((await self._call(key, obstore.head, key))["size"])
        except NotFound:
            return None

    async def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        for key in keys:
            check_key(key)
        found: Sequence[int | None] = await self._call(keys[0], _sizes, keys) if keys else []
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for key in keys:
            await self._delete(key)
            if isinstance(self._parts, Leftovers):
                await self._parts.give_up(key)
        if self._folder is not None:
            await asyncio.to_thread(_sweep, self._folder, keys)

    async def clear(self, path: str) -> None:
        if self._folder is not None:
            check_key(path, "path")
            folder = self._folder
            await self._call(path, lambda _: _clear(folder, path))
            return
        for key in [found.key async for found in self.list(path)]:
            await self._delete(key)
        if isinstance(self._parts, Leftovers):
            await self._parts.give_up(f"{path}/")

    async def _delete(self, key: str) -> None:
        with suppress(NotFound):
            await self._call(key, obstore.delete, key)

    async def list(self, prefix: str) -> AsyncIterator[Found]:
        check_key(prefix, "prefix")
        if self._folder is not None:  # the driver follows links, which may lead to the objects of others
            walk = partial(_walk_below, str(self._folder), prefix)
            for found in await self._call(prefix, lambda _: walk()):
                yield found
            return
        batches = obstore.list(self._store, prefix, chunk_size=PAGE)
        while (batch := await self._call(prefix, lambda _: next(batches, None))) is not None:
            for meta in batch:
                yield Found(meta["path"], int(meta["size"]), meta["last_modified"])

    async def page(self, after: str, limit: int) -> Sequence[Found]:
        if self._folder is not None:
            walk = partial(_walk_page, str(self._folder), after, limit)
            found: Sequence[Found] = await self._call(after, lambda _: walk())
        else:
            found = await self._call(after, _page, after, limit, self._address.scheme == "memory")
        return found

    async def _call(self, key: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Make a blocking call of the driver in a thread: its async calls notify us from threads that it never ends,
        which sometimes crashes a process that is ending."""
        with self._translate_errors(key):
            return await asyncio.get_running_loop().run_in_executor(
                _threads(self.url), partial(function, self._store, *args, **options)
            )

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Turn errors of the driver into ours. They may contain the vendor's answer, but no credentials."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"there is no object {key} in {self.url}", key=key) from None
        except fault.AlreadyExistsError:
            raise Conflict(f"the object {key} already exists", key=key) from None
        except fault.PreconditionError:
            raise Unavailable(f"{key} was replaced while it was read", key=key) from None
        except (fault.PermissionDeniedError, fault.UnauthenticatedError, PermissionError) as error:
            raise Unavailable(f"{self.url} refuses access: {_first_line(error)}", key=key) from None
        except (fault.BaseError, OSError) as error:
            raise Unavailable(f"{self.url} cannot be reached: {_first_line(error)}", key=key) from None


@cache
def _threads(_url: str) -> ThreadPoolExecutor:
    """Each store has threads of its own: one that does not answer keeps no other waiting."""
    return ThreadPoolExecutor(THREADS, "windlass-blobs")


def _sizes(store: Any, keys: Sequence[str]) -> list[int | None]:
    found: list[int | None] = []
    for key in keys:
        try:
            found.append(int(obstore.head(store, key)["size"]))
        except FileNotFoundError:
            found.append(None)
    return found


def _page(store: Any, after: str, limit: int, unsorted: bool) -> list[Found]:
    """Servers list by key. One that does not know where to start is read from the beginning."""
    metas: Iterator[Any] = (
        meta
        for batch in obstore.list(store, offset=after or None, chunk_size=PAGE)
        for meta in batch
        if meta["path"] > after
    )
    if unsorted:
        metas = iter(sorted(metas, key=lambda meta: str(meta["path"])))
    return [Found(meta["path"], int(meta["size"]), meta["last_modified"]) for meta in islice(metas, limit)]


def _walk_page(folder: str, after: str, limit: int) -> list[Found]:
    return list(islice(_walk(folder, "", after), limit))


def _walk_below(folder: str, path: str) -> list[Found]:
    """The files below a path, without links, and without `NAME#1` of writes that are under way or broke off."""
    if _is_linked(folder, path):
        return []
    return [found for found in _walk(f"{folder}/{path}", f"{path}/", "") if not _PART.search(found.key)]


def _is_linked(folder: str, path: str) -> bool:
    """Whether a path leads through a link."""
    return os.path.realpath(f"{folder}/{path}") != f"{os.path.realpath(folder)}/{path}"


def _walk(folder: str, path: str, after: str) -> Iterator[Found]:
    """The files of a folder by key: a folder is sorted as if its name ended with a slash, as keys are."""
    with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile
        with os.scandir(folder) as entries:
            named = sorted((f"{path}{e.name}{'/' if e.is_dir(follow_symlinks=False) else ''}", e) for e in entries)
        for key, entry in named:
            if key.endswith("/"):
                if key > after or after.startswith(key):
                    yield from _walk(entry.path, key, after)
            elif key > after and entry.is_file(follow_symlinks=False):
                stat = entry.stat(follow_symlinks=False)
                yield Found(key, stat.st_size, datetime.fromtimestamp(stat.st_mtime, UTC))


def _get_range(store: Any, key: str, start: int, end: int, meta: Any) -> tuple[Any, int]:
    """An object from `start` on, and the number of bytes to skip, since some servers do not support ranges."""
    options: Any = {"if_match": meta["e_tag"]} if meta["e_tag"] else {}
    if (start, end) == (0, meta["size"]):
        return obstore.get(store, key, options=options), 0
    try:
        ranged: Any = {**options, "range": (start, end)}
        return obstore.get(store, key, options=ranged), 0
    except fault.GenericError as error:
        if "non-partial" not in str(error):
            raise
        return obstore.get(store, key, options=options), start


class _Source:
    """An async stream, read by a thread; counts its bytes."""

    def __init__(self, source: AsyncIterable[bytes]) -> None:
        self._source, self._loop = aiter(source), asyncio.get_running_loop()
        self._waits: Future[bytes | None] | None = None
        self._closed = False
        self.size = 0
        self.problem: BaseException | None = None

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> bytes:
        piece = b""
        while piece == b"":  # the driver would take it for the end
            self._waits = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            if self._closed:
                self._waits.cancel()
            found = self._waits.result()
            if found is None:
                raise StopIteration
            piece = found
        self.size += len(piece)
        return piece

    async def _next(self) -> bytes | None:
        try:
            return await anext(self._source, None)
        except BaseException as error:
            self.problem = error
            raise

    def close(self) -> None:
        """Stop the thread from waiting for the next piece."""
        self._closed = True
        if self._waits is not None:
            self._waits.cancel()


def _sweep(folder: Path, keys: Sequence[str]) -> None:
    """Remove `NAME#1` beside the name: a process that was killed while it wrote leaves it, and no list shows it."""
    for key in keys:
        target = folder / key
        with suppress(FileNotFoundError):  # another process has removed the folder
            for left in target.parent.glob(f"{glob.escape(target.name)}#*"):
                left.unlink(missing_ok=True)
        _remove_empty(target.parent, folder)


def _clear(folder: Path, path: str) -> None:
    """Remove all files below a path, whatever their names. Links are removed, and not followed."""
    top = folder / path
    if not top.is_dir() or _is_linked(str(folder), path):
        return
    for place, folders, files in os.walk(top, topdown=False):
        inside = Path(place)
        for name in (*folders, *files):
            if name in files or (inside / name).is_symlink():
                (inside / name).unlink(missing_ok=True)
        _remove_empty(inside, top)
    _remove_empty(top, folder)


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and root in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def _first_line(error: BaseException) -> str:
    """The first line of the driver's message; the others show its internal values."""
    return str(error).partition("\n")[0][:300] or type(error).__name__
