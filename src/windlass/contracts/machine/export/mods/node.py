"""XML elements as values: made by pure functions, written by `writer`."""

from __future__ import annotations

import msgspec


class Node(msgspec.Struct, frozen=True):
    """An element. It has text or children; attributes keep their order."""

    tag: str
    text: str = ""
    children: tuple[Node, ...] = ()
    attributes: dict[str, str] = {}


def leaf(tag: str, text: str, **attributes: str) -> Node:
    return Node(tag, text, (), attributes)


def group(tag: str, *children: Node, **attributes: str) -> Node:
    return Node(tag, "", children, attributes)


def note(kind: str, label: str, text: str) -> Node:
    return leaf("note", text, type=kind, displayLabel=label)


def identifier(kind: str, text: str, label: str = "") -> Node:
    return leaf("identifier", text, type=kind, **({"displayLabel": label} if label else {}))


def link(url: str, label: str, **attributes: str) -> Node:
    return leaf("url", url, **attributes, displayLabel=label)
