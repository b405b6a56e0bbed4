"""An operator that writes files to the lake and then waits until a file is there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

GATE = Path(os.environ.get("LAKE_GATE", os.devnull))


def load(task: dict[str, Any], context: Any) -> None:
    context.output(0).write(
        [{"attempt": task["attempt"]}], partition_key="0-99", start=0, end=99
    )  # file, manifest and marker are written when this returns
    while not GATE.exists() and not context.cancelled:
        time.sleep(0.01)
