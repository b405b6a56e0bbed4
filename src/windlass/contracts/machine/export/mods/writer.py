"""Writes records as XML, piece by piece, with lxml: indented by two spaces per level, which changes no text.

Characters that XML 1.0 does not allow are left out. Long text is written in slices, so that it is never copied whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from lxml import etree

from windlass.contracts.machine.export.mods.entity import OUTSIDE
from windlass.contracts.machine.export.mods.node import Node

NAMESPACE = "http://www.loc.gov/mods/v3"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = f"{NAMESPACE} https://www.loc.gov/standards/mods/mods-3-8.xsd"
DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'
SLICE_CHARS = 32 * 1024
_OUTSIDE = re.compile(f"[{OUTSIDE}]")
_ROOT = f'xmlns="{NAMESPACE}" xmlns:xsi="{XSI}" xsi:schemaLocation="{SCHEMA}"'
COLLECTION_BEGIN = DECLARATION + f"<modsCollection {_ROOT}>".encode()
COLLECTION_END = b"\n</modsCollection>\n"


def clean(text: str) -> str:
    """Remove the characters that XML 1.0 does not allow."""
    return _OUTSIDE.sub("", text)


def write_record(file: BinaryIO, nodes: Iterable[Node], *, level: int = 0, record_id: str = "") -> None:
    """Write one `mods` element; in a collection one level deep and with an ID. `nodes` may be a generator."""
    attributes = {f"{{{XSI}}}schemaLocation": SCHEMA, **({"ID": record_id} if record_id else {})}
    with (
        etree.xmlfile(file, encoding="utf-8") as sheet,
        sheet.element(f"{{{NAMESPACE}}}mods", attributes, nsmap={None: NAMESPACE, "xsi": XSI}),
    ):
        for node in nodes:
            _write(sheet, node, level + 1)
            del node  # it may be large, and the next one may take a while
        sheet.write("\n" + "  " * level)


def _write(sheet: Any, node: Node, level: int) -> None:
    """Write an element. Its tag needs no namespace, since it inherits the default namespace of `mods`."""
    sheet.write("\n" + "  " * level)
    with sheet.element(node.tag, {name: clean(value) for name, value in node.attributes.items()}):
        for child in node.children:
            _write(sheet, child, level + 1)
        if node.children:
            sheet.write("\n" + "  " * level)
        for start in range(0, len(node.text), SLICE_CHARS):
            sheet.write(clean(node.text[start : start + SLICE_CHARS]))
