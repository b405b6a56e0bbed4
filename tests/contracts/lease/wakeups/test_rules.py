from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import with_started
from windlass.contracts.lease.wakeups.rules import message_id, resend_after_s, wake_up
from windlass.core.queue import Usage

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = UUID(int=7)


def test_each_message_for_a_task_is_an_effect_of_its_own_and_the_same_one_twice_is_one() -> None:
    effects = [wake_up("shop", "mail", TASK, attempt, times) for attempt in (0, 1) for times in (1, 2)]

    assert len({effect.id for effect in effects}) == 4
    assert wake_up("shop", "mail", TASK, 1, 2) == effects[-1]
    assert effects[-1].body == {"queue": "mail", "times": 2}


def test_messages_for_one_attempt_share_an_id_whichever_time_they_are_sent() -> None:
    assert message_id(TASK, 0) == message_id(TASK, 0)
    assert message_id(TASK, 0) != message_id(TASK, 1)


@pytest.mark.parametrize(("times", "seconds"), [(1, 10.0), (2, 20.0), (5, 160.0), (6, 300.0), (5000, 300.0)])
def test_a_message_is_sent_again_ever_more_seldom_up_to_a_bound(times: int, seconds: float) -> None:
    assert resend_after_s(Wakeup(resend_ms=10_000, resend_max_ms=300_000), times) == seconds


def test_the_bound_is_minutes_where_nobody_says_otherwise() -> None:
    assert resend_after_s(Wakeup(), 1000) == 600.0


def test_who_asked_for_a_longer_pause_than_the_longest_gets_it() -> None:
    assert resend_after_s(Wakeup(resend_ms=7_200_000), 3) == 7200.0


def test_what_is_about_to_be_claimed_has_its_place() -> None:
    running = Usage(2, {"a": 2}, {"k": 1}, ((NOW, 1),))
    announced = Usage(3, {"a": 1, "b": 2}, {"k": 1, "m": 1})

    assert with_started(running, announced, NOW) == Usage(5, {"a": 3, "b": 2}, {"k": 2, "m": 1}, ((NOW, 1), (NOW, 3)))
    assert with_started(running, Usage(), NOW) == running
