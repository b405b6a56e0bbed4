"""Generated pages are fresh, links lead somewhere, and the glossary knows every verb."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs import generate
from tests.shape.source import ROOT

from windlass.core.states import State, Verb

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def broken_links(page: Path, root: Path = ROOT) -> list[str]:
    """Links to files that do not exist, or to headings that their page does not have. The web is not asked."""
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{page.relative_to(root)}: {link}")
    return broken


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, words joined by dashes, nothing but letters, digits, dashes and underscores."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", sorted(generate.generated()), ids=lambda path: path.name)
def test_a_generated_part_is_as_the_code_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.generated()[path], f"stale: run {generate.COMMAND}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs/README.md"
    links = [link.partition("#")[0] for link in LINK.findall(index.read_text(encoding="utf-8"))]
    linked = {(index.parent / link).resolve() for link in links if "://" not in link}

    assert [page for page in (ROOT / "docs").rglob("*.md") if page not in linked and page != index] == []


def test_the_glossary_knows_every_verb_and_every_state() -> None:
    glossary = (ROOT / "docs/concepts/glossary.md").read_text(encoding="utf-8")

    missing = [word for word in [*Verb, *State] if word is not Verb.NOTE and f"`{word}`" not in glossary]
    assert missing == []


def test_the_lifecycle_explains_every_state() -> None:
    lifecycle = (ROOT / "docs/concepts/lifecycle.md").read_text(encoding="utf-8")

    assert [state for state in State if f"| `{state}` |" not in lifecycle] == []


def test_every_decision_says_what_was_chosen_what_it_cost_and_when_to_reopen_it() -> None:
    headings = ["## Context", "## Choice", "## What we gave up", "## When to reopen"]
    decisions = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))

    assert decisions
    lacking = [(page.name, heading) for page in decisions for heading in headings if heading not in page.read_text()]
    assert lacking == []


def test_every_decision_has_its_own_number() -> None:
    numbers = [page.name[:4] for page in (ROOT / "docs/decisions").glob("[0-9]*.md")]

    assert len(numbers) == len(set(numbers))


def test_structs_still_cost_a_fraction_of_dataclasses(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/decisions/0003-dependencies.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    exec(compile(script, "records.py", "exec"), {})

    ratios = [float(line.rsplit("ratio ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(ratios) == 2
    assert max(ratios) < 0.25


# --------------------------------------------------------------------------------------------- the test itself


def test_the_check_names_a_stale_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "docs/reference/errors.md"
    monkeypatch.setattr(generate, "generated", lambda: {page: "something else"})

    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale docs/reference/errors.md\n"
    assert page.read_text(encoding="utf-8") != "something else"


def test_a_part_without_markers_stops_the_generator() -> None:
    with pytest.raises(ValueError, match="markers of diagram"):
        generate.with_parts("no markers here\n", {"diagram": generate.state_diagram})


def test_what_stands_between_markers_is_replaced_and_the_rest_is_kept() -> None:
    page = f"before\n<!-- generated: x (by {generate.COMMAND}) -->\nold\n<!-- end of x -->\nafter\n"

    made = generate.with_parts(page, {"x": lambda: "new\n"})

    assert made.startswith("before\n")
    assert made.endswith("after\n")
    assert "new" in made
    assert "old" not in made
    assert generate.with_parts(made, {"x": lambda: "new\n"}) == made


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("other.md", False),
        ("other.md#the-fence", False),
        ("#here", False),
        ("https://example.org/x", False),
        ("missing.md", True),
        ("other.md#missing", True),
        ("#missing", True),
    ],
)
def test_a_link_that_leads_nowhere_is_found(tmp_path: Path, link: str, broken: bool) -> None:
    (tmp_path / "other.md").write_text("# The fence\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\nSee [this]({link}).\n")

    assert broken_links(page, tmp_path) == ([f"page.md: {link}"] if broken else [])
