"""Is a worker of the registry contract one? Numbered cases, held against any program that speaks gRPC."""

from windlass.testing.registry import cases
from windlass.testing.registry.trial import KIT, check_worker

__all__ = ["KIT", "cases", "check_worker"]
