"""Secrets in the database: the signing secrets of queues, the keys of workers' tokens, and those that rooms keep.

With a cipher they are stored encrypted, otherwise in clear text. Each is bound to its row, so that a copy in another
row cannot be decrypted. Secrets in clear text can always be read, so that a cipher can be added at any time.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from windlass.core.delivery import QueueSettings
from windlass.engine.read.doctor import Finding, Level
from windlass.errors import Unavailable
from windlass.store.store import Store
from windlass.store.transaction import Transaction

PREFIX = "sealed:1:"


class Cipher(Protocol):
    """Encrypts secrets: see `engine.cipher`. An encrypted text begins with the name of its key and a colon."""

    @property
    def first(self) -> str: ...
    def encrypt(self, plain: bytes, label: str) -> str: ...
    def decrypt(self, sealed: str, label: str) -> bytes: ...


class SecretRow(NamedTuple):
    """A secret as it is stored. The label binds it to its row; `place` is where the room finds it."""

    label: str
    stored: str
    place: tuple[str | bool, ...]


class SecretRows(Protocol):
    """Secrets that a room keeps in a table of its own. `load` locks and returns them; `write` replaces one."""

    async def load(self, tx: Transaction) -> list[SecretRow]: ...
    async def write(self, tx: Transaction, row: SecretRow, stored: str) -> None: ...


SECRET_ROWS: list[SecretRows] = []  # rooms append theirs when they are imported


class SecretCount(msgspec.Struct, frozen=True):
    """The number of secrets in clear text, encrypted with the first key, with an older one, and with an unknown one."""

    clear: int = 0
    current: int = 0
    older: int = 0
    unreadable: int = 0


def examine_secrets(count: SecretCount, *, encrypted: bool) -> Finding:
    """The finding about how the secrets of a database are stored."""
    rotate = "`windlass secrets encrypt`"
    if count.unreadable:
        return Finding(
            "secrets", Level.WRONG, f"{count.unreadable} secrets are encrypted with a key that is not set here: "
            "nothing can be pushed, and no worker can call back", "set WINDLASS_SECRET_KEYS as the servers have it",
        )  # fmt: skip
    if count.clear and encrypted:
        return Finding("secrets", Level.NOTE, f"{count.clear} secrets are stored in clear text", rotate)
    if count.clear:
        return Finding(
            "secrets", Level.NOTE, f"{count.clear} secrets are stored in clear text, since no key is set",
            f"set WINDLASS_SECRET_KEYS (`openssl rand -base64 32` makes a key) on all servers, then {rotate}",
        )  # fmt: skip
    if count.older:
        return Finding("secrets", Level.NOTE, f"{count.older} secrets are encrypted with an older key", rotate)
    known = f"{count.current} are encrypted" if count.current else "there are none yet"
    return Finding("secrets", Level.OK, known if encrypted else "there are none yet; no key is set to encrypt them")


class Secrets:
    """The secrets of one database."""

    def __init__(self, store: Store, cipher: Cipher | None) -> None:
        self._store, self._cipher = store, cipher

    def seal_text(self, plain: str, namespace: str, queue: str) -> str:
        return self._seal(plain.encode(), _of_queue(namespace, queue)).decode()

    def signing_secrets(self, settings: QueueSettings, namespace: str, queue: str) -> list[str]:
        """The secrets that sign pushes and calls of a queue, the current one first."""
        label = _of_queue(namespace, queue)
        stored = (settings.signing_secret, settings.previous_secret)
        return [self._open(secret.encode(), label).decode() for secret in stored if secret]

    def seal_labelled(self, plain: str, label: str) -> str:
        return self._seal(plain.encode(), label).decode()

    def open_labelled(self, stored: str, label: str) -> str:
        return self._open(stored.encode(), label).decode()

    def seal_key(self, plain: bytes, key_id: UUID) -> bytes:
        return self._seal(plain, _of_key(key_id))

    def open_key(self, stored: bytes, key_id: UUID) -> bytes:
        return self._open(stored, _of_key(key_id))

    def _seal(self, plain: bytes, label: str) -> bytes:
        return plain if self._cipher is None else (PREFIX + self._cipher.encrypt(plain, label)).encode()

    def _open(self, stored: bytes, label: str) -> bytes:
        if not stored.startswith(PREFIX.encode()):
            return stored
        if self._cipher is None:
            raise Unavailable("the secrets in this database are encrypted: this server needs WINDLASS_SECRET_KEYS")
        return self._cipher.decrypt(stored.decode().removeprefix(PREFIX), label)

    async def seal_all(self) -> SecretCount:
        """Encrypt all secrets with the first key. Returns how they were stored before. If one cannot be read, raises
        Unavailable and changes nothing."""
        async with self._store.begin() as tx:
            await tx.heartbeats.lock_token_keys()
            for namespace, queue, *_ in await tx.queues.queue_secrets():
                await tx.queues.lock_queue(namespace, queue)
            queues, keys = await tx.queues.queue_secrets(), await tx.heartbeats.token_secrets()
            rooms = [(rows, await rows.load(tx)) for rows in SECRET_ROWS]
            before = self._count(queues, keys, [each for _, found in rooms for each in found])
            for namespace, queue, *both in queues:
                label = _of_queue(namespace, queue)
                sealed = [
                    None if s is None else self._seal(self._open(s.encode(), label), label).decode() for s in both
                ]
                await tx.queues.set_queue_secrets(namespace, queue, *sealed)
            for key_id, stored in keys:
                label = _of_key(key_id)
                await tx.heartbeats.set_token_secret(key_id, self._seal(self._open(stored, label), label))
            for rows, found in rooms:
                for row in found:
                    plain = self.open_labelled(row.stored, row.label)
                    await rows.write(tx, row, self.seal_labelled(plain, row.label))
        return before

    async def count(self) -> SecretCount:
        async with self._store.begin() as tx:
            rooms = [each for rows in SECRET_ROWS for each in await rows.load(tx)]
            return self._count(await tx.queues.queue_secrets(), await tx.heartbeats.token_secrets(), rooms)

    def _count(
        self,
        queues: list[tuple[str, str, str | None, str | None]],
        keys: list[tuple[UUID, bytes]],
        rooms: list[SecretRow],
    ) -> SecretCount:
        stored = [(secret.encode(), _of_queue(ns, queue)) for ns, queue, *both in queues for secret in both if secret]
        stored += [(secret, _of_key(key_id)) for key_id, secret in keys]
        stored += [(row.stored.encode(), row.label) for row in rooms]
        return SecretCount(**Counter(self._protection(secret, label) for secret, label in stored))

    def _protection(self, stored: bytes, label: str) -> str:
        """The field of `SecretCount` that counts this secret."""
        if not stored.startswith(PREFIX.encode()):
            return "clear"
        try:
            self._open(stored, label)
        except Unavailable:
            return "unreadable"
        assert self._cipher is not None, label
        return "current" if stored.startswith(f"{PREFIX}{self._cipher.first}:".encode()) else "older"


def _of_queue(namespace: str, queue: str) -> str:
    return f"queue {namespace}/{queue}"


def _of_key(key_id: UUID) -> str:
    return f"token key {key_id}"
