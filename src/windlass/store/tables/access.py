"""Keys and namespaces. Only the hash of a key is stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from windlass.core.access import ApiKey, Role
from windlass.core.position import NOWHERE, Position
from windlass.store.records import Row
from windlass.store.table import Table


class Namespace(msgspec.Struct, frozen=True):
    name: str
    created_at: datetime


class AccessTable(Table):
    """Keys and namespaces within a transaction."""

    async def insert_key(
        self,
        id_: UUID,
        hashed: bytes,
        hint: str,
        *,
        name: str,
        role: Role,
        namespace: str | None,
        groups: tuple[str, ...] = (),
    ) -> ApiKey:
        [[created_at]] = await self.session.fetch("insert_key", id_, hashed, hint, name, role.value, namespace, groups)
        return ApiKey(id_, name, role, namespace, hint, created_at, groups=groups)

    async def find_key(self, hashed: bytes) -> ApiKey | None:
        return _first(await self.session.fetch("find_key", hashed))

    async def live_keys(self, hashes: Collection[bytes]) -> set[bytes]:
        return {row[0] for row in await self.session.fetch("live_keys", sorted(hashes))}

    async def get_key(self, key_id: UUID) -> ApiKey | None:
        return _first(await self.session.fetch("get_key", key_id))

    async def list_keys(self, namespace: str | None, after: Position | None, limit: int) -> list[ApiKey]:
        return [_key(row) for row in await self.session.fetch("list_keys", namespace, *(after or NOWHERE), limit)]

    async def count_keys(self) -> tuple[int, int]:
        """The number of keys that are not revoked, and the number of them that belong to admins of all namespaces."""
        [[every, admins]] = await self.session.fetch("count_keys")
        return int(every), int(admins)

    async def revoke_key(self, key_id: UUID) -> ApiKey | None:
        return _first(await self.session.fetch("revoke_key", key_id))

    async def insert_namespace(self, name: str) -> None:
        await self.session.fetch("insert_namespace", name)

    async def list_namespaces(self, name: str | None, after: str | None, limit: int) -> list[Namespace]:
        return [Namespace(*row) for row in await self.session.fetch("list_namespaces", name, after, limit)]


def _first(rows: Sequence[Row]) -> ApiKey | None:
    return _key(rows[0]) if rows else None


def _key(row: Row) -> ApiKey:
    id_, name, role, namespace, hint, created_at, revoked_at, groups = row
    return ApiKey(id_, name, Role(role), namespace, hint, created_at, revoked_at, tuple(groups))
