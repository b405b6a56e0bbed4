"""The conformance kit of the registry contract: numbered cases for any worker that speaks gRPC."""

from windlass.contracts.registry.conformance import cases
from windlass.contracts.registry.conformance.trial import KIT, check_worker

__all__ = ["KIT", "cases", "check_worker"]
