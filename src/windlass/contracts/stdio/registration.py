"""What the kernel must know of the stdio contract."""

from __future__ import annotations

from windlass.contracts.stdio.delivery import Stdio
from windlass.core.delivery import register_delivery


def register() -> None:
    register_delivery(Stdio)
