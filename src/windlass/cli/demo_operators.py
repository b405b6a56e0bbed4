"""The operators of `windlass demo --datasets`: readings of water meters, and alerts about those that are too high."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

PUBLISH_ROWS = 4  # rows of one batch: few, so that a sink has many to write


def litres(reading: int) -> int:
    return reading * 7919 % 1000


def read_meters(_task: dict[str, Any], context: Any) -> None:
    """Writes the readings of one partition as a Parquet file."""
    first, last = context.inputs[0].window
    time.sleep(0.3)  # meters are slow
    context.output(0).write({"reading": number, "litres": litres(number)} for number in range(first, last + 1))


def find_alerts(_task: dict[str, Any], context: Any) -> None:
    """Publishes the readings of one partition that match `where` of the DAG file."""
    for rows in _parts(context.inputs[0].rows()):
        context.output(0).publish(rows)
        time.sleep(0.05)


def _parts(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    for row in rows:
        part.append(row)
        if len(part) == PUBLISH_ROWS:
            yield part
            part = []
    if part:
        yield part
