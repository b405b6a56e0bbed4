"""Reads the metadata of an entity. Pure; does not trust the archive.

A value of the wrong type counts as missing. Only a manifest that cannot be read is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

PINAX, DESCRIPTION, GRAPH, REF = "pinax.json", "description.md", "cheimarros.json", ".ref.json"
INTERNAL = frozenset({"cheimarros-raw.txt", "reorganization-description.txt"})
PI = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")  # safe in a path, and as an ID in XML
W3CDTF = re.compile(
    r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01])(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?)?)?", re.ASCII
)
# Characters that XML 1.0 does not allow: control characters, surrogates, two non-characters.
OUTSIDE = "\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff\\ufffe\\uffff"
BLANK = re.compile(rf"[\s{OUTSIDE}]*")


class Manifest(msgspec.Struct, frozen=True):
    """An entity, its files (`components`: name to CID) and its place among others."""

    pi: str
    ver: str = ""
    ts: str = ""
    cid: str = ""
    components: dict[str, str] = {}
    children: tuple[str, ...] = ()
    parent: str = ""

    @property
    def refs(self) -> list[str]:
        return [key for key in self.components if key.endswith(REF)]

    @property
    def others(self) -> list[str]:
        """Files that a record only lists."""
        known = {PINAX, DESCRIPTION, GRAPH, *INTERNAL}
        return [key for key in self.components if key not in known and not key.endswith(REF)]


def decode(body: bytes | bytearray) -> Any:
    """Decode JSON, even if some bytes are not UTF-8. Raises ValueError."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(text_of(body))
    except RecursionError:
        raise ValueError("nested too deep") from None


def text_of(body: bytes | bytearray) -> str:
    """Decode UTF-8 without its byte order mark. Invalid bytes become U+FFFD."""
    return str(body, "utf-8", "replace").removeprefix("\ufeff")


def read_object(body: bytes | bytearray) -> dict[str, Any]:
    """Raises ValueError with the reason."""
    try:
        content = decode(body)
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004
    return content


def read_manifest(pi: str, body: bytes | bytearray) -> Manifest:
    """Raises ValueError with the reason."""
    content = read_object(body)
    if text(content.get("pi")) not in {"", pi}:
        raise ValueError(f"it is that of {text(content['pi'])[:100]!r}")
    components = content.get("components")
    return Manifest(
        pi=pi,
        ver=text(content.get("ver")),
        ts=text(content.get("ts")),
        cid=cid(content.get("manifest_cid")),
        components={key: cid(value) for key, value in mapping(components).items() if key.strip()},
        children=tuple(texts(content.get("children_pi"))),
        parent=text(content.get("parent_pi")),
    )


def cid(value: object) -> str:
    """The id of a file; a link of dag-json looks like {"/": cid}."""
    link = value.get("/") if isinstance(value, dict) else value
    return link if isinstance(link, str) else ""


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def text(value: object) -> str:
    """A text or a number as text; "" for blank text and for other types."""
    if isinstance(value, str):
        return "" if BLANK.fullmatch(value) else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    return str(value)


def texts(value: object) -> list[str]:
    """One text, or a list of them."""
    return [found for item in (value if isinstance(value, list) else [value]) if (found := text(item))]
