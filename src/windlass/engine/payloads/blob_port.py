"""The port to the blob store: objects by key, written and read as streams. Knows no driver; those are in `blobs/`.

A key is a path of plain segments. An object is written as a whole or not at all, and read piece by piece, so that a
reader need not hold all of it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from windlass.errors import Invalid

PIECE_BYTES = 4 * 1024 * 1024
KEY_MAX = 900  # S3 takes 1024 bytes, and a prefix may stand before it
_KEY = re.compile(r"[A-Za-z0-9_=+,@()' .-]+(/[A-Za-z0-9_=+,@()' .-]+)*")


class Found(NamedTuple):
    """An object in a listing."""

    key: str
    size: int
    modified_at: datetime


class Blob(NamedTuple):
    """An object, or a part of one, to be read. `size` is that of the whole object; `pieces` yields `length` bytes in
    all, or raises NotFound if the object is deleted meanwhile, Unavailable if the store does not answer."""

    key: str
    size: int
    length: int
    pieces: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """All of it at once, for what is known to be small."""
        return b"".join([piece async for piece in self.pieces])


class Blobs(Protocol):
    """A blob store. Any problem of the store, or of our rights in it, is Unavailable: the caller can only try again
    later."""

    @property
    def url(self) -> str:
        """The URL of this store, for people: without secrets."""
        ...

    async def put(self, key: str, content: bytes | AsyncIterable[bytes], *, new: bool = False) -> int:
        """Write an object, or replace it, and return its size. Bytes are sent as they are, a stream in parts. With
        `new` (bytes only) an existing object stays as it is, and Conflict is raised."""
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Blob:
        """An object from byte `start` up to but without `end`. Raises NotFound at once if there is none."""
        ...

    async def size(self, key: str) -> int | None:
        """The size in bytes; None if there is no such object."""
        ...

    async def sizes(self, keys: Sequence[str]) -> Sequence[int | None]:
        """The size of each of a few objects, one after the other: one call of many costs less than many of one."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, with the parts of uploads that broke off. A missing object is no error."""
        ...

    async def clear(self, path: str) -> None:
        """Delete all objects below this path, and the parts of uploads that broke off, where these can be found. An
        upload that is under way there may fail."""
        ...

    async def leftovers(self) -> str | None:
        """Why parts of uploads that broke off cannot be found in this store and stay there; None if they can."""
        ...

    async def page(self, after: str, limit: int) -> Sequence[Found]:
        """The first `limit` objects whose keys come after this one, in the order of their keys. Fewer are the last."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Found]:
        """All objects below a path, in no order."""
        ...


def check_key(key: object, field: str = "key") -> str:
    """Check that a key means the same in every store: it stays in its folder, and needs no escaping."""
    if not isinstance(key, str):
        raise Invalid(f"must be text, not {type(key).__name__}", field=field)
    if len(key) > KEY_MAX or not _KEY.fullmatch(key):
        raise Invalid("must be a path of letters, digits and _ - . = + , @ ( ) ' or spaces", field=field)
    if any(part in (".", "..") or part != part.strip() for part in key.split("/")):
        raise Invalid("must not contain . or .. or spaces around a name", field=field)
    return key
