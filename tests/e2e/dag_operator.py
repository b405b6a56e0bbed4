"""The operators of the DAG storm: a source that reports a block of partitions, and jobs that make each into one."""

from __future__ import annotations

from typing import Any

BLOCK, SIZE = 50, 10


async def report(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """The partitions of one block, whose number the trigger has. Some are reported before the end, and once more at
    the end: the same task may report the same partition twice."""
    block = task["trigger"]["payload"]["block"]
    events = [
        _event(output, number) for output in task["outputs"] for number in range(block * BLOCK, (block + 1) * BLOCK)
    ]
    for event in events[::7]:
        context.emit(event)
    return {"events": events}


async def pass_on(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """The partition of its input, as one of each output."""
    [given] = task["inputs"]
    return {"events": [_event(output, given["start"] // SIZE) for output in task["outputs"]]}


def _event(output: dict[str, Any], number: int) -> dict[str, Any]:
    start, end = number * SIZE, number * SIZE + SIZE - 1
    return {
        "dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"],
        "partition_key": f"{start}-{end}", "start": start, "end": end,
    }  # fmt: skip
