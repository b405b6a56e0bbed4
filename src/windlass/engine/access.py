"""Keys: handed out once, kept as a hash, looked up with every request.

A key is 256 bits of chance, so that a plain hash is enough: there is nothing to guess. What was looked up is remembered
for a moment, so that a busy caller costs no query each time; a revoked key is dead at once in the engine that revoked
it, and within five seconds in all others: what is open by then ends (see `open_call`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

from windlass.core.access import ApiKey, Principal, Role, check_grant
from windlass.core.check import check_count, check_name, check_type
from windlass.core.error import Conflict, NotFound, Unauthenticated
from windlass.core.position import Position, check_position
from windlass.engine.chance import Chance
from windlass.engine.open_call import OpenCall, OpenCalls
from windlass.store.access_table import Namespace
from windlass.store.store import Store

REMEMBER_S = 2.5  # with the time between two looks at what is open, less than five seconds
REMEMBERED_MAX = 10_000
LIST_MAX = 1000
PREFIX = "wl_"
HINT_CHARACTERS = 8


class Access:
    """The keys and namespaces of one database. `root_key` is given by whoever starts the server and is nowhere kept."""

    def __init__(self, store: Store, chance: Chance, *, stopwatch: Callable[[], float]) -> None:
        self._store, self._chance, self._stopwatch = store, chance, stopwatch
        self._known: dict[bytes, tuple[float, Principal]] = {}
        self._namespaces: set[str] = {"default"}
        self._root: bytes | None = None
        self._open = OpenCalls(self._live)

    async def close(self) -> None:
        await self._open.close()

    def opened(self, key: str) -> AbstractContextManager[None]:
        """While a call of whoever shows this key is open. It is cancelled when the key is revoked, and then raises
        Unauthenticated."""
        hashed = _hash(key)
        root = self._root is not None and hmac.compare_digest(hashed, self._root)
        return nullcontext() if root else OpenCall(self._open, hashed)

    async def _live(self, hashes: Collection[bytes]) -> set[bytes]:
        async with self._store.single() as tx:
            return await tx.access.live_keys(hashes)

    def accept_root(self, key: str) -> None:
        """From now on this key is an admin's, in all namespaces."""
        check_type("key", key, str)
        self._root = _hash(key)

    async def identify(self, key: str) -> Principal:
        """Who shows this key. Raises Unauthenticated."""
        hashed = _hash(key)
        if self._root is not None and hmac.compare_digest(hashed, self._root):
            return Principal("root", Role.ADMIN)
        known = self._known.get(hashed)
        if known is not None and known[0] > self._stopwatch():
            return known[1]
        async with self._store.single() as tx:
            found = await tx.access.find_key(hashed)
        if found is None:
            self._known.pop(hashed, None)
            raise Unauthenticated("this key is unknown or was revoked")
        principal = Principal(found.name, found.role, found.namespace)
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[hashed] = (self._stopwatch() + REMEMBER_S, principal)
        return principal

    async def create_key(self, *, name: str, role: Role, namespace: str | None) -> tuple[ApiKey, str]:
        """A new key, and the only time that it is told."""
        check_grant(name, role, namespace)
        key = PREFIX + secrets.token_urlsafe(32)
        hint = key[: len(PREFIX) + HINT_CHARACTERS]
        async with self._store.begin() as tx:
            made = await tx.access.insert_key(
                self._chance.new_id(), _hash(key), hint, name=name, role=Role(role), namespace=namespace
            )
            if namespace is not None:
                await tx.access.insert_namespace(namespace)
        return made, key

    async def has_keys(self) -> bool:
        """Whether anybody could show a key that is let in."""
        async with self._store.single() as tx:
            every, _ = await tx.access.count_keys()
        return self._root is not None or every > 0

    async def create_first_key(self, name: str, *, again: bool = False) -> str:
        """An admin's key in all namespaces. Raises Conflict if there is one, unless another is wanted."""
        async with self._store.single() as tx:
            _, admins = await tx.access.count_keys()
        if admins and not again:
            raise Conflict(f"there are {admins} keys of admins already")
        _, key = await self.create_key(name=name, role=Role.ADMIN, namespace=None)
        return key

    async def get_key(self, key_id: UUID) -> ApiKey:
        check_type("key_id", key_id, UUID)
        async with self._store.single() as tx:
            return _known_key(await tx.access.get_key(key_id), key_id)

    async def list_keys(
        self, namespace: str | None, *, after: Position | None = None, limit: int = 100
    ) -> list[ApiKey]:
        check_count("limit", limit, least=1, most=LIST_MAX + 1)
        check_position("after", after)
        async with self._store.single() as tx:
            return await tx.access.list_keys(namespace, after, limit)

    async def revoke_key(self, key_id: UUID) -> ApiKey:
        """It opens nothing any more. Revoking it again changes nothing."""
        check_type("key_id", key_id, UUID)
        async with self._store.single() as tx:
            found = _known_key(await tx.access.revoke_key(key_id), key_id)
        self._known.clear()
        self._open.look_soon()
        return found

    # ----------------------------------------------------------------------------------------- namespaces

    async def declare_namespace(self, name: str) -> None:
        """Known from now on. Asked with every submission, and so remembered."""
        if name in self._namespaces:
            return
        check_name("namespace", name)
        async with self._store.single() as tx:
            await tx.access.insert_namespace(name)
        if len(self._namespaces) < REMEMBERED_MAX:
            self._namespaces.add(name)

    async def list_namespaces(
        self, name: str | None = None, *, after: str | None = None, limit: int = 100
    ) -> list[Namespace]:
        check_count("limit", limit, least=1, most=LIST_MAX + 1)
        async with self._store.single() as tx:
            return await tx.access.list_namespaces(name, after, limit)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _known_key(key: ApiKey | None, key_id: UUID) -> ApiKey:
    if key is None:
        raise NotFound(f"there is no key {key_id}", key_id=key_id)
    return key
