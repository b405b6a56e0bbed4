"""Operators for `windlass wrapper`: one that is trusted, and one that somebody else wrote.

See docs/howto/run-operators.md for how they are run.
"""

from __future__ import annotations

from typing import Any


def count_words(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """Tells of each dataset that it wrote, and then of what it made."""
    words = task["config"]["text"].split()
    for output in task.get("outputs", []):
        context.emit({**output, "cursor": len(words)})
    return {"result": len(words)}


def longest_word(task: dict[str, Any]) -> str:
    """Run in a cage: it has its task, a folder of its own, and nothing else."""
    return max(task["config"]["text"].split(), key=len, default="")
