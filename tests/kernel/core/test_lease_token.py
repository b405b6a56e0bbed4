"""Lease tokens: drawn, marked with the delivery of their attempt, and refused by the wires of all others."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.delivery import DELIVERIES
from windlass.core.ids import derived_id
from windlass.core.lease_token import TOKEN_BITS, check_delivery, delivery_of, lease_token
from windlass.engine.randomness import SystemRandomness
from windlass.errors import LeaseLost

TYPES = list(DELIVERIES)


@given(st.integers(0, 2**TOKEN_BITS - 1), st.sampled_from(TYPES))
def test_a_token_says_which_delivery_began_its_attempt_and_keeps_all_of_its_randomness(
    randomness: int, delivery: str
) -> None:
    token = lease_token(randomness, delivery)
    others = {lease_token(randomness ^ 1 << bit, delivery) for bit in range(TOKEN_BITS)}

    assert delivery_of(token) == delivery
    assert UUID(str(token)).version == 8
    assert len(others | {token}) == TOKEN_BITS + 1


def test_each_delivery_has_a_mark_of_its_own() -> None:
    assert len({kind.mark for kind in DELIVERIES.values()}) == len(DELIVERIES)
    assert all(1 <= kind.mark <= 15 for kind in DELIVERIES.values())


@pytest.mark.parametrize("delivery", TYPES)
def test_a_token_is_worth_nothing_where_attempts_of_other_deliveries_report(delivery: str) -> None:
    token = lease_token(7, delivery)

    check_delivery(token, {delivery})
    with pytest.raises(LeaseLost):
        check_delivery(token, set(TYPES) - {delivery})


@pytest.mark.parametrize(
    "what",
    [
        None,
        UUID(int=0),
        UUID(int=1),
        UUID("2f8b2a1c-6a0e-4d7e-9d53-0c9a5f6f7a11"),
        derived_id("attempt", UUID(int=7), 1),
    ],
)
def test_what_was_not_drawn_as_a_token_is_none(what: UUID | None) -> None:
    assert delivery_of(what) is None
    with pytest.raises(LeaseLost):
        check_delivery(what, TYPES)


def test_tokens_come_from_the_system_and_not_from_what_makes_ids() -> None:
    one, other = SystemRandomness(), SystemRandomness()
    other._fast.setstate(one._fast.getstate())  # whoever saw enough ids knows all that follow
    other._last_ms = other._tail = 0

    assert {one.new_token("pull") for _ in range(50)}.isdisjoint({other.new_token("pull") for _ in range(50)})
    assert one.jitter() == other.jitter()
