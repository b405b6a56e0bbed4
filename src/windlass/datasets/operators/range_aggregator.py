"""Reports each range of `range_size` numbers, aligned to `start`, once the cursor of its input has passed its end."""

from __future__ import annotations

from windlass.datasets.operators.call import Call
from windlass.datasets.rules.events import EventReport


def aggregate_ranges(call: Call) -> list[EventReport]:
    size, start = call.number("range_size", least=1), call.number("start", 0)
    read = next((given for given in call.inputs if given.get("mode") == "cursor"), None)
    if read is None:
        return []  # an invalidation: the ranges are as complete as before
    first = start
    if call.cursor_from is not None and call.cursor_from >= start:
        first += (call.cursor_from - start + 1) // size * size
    return call.ranges(first, read["cursor_to"], size)
