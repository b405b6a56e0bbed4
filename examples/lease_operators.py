"""Operators for `windlass wrapper`: a trusted one, an untrusted one that runs in a sandbox, and the one for
`windlass conformance lease`.

See docs/howto/run-operators.md for how they are run, and docs/howto/check-a-worker.md for the last one.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.request import urlopen


def count_words(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """Reports each dataset that it wrote, and returns its result."""
    words = task["config"]["text"].split()
    for output in task.get("outputs", []):
        context.emit({**output, "cursor": len(words)})
    return {"result": len(words)}


def longest_word(task: dict[str, Any]) -> str:
    """Runs in a sandbox, with access to its task and its own folder only."""
    return max(task["config"]["text"].split(), key=len, default="")


def conformance(task: dict[str, Any], context: Any) -> dict[str, Any]:
    """Works in small pieces, reports events, stops when it is cancelled, with the outcome that its config names."""
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
