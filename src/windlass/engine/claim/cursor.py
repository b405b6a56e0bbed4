"""Where a claim starts to read the ready index.

Claimed tasks leave dead entries at the head of the index. Until vacuum removes them (never, while an old snapshot is
open), every read from the start steps over all of them. So a full read, from the start and through all lanes, is
rationed: after one that took t seconds, the next comes no sooner than 20 t later. The claims between start where the
last claim ended, in the lanes that are known. So a read of a millisecond is nearly always a full one, and expensive
reads take at most a twentieth of the time. What a short read cannot find (a new lane, a task whose transaction
committed late) waits for the next full read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from windlass.core.fairness import BEGINNING, FIRST_LANE, Lane, LanePick
from windlass.core.task import Task

FULL_READ_SHARE = 20
FULL_READ_PAUSE_MAX_S = 5.0  # one read while the database stood still must not hide new lanes for minutes


@dataclass(slots=True)
class ClaimCursor:
    """What one engine remembers about one queue."""

    lanes: list[Lane] = field(default_factory=list)
    last_key: str = ""
    resume_after: Lane = FIRST_LANE
    full_read_at_s: float = 0.0  # when the next full read may come
    full_read_cost_s: float = 0.0
    floors: dict[Lane, datetime] = field(default_factory=dict)
    single_lane: bool = True  # as far as we know, the queue has at most one lane and no limits
    all_lanes: bool = False  # whether `lanes` are all lanes there were
    news: int = 0  # `Notifications.news` when the last full read began

    def full_read_due(self, now_s: float) -> bool:
        return not self.lanes or now_s >= self.full_read_at_s

    def misses_nothing(self, news: int) -> bool:
        """Whether a short read finds what a full one would: no lane was omitted or cut, and nothing was announced
        since. Without this, two queues of one worker would remind each other of their next full reads for ever."""
        return self.all_lanes and not self.floors and self.news == news

    def record_lanes(self, lanes: list[Lane], lanes_max: int, news: int) -> None:
        """Record a page of lanes. The next page begins after it, or at the start if it was the last."""
        self.lanes, self.news = lanes, news
        self.all_lanes = self.resume_after == FIRST_LANE and len(lanes) < lanes_max
        self.resume_after = lanes[-1] if len(lanes) >= lanes_max else FIRST_LANE
        self.floors.clear()

    def record_full_read(self, took_s: float, now_s: float) -> None:
        self.full_read_cost_s = took_s
        self.full_read_at_s = now_s + min(FULL_READ_SHARE * took_s, FULL_READ_PAUSE_MAX_S)

    def with_floors(self, picks: Sequence[LanePick]) -> list[LanePick]:
        return [LanePick(p.priority, p.key, p.take, self.floors.get(Lane(p.priority, p.key), BEGINNING)) for p in picks]

    def advance(self, tasks: Sequence[Task]) -> None:
        """Record claimed tasks, in order: how far each lane was read, and which key was served last."""
        for task in tasks:
            self.floors[Lane(task.priority, task.concurrency_key)] = task.available_at
        if tasks:
            self.last_key = tasks[-1].concurrency_key
