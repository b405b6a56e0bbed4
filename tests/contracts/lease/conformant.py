"""What the conformance cases ask of an operator, for `windlass wrapper`."""

from __future__ import annotations

import time
from typing import Any
from urllib.request import urlopen


def operate(task: dict[str, Any], context: Any) -> dict[str, Any]:
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
