"""Is a worker of the lease contract one? Numbered cases, held against any program that holds tasks over mTLS."""

from windlass.testing.lease import cases
from windlass.testing.lease.trial import KIT, check_worker

__all__ = ["KIT", "cases", "check_worker"]
