"""The operators of clocks.yaml: each is a function with the name that a job of the file gives as its `operator`.

`windlass dev --operators clocks` runs them. See docs/tutorial-datasets.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from zoneinfo import ZoneInfo

DAY_S = 24 * 60 * 60


def find_changes(task: dict[str, Any], context: Any) -> None:
    """Writes the changes of all clocks of a region between two years: the partition of its input."""
    first, last = context.inputs[0].window
    begin, end = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (first, last + 1))
    zones = [zone for zone in _zones() if zone.startswith(task["config"]["region"] + "/")]
    context.output(0).write([row for zone in zones for row in _changes(zone, begin, end)])


def report_jumps(_task: dict[str, Any], context: Any) -> None:
    """Publishes the rows of its input that match `where` in the file."""
    context.output(0).publish(context.inputs[0].rows())


def _zones() -> Iterator[str]:
    """The zones that differ from each other since 1970."""
    table = files("tzdata").joinpath("zoneinfo/zone1970.tab").read_text(encoding="utf-8")
    for line in table.splitlines():
        if not line.startswith("#"):
            yield line.split("\t")[2].strip()


def _changes(name: str, begin_s: int, end_s: int) -> Iterator[dict[str, Any]]:
    """The moments between two times at which the clock of a zone was set forward or back."""
    zone = ZoneInfo(name)
    before = _offset(zone, begin_s)
    for day_s in range(begin_s + DAY_S, end_s + DAY_S, DAY_S):
        after = _offset(zone, day_s)
        if after == before:
            continue
        low, high = day_s - DAY_S, day_s
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
        if high < end_s:
            at = datetime.fromtimestamp(high, UTC).isoformat()
            yield {"zone": name, "at": at, "minutes": after - before}
        before = after


def _offset(zone: ZoneInfo, time_s: int) -> int:
    """How many minutes the clock is ahead of UTC."""
    offset = datetime.fromtimestamp(time_s, zone).utcoffset()
    return 0 if offset is None else round(offset.total_seconds() / 60)
