"""Trying again: what has ended is done again as a new task, what waits is made available now."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest
from tests.kernel.core.given import (
    NOW,
    RUN_ID,
    TASK_ID,
    at,
    blocked,
    cancelled,
    failed,
    failed_once,
    parked,
    queued,
    running,
    skipped,
    sleeping,
    succeeded,
)

from windlass.core.replay import make_available, replay
from windlass.core.retry import Policy
from windlass.core.states import State
from windlass.core.submission import check_submission
from windlass.core.task import Task
from windlass.errors import InvalidState

NEW = UUID(int=0x4E0)


@pytest.mark.parametrize("ended", [failed, cancelled, skipped])
def test_the_new_task_is_like_the_old_one_and_names_it(ended: Callable[..., Task]) -> None:
    policy = Policy(max_attempts=2)
    old = ended(policy, priority=3, concurrency_key="c", deadline_at=at(60))

    new = replay(old, b"7", ("gpu",), b"{}", NEW)

    check_submission(new)
    assert (new.id, new.replay_of, new.payload, new.requires, new.wire) == (NEW, TASK_ID, b"7", ("gpu",), b"{}")
    assert (new.kind, new.queue, new.namespace, new.priority) == (old.kind, old.queue, old.namespace, 3)
    assert (new.concurrency_key, new.policy, new.run_id) == ("c", policy, old.run_id)
    assert new.deadline_at is None, "it may have passed"


def test_the_same_task_is_replayed_under_the_same_key() -> None:
    first = replay(failed(), b"7", (), None, NEW)
    again = replay(failed(), b"7", (), None, RUN_ID)

    assert first.idempotency_key == again.idempotency_key


@pytest.mark.parametrize("task", [queued, running, blocked, sleeping, parked, succeeded])
def test_only_what_ended_without_success_is_replayed(task: Callable[..., Task]) -> None:
    with pytest.raises(InvalidState):
        replay(task(), b"7", (), None, NEW)


def test_what_waits_for_its_time_is_available_now() -> None:
    waiting = failed_once()
    assert waiting.available_at > NOW

    move = make_available(waiting, NOW)

    assert (move.after.available_at, move.after.failures, move.after.error) == (NOW, 1, waiting.error)
    assert [(entry.what, entry.detail) for entry in move.history] == [
        ("made_available", {"was_due_at": waiting.available_at})
    ]


def test_what_is_due_is_left_alone_and_what_is_parked_goes_on() -> None:
    assert not make_available(queued(), NOW).changed
    assert make_available(parked(), NOW).after.state is State.QUEUED


@pytest.mark.parametrize("task", [running, blocked, sleeping, succeeded, failed, cancelled, skipped])
def test_there_is_nothing_to_hurry_in_what_does_not_wait_for_its_time(task: Callable[..., Task]) -> None:
    with pytest.raises(InvalidState):
        make_available(task(), NOW)
