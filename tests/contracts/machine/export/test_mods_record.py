"""Records as documents: golden files, the rules of MODS, and what becomes of values that are not as they should be."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from tests.contracts.machine.export.archive import Archive
from tests.contracts.machine.export.machine import ROOT_PI, Machine
from tests.contracts.machine.export.mods_rules import NAMESPACE, breaches
from tests.contracts.machine.export.samples import PIER_PINAX, bare, ledger, pier

from windlass.contracts.machine.export.mods.crosswalk import Addresses, language_code
from windlass.contracts.machine.export.mods.options import Options
from windlass.contracts.machine.export.mods.program import export
from windlass.contracts.machine.export.mods.record import Frame
from windlass.contracts.machine.export.mods.source import Source
from windlass.contracts.machine.export.mods.tree import export_one, export_tree

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden"
ADDRESSES = Addresses("https://api.arke.institute", "https://ipfs.arke.institute", "https://arke.institute")


def made(archive: Archive, options: Options) -> bytes:
    file = io.BytesIO()
    with Source(archive.url, archive.url, width=options.parallel_batch_size) as source:
        frame = Frame(source, options, ADDRESSES, "2026-02-03")
        (export_tree if options.recursive else export_one)(frame, ROOT_PI, file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "fill", "options"),
    [
        ("pier-collection", pier, Options(recursive=True)),
        ("pier", pier, Options()),
        ("ledger-full", ledger, Options()),
        ("ledger-minimal", ledger, Options(cheimarros_mode="minimal")),
        ("ledger-skip-no-ocr", ledger, Options(cheimarros_mode="skip", include_ocr=False)),
        ("bare", bare, Options()),
    ],
)
def test_a_document_is_as_its_golden_file(
    archive: Archive, name: str, fill: Callable[[Archive], None], options: Options
) -> None:
    fill(archive)

    document = made(archive, options)

    golden = GOLDEN / f"{name}.xml"
    if os.environ.get("WINDLASS_GOLDEN") == "write":
        golden.write_bytes(document)
    assert document.decode() == golden.read_bytes().decode()
    assert breaches(etree.fromstring(document)) == []


def texts(machine: Machine, path: str) -> list[str]:
    names = {"m": NAMESPACE.strip("{}")}
    return [element.text or "" for element in machine.document().iterfind(path, names)]


def exported(machine: Machine, **options: Any) -> None:
    assert machine.run(export, **options) == 0, machine.callback


def test_text_comes_back_as_it_was_but_for_what_xml_cannot_hold(machine: Machine) -> None:
    ledger(machine.archive)

    exported(machine)

    (ocr,) = texts(machine, ".//m:note[@type='ocr']")
    assert ocr == "line one\n  line <two> & more\r\n\ttabbedbell ]]>   done \N{GRINNING FACE}"
    assert texts(machine, "m:titleInfo/m:title") == ['Ledger <A> & "B"']
    assert [item.get("displayLabel") for item in machine.document().iterfind(f"{NAMESPACE}relatedItem")][:2] == [
        'a&b <"1">.tif', "plain",
    ]  # fmt: skip


def test_text_of_many_lines_is_not_indented_in_a_collection(machine: Machine) -> None:
    pier(machine.archive)

    exported(machine, recursive=True)

    assert texts(machine, ".//m:abstract") == ["A pier.", "Nothing is known.\nOf this."]


@pytest.mark.parametrize(
    ("said", "code"),
    [("en", "eng"), ("en-US", "eng"), ("en-AU", "eng"), ("es-MX", "spa"), ("FR", "fre"), ("nl", "nl"), ("zh_TW", "chi"),
     ("swahili", "swa")],
)  # fmt: skip
def test_languages(said: str, code: str) -> None:
    assert language_code(said) == code


@pytest.mark.parametrize(
    ("said", "resource"),
    [("Text", "text"), ("Event", "text"), ("Service", "text"), ("Image", "still image"), ("StillImage", "still image"),
     ("MovingImage", "moving image"), ("Sound", "sound recording"), ("Dataset", "software, multimedia"),
     ("InteractiveResource", "software, multimedia"), ("Software", "software, multimedia"),
     ("Collection", "mixed material"), ("PhysicalObject", "three dimensional object"),
     ("Else", "text"), (None, "text")],
)  # fmt: skip
def test_types_of_resources(machine: Machine, said: str | None, resource: str) -> None:
    machine.archive.entity(ROOT_PI, pinax={**PIER_PINAX, "type": said})

    exported(machine)

    assert texts(machine, "m:typeOfResource") == [resource]


@pytest.mark.parametrize("wrong", [None, 7, 1.5, True, "", "  ", [], [None, "x", {}], {"a": 1}, [["x"]]])
@pytest.mark.parametrize("field", sorted({*PIER_PINAX, "description", "source"}))
def test_a_value_of_another_type_costs_nothing_but_itself(machine: Machine, field: str, wrong: Any) -> None:
    machine.archive.entity(ROOT_PI, pinax={**PIER_PINAX, field: wrong})

    exported(machine)

    assert machine.document().tag == f"{NAMESPACE}mods"
    assert machine.callback["metrics"]["entities_incomplete"] == 0


@pytest.mark.parametrize(
    ("pinax", "why"),
    [
        (b"{", "could not be read"),
        (b"[1]", "it is not a JSON object"),
        (b"null", "it is not a JSON object"),
        (b"", "could not be read"),
        (b"[" * 100_000, "could not be read"),
        (b'{"title": ' + b"9" * 5000 + b"}", "could not be read"),
    ],
    ids=["broken", "list", "null", "empty", "deep", "long number"],
)
def test_metadata_that_cannot_be_read_makes_a_minimal_record(machine: Machine, pinax: bytes, why: str) -> None:
    machine.archive.entity(ROOT_PI, pinax=pinax, files={"a.txt": b"a"})

    exported(machine)

    (status,) = texts(machine, "m:note[@type='metadata-status']")
    assert why in status
    assert texts(machine, "m:titleInfo[@type='alternative']/m:title") == [f"[Incomplete Record: {ROOT_PI}]"]
    assert machine.callback["metrics"] | {"total_time_ms": 0, "peak_memory_mb": 0} == {
        "total_time_ms": 0, "entities_exported": 1, "entities_failed": 0, "entities_incomplete": 1, "peak_memory_mb": 0,
    }  # fmt: skip


def test_broken_utf8_is_marked_and_a_byte_order_mark_is_not_text(machine: Machine) -> None:
    pinax = b'\xef\xbb\xbf{"title": "caf\xe9", "type": "Text", "description": "\\ud800x"}'
    machine.archive.entity(ROOT_PI, pinax=pinax, description=b"\xef\xbb\xbfone \xff two")

    exported(machine)

    assert texts(machine, "m:titleInfo/m:title") == ["caf\N{REPLACEMENT CHARACTER}"]
    assert texts(machine, "m:abstract") == ["one \N{REPLACEMENT CHARACTER} two"]
    assert texts(machine, "m:note[@type='summary']") == ["x"]


@pytest.mark.parametrize(
    ("text", "said", "abstract", "summary"),
    [
        ("same", "same", "same", []),
        ("long", "short", "long", ["short"]),
        (None, "short", "short", []),
        (" \n", "short", "short", []),
        ("long", None, "long", []),
    ],
)
def test_a_description_is_told_once(
    machine: Machine, text: str | None, said: str | None, abstract: str, summary: list[str]
) -> None:
    machine.archive.entity(ROOT_PI, pinax={**PIER_PINAX, "description": said}, description=text)

    exported(machine)

    assert texts(machine, "m:abstract") == [abstract]
    assert texts(machine, "m:note[@type='summary']") == summary


def test_links_of_dag_json_are_understood(machine: Machine) -> None:
    cid = machine.archive.file(b"text of the link")
    machine.archive.entity(ROOT_PI, components={"description.md": {"/": cid}}, schema="arke/manifest@v1")

    exported(machine)

    assert texts(machine, "m:abstract") == ["text of the link"]


def test_files_that_cannot_be_read_are_left_out_and_the_record_counts_as_incomplete(machine: Machine) -> None:
    gone = machine.archive.entity(
        ROOT_PI, pinax=PIER_PINAX, description="text", graph=b"[]",
        refs={"a.ref.json": {"filename": "a"}, "b.ref.json": b"oh", "c.ref.json": {}, "d.ref.json": {"filename": "d"}},
    )["c.ref.json"]  # fmt: skip
    del machine.archive.answers[f"/ipfs/{gone}"]

    exported(machine)

    labels = [item.get("displayLabel") for item in machine.document().iterfind(f"{NAMESPACE}relatedItem")]
    assert labels == ["a", "d"]
    assert "c.ref.json" in texts(machine, "m:note[@type='component-inventory']")[0]
    assert machine.callback["metrics"]["entities_incomplete"] == 1


def test_the_graph_is_not_even_asked_for_when_it_is_to_be_skipped(machine: Machine) -> None:
    graph = machine.archive.entity(ROOT_PI, pinax=PIER_PINAX, graph={"entities": {}})["cheimarros.json"]

    exported(machine, cheimarrosMode="skip")

    assert machine.archive.asked(f"/ipfs/{graph}") == []


# --------------------------------------------------------------------------------------------- links

# The type that MODS gives to a link, judged by a real validator.
LINKS = etree.XMLSchema(
    etree.fromstring(
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="url" type="xs:anyURI"/></xs:schema>'
    )
)
NO_LINKS = [
    "see the reading room", "http://[broken", "http://host:port/", "100% sure", "%zz", "http://a b/", "a:b c", "::", "http://",
    "https://archive.example/<id>", "https://archive.example/a\\b", "https://archive.example/#a#b", "/relative", "x",
]  # fmt: skip
GOOD_LINKS = [
    "https://archive.example/ledger?a=1&b=2#top", "urn:isbn:0451450523", "doi:10.1000/182",
    "https://archive.example/caf%C3%A9", "https://archive.example:8443/", "ark:/12148/btv1b8449691v",
    "https://archive.example/\u65e5\u672c",
]  # fmt: skip


@pytest.mark.parametrize("said", NO_LINKS)
def test_an_address_that_is_no_uri_does_not_make_the_document_invalid(machine: Machine, said: str) -> None:
    machine.archive.entity(ROOT_PI, pinax={**PIER_PINAX, "access_url": said})
    exported(machine)
    [page] = texts(machine, "m:identifier[@displayLabel='Arke URI']")
    assert page == f"https://arke.institute/{ROOT_PI}"
    assert texts(machine, "m:note[@displayLabel='Access URL']") == [said]
    assert all(_is_link(url) for url in texts(machine, ".//m:url"))


@pytest.mark.parametrize("said", GOOD_LINKS)
def test_an_address_that_is_a_uri_is_the_link(machine: Machine, said: str) -> None:
    machine.archive.entity(ROOT_PI, pinax={**PIER_PINAX, "access_url": said})
    exported(machine)
    assert texts(machine, "m:identifier[@displayLabel='Arke URI']") == [said]
    assert texts(machine, "m:note[@displayLabel='Access URL']") == []
    assert all(_is_link(url) for url in texts(machine, ".//m:url"))


def _is_link(text: str) -> bool:
    url = etree.Element("url")
    url.text = text
    return bool(LINKS.validate(url))
