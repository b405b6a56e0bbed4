"""Repeated requests: the same Idempotency-Key is the same request, and is carried out once.

A request is remembered in the transaction that carries it out, under the lock of what it changes. So a repeat finds it,
whenever the server stopped, and another request with the same key is refused.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.datasets.rules.canonical import digest
from windlass.datasets.tables.requests import RequestTable
from windlass.engine.engine import Engine
from windlass.errors import Conflict
from windlass.store.transaction import Transaction

KEEP_S = 7 * 86400.0
USED = "this Idempotency-Key was used for another request"


class Order(msgspec.Struct, frozen=True):
    """A request that may be repeated: its key, and the SHA-256 of what it asks for."""

    key: str
    sha256: str


def order_of(key: str | None, *parts: object) -> Order | None:
    """The request with this key that asks for these things. None without a key."""
    return None if key is None else Order(key, digest(parts))


async def known(tx: Transaction, namespace: str, order: Order | None) -> UUID | None:
    """What an earlier request with this key has changed or made; None if it is the first. Raises Conflict if that one
    asked for something else. The caller has locked what it changes."""
    if order is None:
        return None
    found = await RequestTable(tx.session).find(namespace, order.key)
    if found is None:
        return None
    sha256, subject = found
    if sha256 != order.sha256:
        raise Conflict(USED, key=order.key)
    return subject


async def remember(tx: Transaction, namespace: str, order: Order | None, subject: UUID) -> None:
    """Remember what a request has changed or made. Raises Conflict if another request used its key meanwhile."""
    if order is not None and not await RequestTable(tx.session).insert(namespace, order.key, order.sha256, subject):
        raise Conflict(USED, key=order.key)


class RequestKeys:
    """The keys of requests of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def clean_up_tick(self) -> int:
        """Forget requests that nobody repeats any more. Returns their number."""
        async with self._store.begin() as tx:
            return await RequestTable(tx.session).delete_old(KEEP_S)
