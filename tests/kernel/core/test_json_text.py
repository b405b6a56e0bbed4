"""Numbers that JSON does not have are refused wherever they are, and what it has is written as before."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.json_text import write_json


@dataclass
class Row:
    name: str | None
    mean: float


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (math.nan, "NaN, which"),
        (-math.inf, "-Infinity, which"),
        ([None, [math.inf]], r"\[1\]\[0\] is Infinity"),
        ({"a": {"b": [1.0, math.nan]}}, r"a\.b\[1\] is NaN"),
        ((None, Row(None, math.nan)), r"\[1\]\.mean is NaN"),
        ({1: None, 2: math.nan}, "2 is NaN"),
    ],
)
def test_a_number_that_json_does_not_have_is_refused_with_its_place(value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        write_json(value)


@pytest.mark.parametrize("value", [None, [None], {"null": "null"}, Row(None, 0.5), {"a": None, "b": b"\xff"}, "null"])
def test_none_is_null_and_nothing_else_is_changed(value: Any) -> None:
    assert write_json(value) == msgspec.json.encode(value)


json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(json)
def test_every_value_of_json_is_written(value: Any) -> None:
    assert msgspec.json.decode(write_json(value)) == value


@given(json, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_such_number_anywhere_is_found(value: Any, number: float) -> None:
    for around in ([value, number], {"x": value, "y": {"z": number}}, [[[number], value], None]):
        with pytest.raises(ValueError, match="JSON has no number"):
            write_json(around)
