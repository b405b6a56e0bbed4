"""Entities that the golden files are made from. All of them are made up."""

from __future__ import annotations

from tests.contracts.machine.export.archive import Archive
from tests.contracts.machine.export.machine import ROOT_PI

CHILD_PI = "01KBBBBBBBBBBBBBBBBBBBBBBB"
PARENT_PI = "01K99999999999999999999999"

# The worked example of the facts behind the contract.
PIER_PINAX = {
    "id": ROOT_PI, "title": "Pier at dawn", "type": "StillImage", "creator": ["R. Vance"],
    "institution": "Harbor Library", "created": "1931", "access_url": "PLACEHOLDER", "language": "en",
    "subjects": ["Piers"], "place": "Gull Bay", "rights": "CC0",
}  # fmt: skip
PIER_GRAPH = {
    "entities": {
        "rv": {"type": "person", "label": "R. Vance",
               "properties": {"born": "1890", "home": {"type": "entity_ref", "code": "gb"}}},
        "gb": {"type": "place", "label": "Gull Bay"},
    },
    "relations": [{"source": "rv", "target": "gb", "type": "lived_in"}],
}  # fmt: skip
PIER_REF = {"url": "https://cdn.example/asset/9", "ipfs_cid": "bafyIMG", "type": "image/jpeg", "size": 2048,
            "filename": "pier.jpg", "ocr": "PIER 4"}  # fmt: skip

# One of everything, and what XML finds hard.
FULL_PINAX = {
    "id": "01KCCCCCCCCCCCCCCCCCCCCCCC", "title": "Ledger <A> & \"B\"", "type": "PhysicalObject",
    "creator": ["Ann O'Hara", "Bo & Sons"], "institution": "Møller Archive", "created": "about 1900",
    "access_url": "https://archive.example/ledger?a=1&b=2", "language": "pt-BR", "subjects": ["Trade", "Ports & ships"],
    "description": "A short description.", "source": "scanner <4>", "rights": "In copyright",
    "place": ["Lisboa", "Porto"],
}  # fmt: skip
FULL_GRAPH = {
    "entities": {
        "p": {"type": "person", "label": "Ann O'Hara", "properties": {"description": "left out", "born": "1870"}},
        "o": {
            "type": "organization",
            "label": "Bo & Sons",
            "properties": {"seat": {"type": "entity_ref", "code": "?"}},
        },
        "c": {"type": "concept", "label": "Accounting"},
        "d": {"type": "date", "label": "1899-12-31"},
        "g": {"type": "place", "label": "Porto"},
        "f": {"type": "document", "label": "Page 1", "properties": {"folio": "1r"}},
        "x": {"type": "ship", "label": "Santa <Clara>", "properties": {"mass": 12, "odd": {"type": "list"}}},
    },
    "relations": [
        {"source": "p", "target": "o", "type": "works_for"},
        {"source": "p", "target": "nobody", "type": "knows"},
        "no relation",
    ],
}
FULL_OCR = "line one\n  line <two> & more\r\n\ttabbed\u0007bell ]]> \ud800 \uffff done \N{GRINNING FACE}"


def pier(archive: Archive) -> None:
    archive.entity(
        ROOT_PI,
        pinax=PIER_PINAX, description="A pier.", graph=PIER_GRAPH, refs={"pier.jpg.ref.json": PIER_REF},
        files={"caption.txt": b"Pier 4"}, children=[CHILD_PI], parent=PARENT_PI,
        ver=3, manifest_cid="bafyMANIFEST1", prev_cid="bafyOLD", note="fixed date",
    )  # fmt: skip
    archive.entity(CHILD_PI, parent=ROOT_PI, description="Nothing is known.\nOf this.")


def ledger(archive: Archive) -> None:
    archive.entity(
        ROOT_PI,
        pinax=FULL_PINAX, description="All about\n\n* the ledger\n", graph=FULL_GRAPH,
        refs={
            "a&b.tif.ref.json": {"url": "https://cdn.example/1?x=1&y=2", "ipfs_cid": "bafy1", "type": "image/tiff",
                                 "size": "10", "filename": 'a&b <"1">.tif', "ocr": FULL_OCR},
            "plain.ref.json": {},
        },
        files={"cheimarros-raw.txt": b"-", "reorganization-description.txt": b"-", "notes & more.txt": b"n"},
        children=[CHILD_PI, "01KDDDDDDDDDDDDDDDDDDDDDDD"],
    )  # fmt: skip


def bare(archive: Archive) -> None:
    archive.entity(ROOT_PI, graph=PIER_GRAPH, files={"scan.bin": b"0"}, parent=PARENT_PI)


def simple(archive: Archive, pi: str, **more: object) -> None:
    """An entity with metadata that is complete."""
    archive.entity(pi, pinax={**PIER_PINAX, "id": pi, "title": f"Title of {pi}"}, **more)  # type: ignore[arg-type]
