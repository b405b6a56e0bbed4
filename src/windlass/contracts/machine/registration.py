"""Registers the machine contract with the kernel."""

from __future__ import annotations

from windlass.contracts.machine.delivery import Machine
from windlass.core.delivery import register_delivery


def register() -> None:
    register_delivery(Machine)
