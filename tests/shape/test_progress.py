"""What long runs say of how far they are: a line that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io

import pytest
from bench.progress import Progress


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_elsewhere_there_is_a_line_at_once_and_then_now_and_then(clock: Clock) -> None:
    stream = Stream(terminal=False)
    progress = Progress(600, "s", stream=stream, clock=clock)

    for second in range(61):
        clock.now_s = float(second)
        progress.tell(second, f"{second * 10} heartbeats")
    progress.close()

    lines = stream.getvalue().splitlines()
    assert lines[0] == "  0:00  0 of 600 s, 0 heartbeats"
    assert lines[-1] == "  1:00  60 of 600 s, about 9 min left, 600 heartbeats"
    assert len(lines) == 5
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_one_line_moves_and_is_gone_at_the_end(clock: Clock) -> None:
    stream = Stream(terminal=True)
    progress = Progress(10_000, "tasks", stream=stream, clock=clock, columns=lambda: 30)

    progress.tell(1_200, "nats, 3 of 40 kills")
    progress.tell(1_201, "too soon to be seen")
    clock.now_s = 1.0
    progress.say("now kill worker")
    progress.close()

    assert stream.getvalue() == "\r  0:00  1,200 of 10,000 tasks\x1b[K\r\x1b[K  0:01  now kill worker\n"
