"""Fair claims: the order in which the lanes of a queue are served, and how many tasks each may give to one batch.

A lane is (priority, concurrency key). Priorities are served in order; within one, K backlogged keys get 1/K each of
every batch, beginning after the key that was served last.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import msgspec

from windlass.core.queue import Admission
from windlass.core.states import Instant

BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class Lane(msgspec.Struct, frozen=True, order=True):
    priority: int
    key: str


FIRST_LANE = Lane(-(2**15), "")
PRIORITY_LAST = 2**15


class LanePick(msgspec.Struct, frozen=True):
    """At most `take` tasks of this lane; none that became available before `floor_at`."""

    priority: int
    key: str
    take: int
    floor_at: Instant = BEGINNING


def share(lanes: Sequence[Lane], wanted: int, admission: Admission, last_key: str) -> list[LanePick]:
    """How many tasks each lane may give. Lanes whose key has no room are left out."""
    picks: list[LanePick] = []
    for priority, group in groupby(sorted(lanes), key=lambda lane: lane.priority):
        open_lanes = [(lane.key, room) for lane in group if (room := _room(lane.key, admission)) > 0]
        if open_lanes:
            # Equal shares; the remainder goes to those whose turn comes first. Every lane may give at least one: the
            # lanes ahead may hold nothing that is due.
            even, extra = divmod(wanted, len(open_lanes))
            turns = sorted(open_lanes, key=lambda lane: (lane[0] <= last_key, lane[0]))
            picks += [
                LanePick(priority, key, min(max(1, even + (turn < extra)), room))
                for turn, (key, room) in enumerate(turns)
            ]
    return picks


def fitting(found: Sequence[Lane], picks: Sequence[LanePick], admission: Admission) -> list[int]:
    """The positions of the found tasks to claim; `found` has the lane of each, in the order of the picks.

    The lanes of one key share its room, whatever their priorities. A lane that gave its whole share may hold more:
    until those tasks are claimed, no lower priority is served.
    """
    shares = {Lane(pick.priority, pick.key): pick.take for pick in picks}
    by_lane: dict[Lane, int] = {}
    by_key: dict[str, int] = {}
    backlog = PRIORITY_LAST
    kept: list[int] = []
    for position, lane in enumerate(found):
        room = _room(lane.key, admission) - by_key.get(lane.key, 0)
        if lane.priority > backlog or room <= 0:
            continue
        kept.append(position)
        by_lane[lane] = by_lane.get(lane, 0) + 1
        by_key[lane.key] = by_key.get(lane.key, 0) + 1
        if by_lane[lane] == shares[lane] and room > 1:
            backlog = lane.priority
    return kept


def _room(key: str, admission: Admission) -> int:
    """Tasks without a key share a lane, but not a limit."""
    return admission.total if key == "" else admission.room_by_key.get(key, admission.room_per_key)
