"""Registers the callback contract with the kernel."""

from __future__ import annotations

from windlass.contracts.callback.delivery import Push
from windlass.core.delivery import register_delivery


def register() -> None:
    register_delivery(Push)
