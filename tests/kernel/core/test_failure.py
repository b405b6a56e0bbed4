"""What went wrong, as data."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.failure import RETRYABLE, Category, Failure


@pytest.mark.parametrize(
    ("category", "by_itself"),
    [
        (Category.USER_CODE, True),
        (Category.DATA_QUALITY, False),
        (Category.INFRASTRUCTURE, True),
        (Category.CONFIGURATION, False),
        (Category.TIMEOUT, True),
        (Category.CANCELLED, False),
    ],
)
def test_an_explicit_retryable_wins_over_the_category(category: Category, by_itself: bool) -> None:
    assert Failure(category, "no").may_retry is by_itself
    assert Failure(category, "no", retryable=True).may_retry is True
    assert Failure(category, "no", retryable=False).may_retry is False


def test_every_category_is_either_worth_another_try_or_not() -> None:
    assert set(Category) - RETRYABLE == {Category.DATA_QUALITY, Category.CONFIGURATION, Category.CANCELLED}


failures = st.builds(
    Failure,
    category=st.sampled_from(Category),
    message=st.text(),
    reason=st.text(),
    trace=st.text(),
    retryable=st.none() | st.booleans(),
    retry_after_s=st.none() | st.floats(0, 1e9),
)


@given(failures)
def test_a_failure_survives_being_stored(failure: Failure) -> None:
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_what_was_not_said_is_not_stored() -> None:
    assert msgspec.json.encode(Failure(Category.TIMEOUT, "slow")) == b'{"category":"TIMEOUT","message":"slow"}'
