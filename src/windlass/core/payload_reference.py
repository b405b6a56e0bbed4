"""References: stored in a row instead of a payload or a result that is too long for it.

JSON text never begins with `@`, so a reference cannot be mistaken for content. No caller can send one, since everything
from outside is checked to be JSON first.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

MARK = b"@"
MARK_BYTE = MARK[0]
FOLDER = "tasks"


class Reference(msgspec.Struct, frozen=True):
    """An object that holds JSON text: its key, its length, and its SHA-256 in hex."""

    key: str
    size: int
    sha256: str

    def encoded(self) -> bytes:
        return MARK + msgspec.json.encode(self)


_decode = msgspec.json.Decoder(Reference).decode


def is_reference(text: bytes | None) -> bool:
    return text is not None and text[:1] == MARK


def reference_of(text: bytes) -> Reference:
    assert is_reference(text), text[:100]
    return _decode(text[1:])


def refer(task_id: UUID, what: str, size: int, sha256: str) -> Reference:
    """The reference of a content of a task. Content that is sent twice is stored once; other content never replaces
    it."""
    return Reference(f"{FOLDER}/{task_id}/{what}-{sha256[:32]}.json", size, sha256)


def same_json(one: bytes, other: bytes) -> bool:
    """Whether both are equal as JSON, however they are written: a program may submit by SQL first and by Python next.
    Content that is stored as an object is not read for that, so it must be equal byte by byte."""
    if one == other:
        return True
    if is_reference(one) or is_reference(other):
        return is_reference(one) and is_reference(other) and reference_of(one).sha256 == reference_of(other).sha256
    return _canonical(one) == _canonical(other)


def _canonical(content: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(content), order="deterministic")
