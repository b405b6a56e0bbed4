"""A share of `make soak-lease`: one kill of everybody, for each carrier."""

from __future__ import annotations

import random

import pytest
from tests.e2e.lease_soak import CARRIERS, Soak
from tests.kit.database import temporary_folder

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_whoever_is_killed_no_task_is_lost_none_is_committed_twice_and_the_outbox_drains(carrier: str) -> None:
    with temporary_folder() as folder:
        told = await Soak(folder, carrier, tasks=100, kills=5, randomness=random.Random(7), hurried=True).run()

    assert told["tasks"] == 100
    assert sum(told["killed"].values()) == 5
