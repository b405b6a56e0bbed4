"""Numbered cases that check whether a program fulfils the machine contract."""

from windlass.contracts.machine.conformance import cases
from windlass.contracts.machine.conformance.trial import KIT, check_program

__all__ = ["KIT", "cases", "check_program"]
