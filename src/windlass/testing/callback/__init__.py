"""Is a worker of the callback contract one? Numbered cases, held against it from outside, whatever it is made of."""

from windlass.testing.callback import cases
from windlass.testing.callback.case import KIT, check_worker
from windlass.testing.callback.stand_in import StandIn

__all__ = ["KIT", "StandIn", "cases", "check_worker"]
