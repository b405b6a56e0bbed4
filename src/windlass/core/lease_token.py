"""Lease tokens: the worker of an attempt sends its token with every request about it.

A token is random, so that it cannot be guessed, and carries the mark of the delivery under which its attempt began, so
that each wire can refuse attempts of other wires. The mark grants nothing.

A token is a UUID of version 8 (RFC 9562): the four bits behind the version are the mark, 118 bits are random.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from windlass.core.delivery import DELIVERIES, TYPES_BY_MARK
from windlass.errors import LeaseLost

TOKEN_BITS = 118
_END, _LOW = 1 << TOKEN_BITS, (1 << 62) - 1
_VERSION, _VARIANT = 8 << 76, 2 << 62


def lease_token(random: int, delivery: str) -> UUID:
    """The token of an attempt that this delivery begins, from these 118 random bits."""
    assert 0 <= random < _END, random
    first, middle, last = random >> 70, random >> 62 & 0xFF, random & _LOW
    return UUID(int=first << 80 | _VERSION | DELIVERIES[delivery].mark << 72 | middle << 64 | _VARIANT | last)


def delivery_of(token: UUID | None) -> str | None:
    """The delivery under which the attempt of this token began. None if it is not a token."""
    return None if token is None or token.version != 8 else TYPES_BY_MARK.get(token.int >> 72 & 0xF)


def check_delivery(token: UUID | None, deliveries: Collection[str]) -> None:
    """Raise LeaseLost unless this is the token of an attempt that began under one of these deliveries."""
    if delivery_of(token) not in deliveries:
        raise LeaseLost("the token belongs to no attempt that reports over this wire")
