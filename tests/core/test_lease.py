"""The time-bounded right of a worker to run attempts."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.given import at

from windlass.core.lease import Lease, extend


def lease(ttl_s: float = 30, expires_in_s: float = 30) -> Lease:
    return Lease(UUID(int=1), "default", "ada", ("mail",), None, (), ttl_s, at(expires_in_s))


@pytest.mark.parametrize(("seconds", "expired"), [(0, False), (29.999999, False), (30, True), (31, True)])
def test_a_lease_is_over_at_the_moment_it_expires(seconds: float, expired: bool) -> None:
    assert lease().expired(at(seconds)) is expired


@pytest.mark.parametrize("seconds", [0, 10, 29.999999])
def test_a_sign_of_life_gives_the_whole_time_again_from_now(seconds: float) -> None:
    assert extend(lease(), at(seconds)).expires_at == at(seconds + 30)


@pytest.mark.parametrize("seconds", [30, 31, 3600])
def test_a_lease_that_has_run_out_stays_so(seconds: float) -> None:
    gone = lease()

    assert extend(gone, at(seconds)) is gone


def test_extending_changes_nothing_but_the_expiry() -> None:
    before = lease()

    after = extend(before, at(5))

    assert {name for name in Lease.__struct_fields__ if getattr(before, name) != getattr(after, name)} == {"expires_at"}


@given(st.lists(st.integers(0, 40), max_size=20))
def test_a_lease_lives_as_long_as_no_silence_reaches_its_ttl(pauses: list[int]) -> None:
    held, now_s = lease(), 0
    for pause in pauses:
        now_s += pause
        held = extend(held, at(now_s))

    assert held.expired(at(now_s)) is any(pause >= 30 for pause in pauses)
