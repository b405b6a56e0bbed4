"""Maps the metadata of an archive to MODS 3.8, in a fixed order. Pure; empty values are left out.

A record has three parts: the elements before its related items, these items (see `related`), and the elements after
them. An entity whose metadata is missing or unreadable gets a minimal record that states the problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from windlass.contracts.machine.export.mods import graph as graphs
from windlass.contracts.machine.export.mods.entity import W3CDTF, Manifest, text, texts
from windlass.contracts.machine.export.mods.graph import Graph
from windlass.contracts.machine.export.mods.node import Node, group, identifier, leaf, link, note
from windlass.contracts.machine.export.mods.options import Mode

PLACEHOLDER = "PLACEHOLDER"
RESOURCES = {
    "Text": "text",
    "Event": "text",
    "Service": "text",
    "Image": "still image",
    "StillImage": "still image",
    "MovingImage": "moving image",
    "Sound": "sound recording",
    "Dataset": "software, multimedia",
    "InteractiveResource": "software, multimedia",
    "Software": "software, multimedia",
    "Collection": "mixed material",
    "PhysicalObject": "three dimensional object",
}
LANGUAGES = {
    "en": "eng", "es": "spa", "fr": "fre", "de": "ger", "it": "ita",
    "pt": "por", "zh": "chi", "ja": "jpn", "ar": "ara", "ru": "rus",
}  # fmt: skip
# xs:anyURI, the type of a link: with a scheme, and with forbidden characters escaped.
_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:(?:[^\s<>\"{}|\\^`\[\]%#\x00-\x20\x7f]|%[0-9A-Fa-f]{2})+(?:#[^\s<>\"{}|\\^`\[\]%#]*)?"
)


def is_uri(text: str) -> bool:
    """Whether a text can be used as a link: the address in an archive may be any text."""
    if _URI.fullmatch(text) is None:
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme not in {"http", "https"} or bool(parts.hostname)


def _quoted(part: str) -> str:
    return quote(part, safe="", errors="replace")


class Addresses(msgspec.Struct, frozen=True):
    """The public URLs of entities and files."""

    api: str
    gateway: str
    web: str

    def page(self, pi: str) -> str:
        return f"{self.web}/{_quoted(pi)}"

    def manifest(self, pi: str) -> str:
        return f"{self.api}/entities/{_quoted(pi)}"

    def file(self, cid: str) -> str:
        return f"{self.gateway}/ipfs/{_quoted(cid)}"

    def api_file(self, cid: str) -> str:
        return f"{self.api}/cat/{_quoted(cid)}"


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a record, without its related files. `pinax` is None if it is missing or unreadable."""

    manifest: Manifest
    pinax: Mapping[str, Any] | None
    problem: str = ""
    description: str = ""
    graph: Graph = Graph()


class Place(msgspec.Struct, frozen=True):
    """The place of a record in the tree. `path` leads from the root to the record."""

    path: tuple[str, ...]

    @property
    def depth(self) -> int:
        return len(self.path) - 1


def before(entity: Entity, mode: Mode) -> Iterator[Node]:
    """The elements before the related items."""
    manifest, pinax, graph = entity.manifest, entity.pinax or {}, entity.graph
    if entity.pinax is None:
        yield group("titleInfo", leaf("title", f"[Incomplete Record: {manifest.pi}]"), type="alternative")
    elif title_text := text(pinax.get("title")):
        yield group("titleInfo", leaf("title", title_text))
    yield from _names(pinax)
    if entity.pinax is not None:
        yield leaf("typeOfResource", RESOURCES.get(text(pinax.get("type")), "text"))
    if created := text(pinax.get("created")):
        yield group("originInfo", _date("dateCreated", created, keyDate="yes"))
    if language := text(pinax.get("language")):
        yield group("language", _language(language_code(language)))
    if abstract := entity.description or text(pinax.get("description")):
        yield leaf("abstract", abstract)
    yield from _notes(entity, mode)
    yield from _subjects(pinax, graph, mode)


def after(entity: Entity, addresses: Addresses, place: Place | None, today: str, origin: str) -> Iterator[Node]:
    """The elements after the related items."""
    yield from _tail(entity, addresses) if entity.pinax is not None else _minimal_tail(entity, addresses, today, origin)
    if place is not None:
        parent = f", parent: {place.path[-2]}" if place.depth else ""
        yield note("hierarchy", "Tree Position", f"depth: {place.depth}{parent}, path: /{'/'.join(place.path)}")


def language_code(tag: str) -> str:
    """The ISO 639-2/B code if it is known, otherwise the first three letters of the language without its region."""
    language = tag.strip().partition("-")[0].partition("_")[0]
    return LANGUAGES.get(language.lower(), language[:3])


def _names(pinax: Mapping[str, Any]) -> Iterator[Node]:
    for kind, field, role in (("personal", "creator", "creator"), ("corporate", "institution", "repository")):
        for name in texts(pinax.get(field)):
            term = leaf("roleTerm", role, type="text")
            yield group("name", leaf("namePart", name), group("role", term), type=kind)


def _notes(entity: Entity, mode: Mode) -> Iterator[Node]:
    manifest, pinax = entity.manifest, entity.pinax
    if pinax is None:
        yield note("metadata-status", "Metadata Status", f"Incomplete: {entity.problem}")
        yield note(
            "metadata-remediation", "Remediation Note", "Store a valid pinax.json with this entity and export it again."
        )
    else:
        version = [f"Version {manifest.ver}"] if manifest.ver else []
        version += [f"Manifest CID: {manifest.cid}"] if manifest.cid else []
        if version:
            yield note("version", "Arke Version", " • ".join(version))
        summary = text(pinax.get("description"))
        if summary and entity.description and summary != entity.description:
            yield note("summary", "PINAX Description", summary)
        if source := text(pinax.get("source")):
            yield note("source", "Source System", source)
        access = text(pinax.get("access_url"))
        if access not in {"", PLACEHOLDER} and not is_uri(access):
            yield note("access", "Access URL", access)
    yield from graphs.notes(entity.graph, mode)
    if manifest.children:
        yield note("children-inventory", "Child Entities", f"{len(manifest.children)} child entities")
    files = "\n".join([f"Component inventory ({len(manifest.components)} files):", *sorted(manifest.components)])
    yield note("component-inventory", "Component Files", files)


def _subjects(pinax: Mapping[str, Any], graph: Graph, mode: Mode) -> Iterator[Node]:
    for tag, field in (("topic", "subjects"), ("geographic", "place"), ("temporal", "")):
        own = (group("subject", leaf(tag, item)) for item in texts(pinax.get(field)))
        yield from chain(own, graphs.subjects(graph, mode, tag))
    yield from graphs.names(graph, mode)


def _tail(entity: Entity, addresses: Addresses) -> Iterator[Node]:
    manifest, pinax = entity.manifest, entity.pinax or {}
    access = text(pinax.get("access_url"))
    page = access if is_uri(access) else addresses.page(manifest.pi)
    if own_id := text(pinax.get("id")):
        yield identifier("local", own_id, "PINAX ID")
    yield identifier("arke-pi", manifest.pi, "Arke Persistent Identifier")
    yield identifier("uri", page, "Arke URI")
    places = [leaf("physicalLocation", name) for name in texts(pinax.get("institution"))]
    places.append(link(page, "View in Arke", usage="primary display", access="object in context"))
    if manifest.cid:
        places.append(link(addresses.file(manifest.cid), "IPFS Manifest"))
    yield group("location", *places)
    if rights := text(pinax.get("rights")):
        yield leaf("accessCondition", rights, type="use and reproduction")
    yield group(
        "recordInfo",
        leaf("recordContentSource", "Arke Institute"),
        leaf("recordIdentifier", manifest.pi, source="arke-pi"),
        *([_date("recordCreationDate", manifest.ts)] if manifest.ts else []),
        leaf("descriptionStandard", "pinax"),
    )


def _minimal_tail(entity: Entity, addresses: Addresses, today: str, origin: str) -> Iterator[Node]:
    manifest = entity.manifest
    yield identifier("arke-pi", manifest.pi, "Arke Persistent Identifier")
    if manifest.cid:
        yield identifier("arke-manifest-cid", manifest.cid, "Manifest CID")
    yield group("location", link(addresses.manifest(manifest.pi), "Arke Manifest API", usage="primary"))
    yield group(
        "recordInfo",
        leaf("recordContentSource", "Arke Institute"),
        leaf("recordIdentifier", manifest.pi, source="arke-pi"),
        _date("recordCreationDate", today),
        leaf("recordOrigin", origin),
        group("languageOfCataloging", _language("eng")),
        leaf("descriptionStandard", "mods"),
    )


def _language(code: str) -> Node:
    return leaf("languageTerm", code, type="code", authority="iso639-2b")


def _date(tag: str, date: str, **attributes: str) -> Node:
    """A date. Only one in W3CDTF has the attribute that names this encoding."""
    encoding = {"encoding": "w3cdtf"} if W3CDTF.fullmatch(date) else {}
    return leaf(tag, date, **encoding, **attributes)
