"""Related items of a record: files on the CDN, parent, children, other files. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.contracts.machine.export.mods.crosswalk import Addresses
from windlass.contracts.machine.export.mods.entity import REF, Manifest, text
from windlass.contracts.machine.export.mods.node import Node, group, identifier, leaf, link, note

ON_CDN = "IPFS CID (reference only - content stored on CDN)"


def ref_item(key: str, ref: Mapping[str, Any], *, include_ocr: bool) -> Node:
    """A file that is kept elsewhere, as its `.ref.json` describes it."""
    label = text(ref.get("filename")) or key.removesuffix(REF)
    return group("relatedItem", *_ref_parts(ref, include_ocr), type="constituent", displayLabel=label)


def _ref_parts(ref: Mapping[str, Any], include_ocr: bool) -> Iterator[Node]:
    if url := text(ref.get("url")):
        yield identifier("uri", url, "CDN URL")
    if file := text(ref.get("ipfs_cid")):
        yield identifier("ipfs-cid", file, ON_CDN)
    described = []
    if size := text(ref.get("size")):
        described.append(leaf("extent", f"{size} bytes"))
    if kind := text(ref.get("type")):
        described.append(leaf("internetMediaType", kind))
    if described:
        yield group("physicalDescription", *described)
    if include_ocr and (ocr := text(ref.get("ocr"))):
        yield note("ocr", "OCR Text", ocr)


def other_items(manifest: Manifest, addresses: Addresses) -> Iterator[Node]:
    if manifest.parent:
        yield _entity(manifest.parent, "host", "Parent Entity", "Parent PI", "View Parent in Arke", addresses)
    for number, child in enumerate(manifest.children, 1):
        label = f"Child Entity {number}"
        yield _entity(child, "constituent", label, "Child PI", "View Child in Arke", addresses)
    for key in manifest.others:
        yield _file(key, manifest.components[key], addresses)


def _entity(pi: str, kind: str, label: str, called: str, view: str, addresses: Addresses) -> Node:
    place = group("location", link(addresses.page(pi), view))
    return group("relatedItem", identifier("arke-pi", pi, called), place, type=kind, displayLabel=label)


def _file(key: str, cid: str, addresses: Addresses) -> Node:
    found = [
        identifier("ipfs-cid", cid, "IPFS CID"),
        identifier("uri", addresses.file(cid), "IPFS Gateway URL"),
        identifier("uri", addresses.api_file(cid), "API URL"),
    ]
    return group("relatedItem", *(found if cid else []), type="constituent", displayLabel=key)
