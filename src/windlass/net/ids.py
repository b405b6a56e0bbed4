"""Ids in public form: a UUID, or a prefix and the same 128 bits as a ULID (`task_01HGW…`). Both are accepted."""

from __future__ import annotations

import re
from uuid import UUID

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no I, L, O, U
_VALUE = {character: value for value, character in enumerate(_ALPHABET)} | {"I": 1, "L": 1, "O": 0}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32}")


def ulid(prefix: str, id_: UUID) -> str:
    """The id as a prefix and 26 characters."""
    return f"{prefix}_" + "".join(_ALPHABET[id_.int >> shift & 31] for shift in range(125, -1, -5))


def parse_id(prefix: str, text: str) -> UUID | None:
    """The id, or None if the text is not one."""
    if _UUID.fullmatch(text):
        return UUID(text)
    characters = text.removeprefix(f"{prefix}_").upper()
    if len(characters) != 26 or characters[0] > "7" or any(character not in _VALUE for character in characters):
        return None
    number = 0
    for character in characters:
        number = number << 5 | _VALUE[character]
    return UUID(int=number)
