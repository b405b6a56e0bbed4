"""Programs for machines that live for one task: try one out in this process, or hold any against the contract."""

from windlass.testing.machine import cases
from windlass.testing.machine.rehearsal import Rehearsal, rehearse
from windlass.testing.machine.trial import KIT, check_program

__all__ = ["KIT", "Rehearsal", "cases", "check_program", "rehearse"]
