"""Identity: ids that sort by time, and ids that anybody can make again."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.ids import RANDOM_BITS, derived_id, uuid7

milliseconds = st.integers(0, 2**48 - 1)
chances = st.integers(0, 2**RANDOM_BITS - 1)


@given(milliseconds, chances)
def test_an_id_is_a_uuid_of_version_7(ms: int, random: int) -> None:
    made = uuid7(ms, random)

    assert (made.version, made.variant) == (7, RFC_4122)


@given(milliseconds, chances)
def test_an_id_holds_its_time_and_all_of_its_chance(ms: int, random: int) -> None:
    number = uuid7(ms, random).int

    assert number >> 80 == ms
    assert (number >> 64 & 0xFFF) << 62 | number & (1 << 62) - 1 == random


@given(milliseconds, chances, milliseconds, chances)
def test_ids_sort_by_time_then_by_chance_as_numbers_and_as_text(ms: int, random: int, ms2: int, random2: int) -> None:
    one, two = uuid7(ms, random), uuid7(ms2, random2)

    assert (one < two) is ((ms, random) < (ms2, random2))
    assert (str(one) < str(two)) is ((ms, random) < (ms2, random2))


def test_the_example_of_the_standard_is_met() -> None:
    random = 0xCC3 << 62 | 0x18C4DC0C0C07398F
    assert uuid7(0x017F22E279B0, random) == UUID("017f22e2-79b0-7cc3-98c4-dc0c0c07398f")


@pytest.mark.parametrize(("ms", "random"), [(-1, 0), (2**48, 0), (0, -1), (0, 2**RANDOM_BITS)])
def test_a_time_or_a_chance_that_does_not_fit_is_refused(ms: int, random: int) -> None:
    with pytest.raises(AssertionError):
        uuid7(ms, random)


@given(st.lists(st.integers() | st.uuids(), min_size=1))
def test_the_same_parts_make_the_same_id(parts: list[object]) -> None:
    assert derived_id(*parts) == derived_id(*parts)


def test_other_parts_make_another_id() -> None:
    task = UUID(int=1)
    made = {
        derived_id("settle", task),
        derived_id("settle", UUID(int=2)),
        derived_id("push", task, 1),
        derived_id("push", task, 2),
    }

    assert len(made) == 4
    assert {one.version for one in made} == {5}


def test_a_derived_id_never_changes_between_releases() -> None:
    assert derived_id("settle", UUID(int=1)) == UUID("47ae25cd-4853-525c-8358-06f48fbcbdb9")
