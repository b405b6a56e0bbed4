"""What a worker says when its heartbeat process was first: only what is true."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from windlass.core.lease import Reach
from windlass.sdk.worker import heartbeat
from windlass.sdk.worker.heartbeat import HeartbeatProcess

BLOCKED = "a handler blocks the event loop: the heartbeat process has extended the lease"


def turns(call: Callable[..., None], *arguments: object) -> None:
    call(*arguments)


def stands_still(_call: Callable[..., None], *_arguments: object) -> None:
    """A loop that never comes to it."""


def heard(on_loop: Callable[..., None], said_ago_s: float) -> None:
    process = HeartbeatProcess(Reach("nowhere", {}), lambda _: None, on_loop)
    process._handle(f"extended {time.monotonic() - said_ago_s}")


def test_a_worker_whose_loop_turns_is_not_said_to_be_blocked(caplog: pytest.LogCaptureFixture) -> None:
    heard(turns, 0.0)

    assert caplog.messages == []


def test_a_loop_that_stands_still_is_told_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BLOCKED_S", 0.01)
    heard(stands_still, 0.0)

    assert caplog.messages == [BLOCKED]


def test_what_was_heard_late_was_held_up_by_a_lock_on_everything(caplog: pytest.LogCaptureFixture) -> None:
    heard(turns, 5.0)

    assert caplog.messages == [BLOCKED]
