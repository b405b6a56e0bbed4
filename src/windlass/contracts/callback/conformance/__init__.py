"""Numbered cases that check from outside whether a worker fulfils the callback contract, in any language."""

from windlass.contracts.callback.conformance import cases
from windlass.contracts.callback.conformance.case import KIT, check_worker
from windlass.contracts.callback.conformance.stand_in import StandIn

__all__ = ["KIT", "StandIn", "cases", "check_worker"]
