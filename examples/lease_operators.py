"""Operators for `windlass wrapper`: one that is trusted, one that somebody else wrote, and one that shows what
`windlass conformance lease` asks for.

See docs/howto/run-operators.md for how they are run, and docs/howto/check-a-worker.md for the last one.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.request import urlopen


def count_words(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """Tells of each dataset that it wrote, and then of what it made."""
    words = task["config"]["text"].split()
    for output in task.get("outputs", []):
        context.emit({**output, "cursor": len(words)})
    return {"result": len(words)}


def longest_word(task: dict[str, Any]) -> str:
    """Run in a cage: it has its task, a folder of its own, and nothing else."""
    return max(task["config"]["text"].split(), key=len, default="")


def conformance(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """Works in small pieces, shows that it does, stops when it is told to, and ends as its config says."""
    config = task["config"]
    if config.get("events"):
        context.emit(*config["events"])
    for _ in range(config.get("work_ms", 0) // 20):
        if config.get("probe_url"):
            urlopen(config["probe_url"], b"", 10).close()
        if context.cancelled:
            return {}
        time.sleep(0.02)
    if config.get("outcome") == "Failed":
        raise RuntimeError("asked to fail")
    return {"outputs": config.get("outputs") or [], "result": None}
