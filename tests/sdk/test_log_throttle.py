"""The same trouble is told now and then, another one at once."""

from __future__ import annotations

import logging

import pytest

from windlass.sdk.worker.log_throttle import AGAIN_S, LogThrottle


def test_the_same_trouble_is_told_now_and_then_and_another_one_at_once(caplog: pytest.LogCaptureFixture) -> None:
    moments = iter([0.0, 1.0, AGAIN_S - 1, AGAIN_S, AGAIN_S + 1, AGAIN_S + 2])
    complain = LogThrottle(logging.getLogger("windlass.worker"), lambda: next(moments))

    for _ in range(5):
        complain("cannot reach it: %s", "refused")
    complain("cannot reach it: %s", "no answer")

    assert caplog.messages == ["cannot reach it: refused", "cannot reach it: refused", "cannot reach it: no answer"]
