"""References: what stands in a row instead of a payload or a result that is too long for it.

JSON text never begins with `@`, so that a reference cannot be mistaken for content, and nobody can send one: whatever
comes from outside is checked to be JSON first. Knows nothing of where objects are kept.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

MARK = b"@"
MARK_BYTE = MARK[0]
FOLDER = "tasks"


class Reference(msgspec.Struct, frozen=True):
    """An object that holds JSON text: where, how long, and the SHA-256 of it in hex."""

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
    """The same content of the same task is the same object, so that whatever is sent twice is kept once; other content
    never takes its place."""
    return Reference(f"{FOLDER}/{task_id}/{what}-{sha256[:32]}.json", size, sha256)


def same_reference(one: bytes, other: bytes) -> bool:
    """Whether two tasks were given the same content, byte by byte."""
    return is_reference(one) and is_reference(other) and reference_of(one).sha256 == reference_of(other).sha256
