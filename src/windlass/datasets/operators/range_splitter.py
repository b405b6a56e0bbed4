"""Reports the ranges of `range_size` numbers that lie in the partition of its input."""

from __future__ import annotations

from windlass.datasets.operators.call import Call
from windlass.datasets.rules.events import EventReport
from windlass.errors import Invalid


def split_range(call: Call) -> list[EventReport]:
    size = call.number("range_size", least=1)
    read = next((given for given in call.inputs if given.get("mode") == "partition" and given["trigger"]), None)
    if read is None:
        return []  # an invalidation of rows: the ranges are as complete as before
    first, last = read["start"], read["end"]
    if first is None or last is None:
        raise Invalid(f"partition {read['partition_key']} has no range", field="inputs")
    if (last - first + 1) % size:
        raise Invalid(
            f"partition {read['partition_key']} cannot be split into ranges of {size}", field="config.range_size"
        )
    return call.ranges(first, last, size)
