"""The port to the blob store: objects by key, written and read as streams. Knows no driver; those are in `blobs/`.

A key is a path of plain segments. What is written is there as a whole or not at all; what is read is read piece by
piece, so that nobody ever holds a whole object who does not want to.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from windlass.core.error import Invalid

PIECE_BYTES = 4 * 1024 * 1024
KEY_MAX = 900  # S3 takes 1024 bytes, and a prefix may stand before it
_KEY = re.compile(r"[A-Za-z0-9_=+,@()' .-]+(/[A-Za-z0-9_=+,@()' .-]+)*")


class Found(NamedTuple):
    """What a list tells of an object."""

    key: str
    size: int
    modified_at: datetime


class Blob(NamedTuple):
    """An object, or a part of one, that is about to be read. `size` is that of the whole; `pieces` yields `length`
    bytes in all, or raises: NotFound when it is deleted meanwhile, Unavailable when the store is away."""

    key: str
    size: int
    length: int
    pieces: AsyncIterator[bytes]

    async def read(self) -> bytes:
        """All of it at once, for what is known to be small."""
        return b"".join([piece async for piece in self.pieces])


class Blobs(Protocol):
    """What every blob store does. Whatever is wrong with it, or with our rights in it, is Unavailable: whoever asked us
    can do nothing about that but come back later."""

    @property
    def url(self) -> str:
        """Which store this is, for people: without what is secret."""
        ...

    async def put(self, key: str, content: bytes | AsyncIterable[bytes], *, new: bool = False) -> int:
        """Write an object and return its size; one that is there is replaced. Bytes are sent as they are, a stream in
        parts. With `new` (bytes only) an object that is there stays as it is, and Conflict is raised."""
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Blob:
        """An object from byte `start` up to `end`, which is left out. Raises NotFound at once if there is none."""
        ...

    async def size(self, key: str) -> int | None:
        """How many bytes it has; None if there is no such object."""
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """They are gone afterwards, with what was left of uploads that broke off. What is not there is no error."""
        ...

    async def clear(self, path: str) -> None:
        """Nothing is below this path afterwards: no object, and nothing of uploads that broke off, where these can be
        found. Who still writes there may be cut off."""
        ...

    async def leftovers(self) -> str | None:
        """Why what uploads leave that break off cannot be found here, and would stay; None: it is and does not."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Found]:
        """All objects below a path, in no order."""
        ...


def check_key(key: object, field: str = "key") -> str:
    """A key that means the same in every store: no way out of its folder, nothing that would have to be escaped."""
    if not isinstance(key, str):
        raise Invalid(f"must be text, not {type(key).__name__}", field=field)
    if len(key) > KEY_MAX or not _KEY.fullmatch(key):
        raise Invalid("must be a path of letters, digits and _ - . = + , @ ( ) ' or spaces", field=field)
    if any(part in (".", "..") or part != part.strip() for part in key.split("/")):
        raise Invalid("must not contain . or .. or spaces around a name", field=field)
    return key
