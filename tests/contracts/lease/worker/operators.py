"""Operators for the tests: what they do is decided by the task, and what they did is written down here."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

calls: list[dict[str, Any]] = []
begun = threading.Event()
goes_on = threading.Event()


def reset() -> None:
    calls.clear()
    begun.clear()
    goes_on.clear()


def double(task: dict[str, Any]) -> int:
    calls.append(task)
    return 2 * int(task["config"]["n"])


async def outputs(task: dict[str, Any], context: Any) -> dict[str, Any]:
    calls.append(task)
    context.emit({"dataset_uuid": "a", "cursor": 1})
    context.emit({"dataset_uuid": "a", "cursor": 2}, {"dataset_uuid": "a", "cursor": 3})
    context.publish(dataset_uuid="b", dataset_version="v", batch_uri="s3://x/y", record_count=2)
    context.emit({"dataset_uuid": "a", "cursor": 4})
    return {"outputs": [{"output_index": 0}], "events": [{"dataset_uuid": "a", "cursor": 5}]}


async def hangs(task: dict[str, Any]) -> None:
    calls.append(task)
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        calls.append({"stopped": True})


def waits(task: dict[str, Any], context: Any) -> str:
    """In a thread, until it is told to go on, or to stop."""
    calls.append(task)
    begun.set()
    while not goes_on.wait(0.005):
        if context.cancelled:
            return "stopped"
    return "went on"


def fails(task: dict[str, Any]) -> None:
    raise ValueError("it cannot be done")


class Never(Exception):
    retryable = False


def never_works(task: dict[str, Any]) -> None:
    raise Never("not today, not tomorrow")


def exits(task: dict[str, Any]) -> None:
    raise SystemExit(3)


async def exits_async(task: dict[str, Any]) -> None:
    raise SystemExit(3)


def emits_nonsense(task: dict[str, Any], context: Any) -> None:
    context.emit({"nonsense": True})
    while not context.cancelled and not goes_on.wait(0.005):
        pass


def returns_an_object(task: dict[str, Any]) -> object:
    return object()


def emits_an_object(task: dict[str, Any], context: Any) -> None:
    context.emit({"cursor": object()})


def emits_an_object_and_waits(task: dict[str, Any], context: Any) -> None:
    context.emit({"cursor": object()})
    while not context.cancelled and not goes_on.wait(0.005):
        pass


def emits_many(task: dict[str, Any], context: Any) -> None:
    context.emit()
    context.emit(*({"cursor": number} for number in range(1234)))


def let_out(task: dict[str, Any]) -> Any:
    """A hostile one by its name, or a neighbour that doubles."""
    from tests.kit import zoo

    config = task["config"]
    return zoo.let_out(config["name"]) if "name" in config else 2 * config["n"]


async def let_out_async(task: dict[str, Any]) -> Any:
    return let_out(task)
