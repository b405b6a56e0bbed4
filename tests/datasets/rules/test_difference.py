"""Which fields of two definitions differ, and what their values are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.datasets.rules.difference import changed_fields, value_at

NAMES = st.sampled_from(["a", "b_c", "d"])
VALUES = st.none() | st.integers(0, 2)
FIELDS = st.dictionaries(NAMES, VALUES | st.lists(st.dictionaries(NAMES, VALUES), max_size=2), max_size=3)


@given(FIELDS, FIELDS)
def test_a_path_that_differs_leads_to_two_values_that_differ(
    before: dict[str, object], after: dict[str, object]
) -> None:
    for path in changed_fields(before, after):
        assert value_at(before, path) != value_at(after, path)


@pytest.mark.parametrize(
    ("path", "value"),
    [("config.size", 10), ("inputs[1].where", "n > 1"), ("inputs[7].where", None), ("config.none.below", None)],
)
def test_the_value_at_a_path(path: str, value: object) -> None:
    fields = {"config": {"size": 10}, "inputs": [{}, {"where": "n > 1"}]}
    assert value_at(fields, path) == value
