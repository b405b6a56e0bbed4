"""Functions that workers import."""

from __future__ import annotations

import math
from typing import Any


def hypot(a: float, b: float, task: Any) -> float:
    task.update("computing", 1, 1)
    return math.hypot(a, b)
