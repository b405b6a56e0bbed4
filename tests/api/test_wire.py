"""What crosses the border: ids in two spellings, cursors, and the one table of errors."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.api.framework import cursor
from windlass.errors import Malformed, WindlassError
from windlass.net.ids import parse_id, ulid
from windlass.net.status import STATUS, known_code, status_of
from windlass.store.errors import CommitUnknown

ids = st.uuids()


@given(id_=ids)
def test_an_id_is_read_in_every_spelling(id_: UUID) -> None:
    spelled = ulid("task", id_)

    assert len(spelled) == 31
    for text in (str(id_), str(id_).upper(), id_.hex, spelled, spelled.lower(), spelled.removeprefix("task_")):
        assert parse_id("task", text) == id_


@pytest.mark.parametrize(
    "text", ["", "task_", "task_8" + "0" * 25, "run_" + "0" * 26, "0" * 26 + "U", "{" + "0" * 32 + "}", "é" * 26]
)
def test_what_cannot_be_an_id_is_none(text: str) -> None:
    assert parse_id("task", text) is None


@given(id_=ids, name=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"])))
def test_a_cursor_leads_back_to_its_position(id_: UUID, name: str) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert cursor.to_position(cursor.of_position((at, id_))) == (at, id_)
    assert cursor.to_name(cursor.of_name(name)) == name
    assert cursor.to_pair(cursor.of_pair((3, -1))) == (3, -1)


@given(text=st.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    for read in (cursor.to_position, cursor.to_name, cursor.to_pair):
        with contextlib.suppress(Malformed):
            read(text)


def test_every_error_has_its_row_in_the_one_table() -> None:
    def tree(kind: type[WindlassError]) -> list[type[WindlassError]]:
        ours = [child for child in kind.__subclasses__() if child.__module__ == WindlassError.__module__]
        return [kind, *(below for child in ours for below in tree(child))]

    assert {kind.code for kind in tree(WindlassError)} == set(STATUS)


def test_an_error_of_a_seam_is_told_as_the_one_that_callers_know() -> None:
    assert known_code(CommitUnknown()) == "store_busy"
    assert status_of(CommitUnknown()).http == 503
