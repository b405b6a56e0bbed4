"""Is a worker of the registry contract one? Numbered cases, held against any program that speaks gRPC."""

from windlass.contracts.registry.conformance import cases
from windlass.contracts.registry.conformance.trial import KIT, check_worker

__all__ = ["KIT", "cases", "check_worker"]
