"""Registers the delivery of the stdio contract with the kernel."""

from __future__ import annotations

from windlass.contracts.stdio.delivery import Stdio
from windlass.core.delivery import register_delivery


def register() -> None:
    register_delivery(Stdio)
