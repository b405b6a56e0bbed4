"""What a task of the test of every delivery does, wherever it runs: plain functions, and nothing of Windlass."""

from __future__ import annotations


def label(order: int, lines: list[str]) -> dict[str, object]:
    return {"order": order, "text": ", ".join(lines), "count": len(lines)}


def refuse(reason: str) -> None:
    raise LookupError(reason)


def flood(size: int) -> str:
    return "x" * size
