"""Requests with an Idempotency-Key in PostgreSQL."""

from __future__ import annotations

from uuid import UUID

from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "requests.sql")


class RequestTable(Table):
    """Requests within a transaction."""

    async def find(self, namespace: str, key: str) -> tuple[str, UUID] | None:
        """The SHA-256 of a request, and what it has changed or made."""
        rows = await self.session.fetch("find_keyed_request", namespace, key)
        return (rows[0][0], rows[0][1]) if rows else None

    async def insert(self, namespace: str, key: str, sha256: str, subject: UUID) -> bool:
        """Returns whether the key is new."""
        return bool(await self.session.fetch("insert_keyed_request", namespace, key, sha256, subject))

    async def delete_old(self, older_than_s: float) -> int:
        return len(await self.session.fetch("delete_keyed_requests", older_than_s))
