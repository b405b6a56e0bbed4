"""Canonical JSON: the same value is the same bytes, in every version of Windlass.

Keys are sorted, there is no white space, and numbers are spelled as Python's own `json` does: whole numbers and
fractions stay apart (`1` and `1.0`), since operators can tell them apart. Fingerprints are made from it and stored, so
nothing here may change.
"""

from __future__ import annotations

import json
from hashlib import sha256

import msgspec


def canonical_json(value: object) -> bytes:
    """The bytes of a value: of plain JSON values, or of structs."""
    plain = msgspec.to_builtins(value, str_keys=True)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest(value: object) -> str:
    """The SHA-256 of a value's canonical JSON, in hex."""
    return sha256(canonical_json(value)).hexdigest()
