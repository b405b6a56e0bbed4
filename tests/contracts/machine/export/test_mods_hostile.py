"""An archive that is slow, wrong, huge or malicious."""

from __future__ import annotations

import threading

import pytest
from tests.contracts.machine.export.archive import Answer
from tests.contracts.machine.export.machine import ROOT_PI, Machine
from tests.contracts.machine.export.mods_rules import NAMESPACE
from tests.contracts.machine.export.samples import PIER_PINAX, simple

from windlass.contracts.machine.export.mods import source
from windlass.contracts.machine.export.mods.program import export

pytestmark = pytest.mark.slow

ROOT = f"/entities/{ROOT_PI}"


def note(machine: Machine, kind: str) -> str:
    return str(machine.document().findtext(f".//{NAMESPACE}note[@type='{kind}']"))


@pytest.mark.parametrize(
    "trouble",
    [
        [Answer(500)],
        [Answer(500, b"x" * 200_000), Answer(502), Answer(429, headers={"Retry-After": "0"})],
        [Answer(503, headers={"Retry-After": "nonsense"})],
        [Answer(200, b'{"pi": "01K', cut=5)],
        [Answer(200, b"{}" * 100, cut=0)],
    ],
    ids=["500", "many", "503", "cut", "empty"],
)
def test_what_passes_is_tried_again(machine: Machine, trouble: list[Answer]) -> None:
    simple(machine.archive, ROOT_PI)
    machine.archive.trouble[ROOT] = trouble

    assert machine.run(export) == 0
    assert machine.callback["status"] == "success"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(404), "404 Not Found"),
        (Answer(403), "403 Forbidden"),
        (Answer(500), "500 Internal Server Error"),
        (Answer(204), "204 No Content"),
        (Answer(200, b"null"), "it is not a JSON object"),
        (Answer(200, b'{"pi": "somebody else"}'), "it is that of 'somebody else'"),
        (Answer(200, b"\x1f\x8b", {"Content-Encoding": "gzip"}), "its encoding 'gzip' was not requested"),
        (Answer(302, headers={"Location": "file:///etc/passwd"}), "302 Found has no valid location"),
        (Answer(302), "too many redirects"),
        (Answer(301, headers={"Location": ROOT}), "too many redirects"),
        (Answer(301, headers={"Location": "http://user:pass@127.0.0.1/"}), "has no valid location"),
        (Answer(301, headers={"Location": "http://["}), "has no valid location"),
    ],
    ids=["404", "403", "500", "204", "null", "other", "gzip", "file", "no location", "loop", "user", "malformed"],
)
def test_a_manifest_that_cannot_be_had_says_why(
    machine: Machine, answer: Answer, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "TRIES_MAX", 2)
    machine.archive.answers[ROOT] = answer

    assert machine.run(export) == 1
    assert why in machine.callback["error"]
    assert ROOT_PI in machine.callback["error"]


def test_redirects_are_followed(machine: Machine) -> None:
    simple(machine.archive, ROOT_PI)
    machine.archive.answers["/elsewhere"] = machine.archive.answers[ROOT]
    machine.archive.answers["/between"] = Answer(307, headers={"Location": f"{machine.archive.url}/elsewhere"})
    machine.archive.answers[ROOT] = Answer(302, b"moved", {"Location": "/between"})

    assert machine.run(export) == 0


@pytest.mark.parametrize(
    "target",
    ["http://169.254.169.254/latest/meta-data/", "http://localhost:{port}/elsewhere", "http://127.0.0.2:{port}/elsewhere",
     "http://127.0.0.1:1/", "https://127.0.0.1:{port}/elsewhere", "//127.0.0.1/elsewhere"],
)  # fmt: skip
def test_a_redirect_to_somebody_else_is_not_followed(machine: Machine, target: str) -> None:
    """Whoever writes into an archive does not choose whom the machine calls, nor what it reads there."""
    simple(machine.archive, ROOT_PI)
    machine.archive.answers["/elsewhere"] = machine.archive.answers[ROOT]
    port = machine.archive.url.rpartition(":")[2]
    machine.archive.answers[ROOT] = Answer(302, headers={"Location": target.format(port=port)})

    assert machine.run(export) == 1
    assert "which is not a server of this archive" in machine.callback["error"]
    assert [request.path for request in machine.archive.requests if request.method == "GET"] == [ROOT]


def test_whom_redirects_may_lead_to() -> None:
    assert source._servers("http://archive.example/api") == {
        ("http", "archive.example", 80), ("https", "archive.example", 443),
    }  # fmt: skip
    assert source._servers("https://archive.example:8443") == {("https", "archive.example", 8443)}
    assert source._servers("http://archive.example:8080") == {("http", "archive.example", 8080)}


def test_nobody_there_at_all(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TRIES_MAX", 2)
    machine.env["WINDLASS_MODS_API_URL"] = "http://127.0.0.1:1"

    assert machine.run(export) == 1
    assert "Connection refused" in machine.callback["error"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(drip=b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"),
        Answer(drip=b"HTTP/1.1 200 OK\r\nX-Long: "),
        Answer(drip=b"HTTP/1.1 2"),
        Answer(gate=threading.Event()),
    ],
    ids=["body", "header", "status", "silence"],
)
def test_whoever_answers_too_slowly_is_not_waited_for(
    machine: Machine, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "TRIES_MAX", 2)
    monkeypatch.setattr(source, "TIMEOUT_S", 0.3)
    machine.archive.answers[ROOT] = answer

    assert machine.run(export) == 1
    assert "127.0.0.1: no answer within 0.3 s" in machine.callback["error"]


@pytest.mark.parametrize("chunked", [False, True])
def test_five_megabytes_of_text_go_through_as_they_are(machine: Machine, chunked: bool) -> None:
    ocr = "".join(f"line {n}: Größe & <Maß> {n * n}\n" for n in range(150_000))
    assert len(ocr) > 5_000_000
    files = machine.archive.entity(ROOT_PI, pinax=PIER_PINAX, refs={"big.ref.json": {"filename": "big", "ocr": ocr}})
    machine.archive.answers[f"/ipfs/{files['big.ref.json']}"].chunked = chunked

    assert machine.run(export, recursive=True) == 0

    assert note(machine, "ocr") == ocr


def test_a_file_beyond_the_limit_is_left_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FILE_MAX_BYTES", 300_000)
    files = machine.archive.entity(
        ROOT_PI, pinax=PIER_PINAX,
        refs={f"{n}.ref.json": {"ocr": n * size} for n, size in [("a", 299_000), ("b", 301_000), ("c", 301_000)]},
    )  # fmt: skip
    machine.archive.answers[f"/ipfs/{files['c.ref.json']}"].chunked = True

    assert machine.run(export) == 0

    assert [n.text[0] for n in machine.document().iterfind(f".//{NAMESPACE}note[@type='ocr']") if n.text] == ["a"]
    assert machine.callback["metrics"]["entities_incomplete"] == 1


def test_many_entities_with_large_files_take_turns(machine: Machine) -> None:
    children = [f"01K{n:023d}" for n in range(12)]
    simple(machine.archive, ROOT_PI, children=children)
    for n, child in enumerate(children):
        large = {f"{k}.ref.json": {"filename": f"{n}-{k}", "ocr": f"{n}" * 200_000} for k in range(2)}
        simple(machine.archive, child, description="d" * 200_000, refs=large)

    assert machine.run(export, recursive=True, parallelBatchSize=6) == 0

    assert machine.callback["metrics"]["entities_exported"] == 13
    assert machine.callback["metrics"]["entities_incomplete"] == 0


@pytest.mark.parametrize(
    "cid", ["", "..", "../entities/x", "a b", "a?b", "a#b", "é", "a" * 300, 7.5, None, ["x"], {"/": 1}]
)
def test_a_cid_that_is_none_is_never_asked_for(machine: Machine, cid: object) -> None:
    machine.archive.entity(ROOT_PI, components={"description.md": cid, "other.txt": cid})

    assert machine.run(export) == 0

    machine.document()
    assert machine.archive.asked("/ipfs/") == []


def test_names_of_files_that_try_to_break_out(machine: Machine) -> None:
    evil = '"/><script>&evil;</script>\x00\x1b[31m\ud800.txt'
    machine.archive.entity(ROOT_PI, pinax=PIER_PINAX, files={evil: b"x"}, refs={f"{evil}.ref.json": {"filename": evil}})

    assert machine.run(export) == 0

    shown = '"/><script>&evil;</script>[31m.txt'
    labels = [item.get("displayLabel") for item in machine.document().iterfind(f"{NAMESPACE}relatedItem")]
    assert labels == [shown, shown]
    assert shown in note(machine, "component-inventory")


@pytest.mark.parametrize("children", ["text", {"a": 1}, [[]], 5, True])
def test_children_of_another_type_are_none_or_fail_alone(machine: Machine, children: object) -> None:
    machine.archive.entity(ROOT_PI, pinax=PIER_PINAX, children_pi=children)

    assert machine.run(export, recursive=True) == 0
    assert machine.callback["metrics"]["entities_exported"] == 1
