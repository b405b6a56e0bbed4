"""Conformance cases of the lease contract, run against any worker program that holds tasks over mTLS."""

from windlass.contracts.lease.conformance import cases
from windlass.contracts.lease.conformance.trial import KIT, check_worker

__all__ = ["KIT", "cases", "check_worker"]
