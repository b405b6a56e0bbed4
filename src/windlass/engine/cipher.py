"""Encrypts secrets in the database: AES-256-GCM, with a label that binds each secret to its row.

The first key encrypts, all of them decrypt. An encrypted secret names its key by the first characters of the key's
hash, so that an error can name a missing key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from windlass.errors import Invalid, Unavailable

KEY_BYTES, NONCE_BYTES, NAME_CHARACTERS = 32, 12, 8


class Keyring:
    """Implements the port of `engine.secrets`."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {hashlib.sha256(key).hexdigest()[:NAME_CHARACTERS]: AESGCM(key) for key in keys}
        self.first = next(iter(self._keys))

    def encrypt(self, plain: bytes, label: str) -> str:
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._keys[self.first].encrypt(nonce, plain, label.encode())
        return f"{self.first}:{base64.b64encode(sealed).decode()}"

    def decrypt(self, sealed: str, label: str) -> bytes:
        name, _, content = sealed.partition(":")
        key = self._keys.get(name)
        if key is None:
            raise Unavailable(f"a secret was encrypted with the key {name}, which is not among WINDLASS_SECRET_KEYS")
        try:
            raw = base64.b64decode(content, validate=True)
            return key.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], label.encode())
        except (InvalidTag, binascii.Error, ValueError):
            raise Unavailable(f"a secret in the database was modified: {label}") from None


def read_keys(text: str) -> list[bytes]:
    """Read keys from a setting: base64 of 32 bytes each, separated by spaces or commas."""
    keys = []
    for word in text.replace(",", " ").split():
        try:
            key = base64.b64decode(word.replace("-", "+").replace("_", "/") + "=" * (-len(word) % 4), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise Invalid(f"each key must be {KEY_BYTES} bytes in base64: `openssl rand -base64 {KEY_BYTES}` makes one",
                          field="secret_keys")  # fmt: skip
        keys.append(key)
    if not keys:
        raise Invalid("must have one key or more", field="secret_keys")
    return keys
