"""The operator of the lease soak: writes down that it ran, tells of an event, and returns what can be checked."""

from __future__ import annotations

import os
from typing import Any

TRACE = os.environ.get("SOAK_TRACE", os.devnull)


async def work(task: dict[str, Any], context: Any) -> dict[str, Any]:
    number = task["config"]["number"]
    with open(TRACE, "a", encoding="ascii") as trace:  # noqa: ASYNC230, PTH123  # one short line is written whole
        trace.write(f"{task['task_id']} {task['attempt']}\n")
    [output] = task["outputs"]
    if number % 3 == 0:
        context.emit({**output, "cursor": number})
    return {"events": [{**output, "cursor": 1_000_000 + number}], "result": number * number}
