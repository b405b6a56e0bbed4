"""API keys: shown once, stored as a hash, looked up with every request.

A key has 256 random bits, so a plain hash is enough: it cannot be guessed. A lookup is cached for a moment, so that a
busy caller does not cost a query each time. A revoked key stops working at once in the engine that revoked it, and
within five seconds in all others; calls that are open then end (see `open_calls`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

from windlass.core.access import ApiKey, Principal, Role, check_grant
from windlass.core.position import Position
from windlass.core.validation import check_name
from windlass.engine.manage.open_calls import OpenCall, OpenCalls
from windlass.engine.randomness import Randomness
from windlass.errors import Conflict, NotFound, Unauthenticated
from windlass.store.store import Store
from windlass.store.tables.access import Namespace

REMEMBER_S = 2.5  # with the time between two checks of open calls, less than five seconds
REMEMBERED_MAX = 10_000
PREFIX = "wl_"
HINT_CHARACTERS = 8


class Keys:
    """The keys and namespaces of one database. The root key comes from the server's settings and is never stored."""

    def __init__(self, store: Store, randomness: Randomness, *, stopwatch: Callable[[], float]) -> None:
        self._store, self._randomness, self._stopwatch = store, randomness, stopwatch
        self._known: dict[bytes, tuple[float, Principal]] = {}
        self._namespaces: set[str] = {"default"}
        self._root: bytes | None = None
        self._open = OpenCalls(self._live)

    async def close(self) -> None:
        await self._open.close()

    def opened(self, key: str) -> AbstractContextManager[None]:
        """A context for an open call with this key. If the key is revoked, the call is cancelled and raises
        Unauthenticated."""
        hashed = _hash(key)
        return nullcontext() if self._is_root(hashed) else OpenCall(self._open, hashed)

    async def _live(self, hashes: Collection[bytes]) -> set[bytes]:
        async with self._store.single() as tx:
            return await tx.access.live_keys(hashes)

    def accept_root(self, key: str) -> None:
        """Accept this key from now on as an admin's, in all namespaces."""
        self._root = _hash(key)

    def _is_root(self, hashed: bytes) -> bool:
        return self._root is not None and hmac.compare_digest(hashed, self._root)

    async def identify(self, key: str) -> Principal:
        """The principal of this key. Raises Unauthenticated."""
        hashed = _hash(key)
        if self._is_root(hashed):
            return Principal("root", Role.ADMIN)
        known = self._known.get(hashed)
        if known is not None and known[0] > self._stopwatch():
            return known[1]
        async with self._store.single() as tx:
            found = await tx.access.find_key(hashed)
        if found is None:
            self._known.pop(hashed, None)
            raise Unauthenticated("this key is unknown or was revoked")
        principal = Principal(found.name, found.role, found.namespace, found.groups)
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[hashed] = (self._stopwatch() + REMEMBER_S, principal)
        return principal

    async def create_key(
        self, *, name: str, role: Role, namespace: str | None, groups: Sequence[str] = ()
    ) -> tuple[ApiKey, str]:
        """Create a key. Returns its record and the key itself, which cannot be read again."""
        check_grant(name, role, namespace, groups)
        key = PREFIX + secrets.token_urlsafe(32)
        hint = key[: len(PREFIX) + HINT_CHARACTERS]
        async with self._store.begin() as tx:
            made = await tx.access.insert_key(
                self._randomness.new_id(), _hash(key), hint, name=name, role=Role(role), namespace=namespace,
                groups=tuple(sorted(set(groups))),
            )  # fmt: skip
            if namespace is not None:
                await tx.access.insert_namespace(namespace)
        return made, key

    async def has_keys(self) -> bool:
        """Whether any key would be accepted."""
        async with self._store.single() as tx:
            every, _ = await tx.access.count_keys()
        return self._root is not None or every > 0

    async def create_first_key(self, name: str, *, again: bool = False) -> str:
        """Create an admin's key for all namespaces. Raises Conflict if one exists, unless `again` is set."""
        async with self._store.single() as tx:
            _, admins = await tx.access.count_keys()
        if admins and not again:
            raise Conflict(f"there are {admins} keys of admins already")
        _, key = await self.create_key(name=name, role=Role.ADMIN, namespace=None)
        return key

    async def get_key(self, key_id: UUID) -> ApiKey:
        async with self._store.single() as tx:
            return _known_key(await tx.access.get_key(key_id), key_id)

    async def list_keys(
        self, namespace: str | None, *, after: Position | None = None, limit: int = 100
    ) -> list[ApiKey]:
        async with self._store.single() as tx:
            return await tx.access.list_keys(namespace, after, limit)

    async def revoke_key(self, key_id: UUID) -> ApiKey:
        """Revoke a key. Revoking it again changes nothing."""
        async with self._store.single() as tx:
            found = _known_key(await tx.access.revoke_key(key_id), key_id)
        self._known.clear()
        self._open.check_soon()
        return found

    # ----------------------------------------------------------------------------------------- namespaces

    async def declare_namespace(self, name: str) -> None:
        """Make a namespace known. Called with every submission, so known names are cached."""
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
        async with self._store.single() as tx:
            return await tx.access.list_namespaces(name, after, limit)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _known_key(key: ApiKey | None, key_id: UUID) -> ApiKey:
    if key is None:
        raise NotFound(f"there is no key {key_id}", key_id=key_id)
    return key
