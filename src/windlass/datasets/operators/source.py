"""The sources of the server: each task reports one event for every output of its job."""

from __future__ import annotations

from uuid import UUID

from windlass.datasets.operators.call import Call
from windlass.datasets.rules.events import EventReport


def emit(call: Call) -> list[EventReport]:
    """Report the cursor or the partition that the trigger names. Without one, the cursor is the time in milliseconds,
    or the next number if the dataset is ahead of it."""
    trigger = call.trigger
    key = trigger.get("partition_key")
    reports = []
    for output in call.outputs:
        dataset, version = UUID(output["dataset_uuid"]), UUID(output["dataset_version"])
        if key is not None:
            reports.append(EventReport(dataset, version, None, key, trigger.get("start"), trigger.get("end")))
            continue
        cursor = trigger.get("cursor")
        if cursor is None:
            cursor = max(int(call.now.timestamp() * 1000), call.high_waters.get(version, 0) + 1)
        reports.append(EventReport(dataset, version, cursor))
    return reports
