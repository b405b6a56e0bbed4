"""Ids of one process."""

from __future__ import annotations

import time

import pytest

from windlass.engine.randomness import SystemRandomness


@pytest.mark.parametrize("clock_ns", [None, 1_700_000_000_000_000_000], ids=["goes on", "stands still"])
def test_ids_of_one_process_are_in_the_order_in_which_they_were_made(
    monkeypatch: pytest.MonkeyPatch, clock_ns: int | None
) -> None:
    if clock_ns is not None:
        monkeypatch.setattr(time, "time_ns", lambda: clock_ns)
    randomness = SystemRandomness()
    made = [randomness.new_id() for _ in range(20_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {id_.version for id_ in made} == {7}


def test_a_clock_that_goes_back_does_not_make_ids_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    randomness = SystemRandomness()
    before = randomness.new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000)

    assert before < randomness.new_id() < randomness.new_id()
