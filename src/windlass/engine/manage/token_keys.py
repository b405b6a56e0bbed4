"""Keys that sign the credentials of workers: bearer tokens of the callback contract, signatures of machines."""

from __future__ import annotations

import secrets
from uuid import UUID

from windlass.core.delivery import TOKEN_TTL_MAX_S
from windlass.engine.randomness import Randomness
from windlass.engine.secrets import Secrets
from windlass.store.store import Store

KEY_BYTES = 32
KEY_OPENS_S = TOKEN_TTL_MAX_S + 300.0  # how long a replaced key stays valid; other engines read the new one later


class TokenKeys:
    """The keys of one database."""

    def __init__(self, store: Store, randomness: Randomness, secrets: Secrets) -> None:
        self._store, self._randomness, self._secrets = store, randomness, secrets

    async def all(self) -> list[tuple[UUID, bytes]]:
        """The valid keys, the one that signs first. The first call in a database makes one."""
        async with self._store.begin() as tx:
            keys = await tx.heartbeats.token_keys(KEY_OPENS_S)
            if not keys:
                await tx.heartbeats.lock_token_keys()
                keys = await tx.heartbeats.token_keys(KEY_OPENS_S)
            if not keys:
                keys = [self._new_key()]
                await tx.heartbeats.insert_token_key(*keys[0])
        return [(key_id, self._secrets.open_key(kept, key_id)) for key_id, kept in keys]

    async def rotate(self) -> UUID:
        """Make a new key that signs from now on. Tokens of the one before stay valid until they expire."""
        key_id, kept = self._new_key()
        async with self._store.begin() as tx:
            await tx.heartbeats.lock_token_keys()
            await tx.heartbeats.insert_token_key(key_id, kept)
        return key_id

    def _new_key(self) -> tuple[UUID, bytes]:
        """A new key as it is stored."""
        key_id = self._randomness.new_id()
        return key_id, self._secrets.seal_key(secrets.token_bytes(KEY_BYTES), key_id)
