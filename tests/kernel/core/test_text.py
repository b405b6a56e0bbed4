"""Text of others, as it can be kept, sent and shown."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.command import Cancelled
from windlass.core.failure import Category, Failure
from windlass.core.text import clean, clean_middle, line_of, words_of

anything = st.text(st.characters(), max_size=40)  # halves of characters too


@given(anything, st.integers(1, 50))
def test_whatever_it_was_it_can_be_stored_and_is_not_too_long(text: str, longest: int) -> None:
    for kept in (clean(text, longest), clean_middle(text, longest)):
        assert len(kept) <= longest
        assert kept.encode().decode() == kept
        assert all(char in "\t\n\r" or not (char < " " or "\x7f" <= char < "\xa0") for char in kept)
        assert clean(kept, longest) == kept


def test_a_traceback_keeps_its_beginning_and_its_end() -> None:
    kept = clean_middle("first\n" + "x" * 10_000 + "\nlast", 200)
    assert kept.startswith("first\n")
    assert kept.endswith("\nlast")
    assert "9811 characters left out" in kept or "characters left out" in kept


@given(anything, anything, anything)
def test_a_failure_can_be_sent_whatever_it_was_made_from(message: str, reason: str, trace: str) -> None:
    failure = Failure(Category.USER_CODE, message, reason, trace)
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(failure), type=Failure) == failure
    said = Cancelled(UUID(int=7), 1, UUID(int=7), message)
    assert msgspec.json.decode(msgspec.json.encode(said), type=Cancelled) == said


class Exits(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "words", "line"),
    [
        (ValueError("no"), "no", "ValueError: no"),
        (ValueError(), "", "ValueError"),
        (Exits(), "(no message: KeyboardInterrupt in its __str__)", None),
        (ValueError("caf\udce9"), "caf\udce9", "ValueError: caf\ufffd"),
    ],
)
def test_an_exception_in_words(error: BaseException, words: str, line: str | None) -> None:
    assert words_of(error) == words
    assert line is None or line_of(error) == line
