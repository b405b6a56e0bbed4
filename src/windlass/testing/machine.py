"""Run a program for a machine that is started for one task, in the process of a test."""

from windlass.contracts.machine.conformance.rehearsal import Rehearsal, rehearse

__all__ = ["Rehearsal", "rehearse"]
