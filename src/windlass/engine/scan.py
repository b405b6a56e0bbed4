"""Where a claim begins to look. Claimed tasks leave dead entries at the head of the ready index; until vacuum may
remove them (never, while somebody holds an old snapshot), every look from the start walks past all of them.

So a full look, from the start and through all lanes, is paid for: after one that took t seconds, the next comes no
sooner than 20 t later. Looks between begin where the last claim ended, in the lanes that are known. A look that costs
a millisecond is therefore full nearly always; one that has become expensive takes at most a twentieth of the time.
What a short look cannot see (a lane that is new, a task whose transaction committed late) waits for the next full one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from windlass.core.fairness import BEGINNING, FIRST_LANE, Lane, LanePick
from windlass.core.task import Task

FULL_LOOK_SHARE = 20
FULL_LOOK_PAUSE_MAX_S = 5.0  # one look that met a database at a standstill must not hide new lanes for minutes


@dataclass(slots=True)
class Scan:
    """What one engine remembers about one queue."""

    lanes: list[Lane] = field(default_factory=list)
    last_key: str = ""
    resume_after: Lane = FIRST_LANE
    full_look_at_s: float = 0.0
    cost_s: float = 0.0  # of the last full look
    floors: dict[Lane, datetime] = field(default_factory=dict)
    alone: bool = True  # as far as we know, it has one lane at most, and nobody limited it
    whole: bool = False  # whether `lanes` are all there were
    news: int = 0  # what had been announced when the last full look began

    def full_look_due(self, now_s: float) -> bool:
        return not self.lanes or now_s >= self.full_look_at_s

    def sees_all(self, news: int) -> bool:
        """Whether a short look sees what a full one would: no lane was left out or cut, and nothing was announced
        since. Without this, two queues of one worker would remind each other of their next full looks for ever."""
        return self.whole and not self.floors and self.news == news

    def looked_fully(self, lanes: list[Lane], lanes_max: int, news: int) -> None:
        self.lanes, self.news = lanes, news
        self.whole = self.resume_after == FIRST_LANE and len(lanes) < lanes_max
        self.resume_after = lanes[-1] if len(lanes) >= lanes_max else FIRST_LANE
        self.floors.clear()

    def paid(self, took_s: float, now_s: float) -> None:
        """A full look has ended: when the next one may come."""
        self.cost_s = took_s
        self.full_look_at_s = now_s + min(FULL_LOOK_SHARE * took_s, FULL_LOOK_PAUSE_MAX_S)

    def with_floors(self, picks: Sequence[LanePick]) -> list[LanePick]:
        return [LanePick(p.priority, p.key, p.take, self.floors.get(Lane(p.priority, p.key), BEGINNING)) for p in picks]

    def claimed(self, tasks: Sequence[Task]) -> None:
        """Remember how far each lane was read; the walk goes on behind the last key that was served."""
        for task in tasks:
            self.floors[Lane(task.priority, task.concurrency_key)] = task.available_at
        if tasks:
            self.last_key = tasks[-1].concurrency_key
