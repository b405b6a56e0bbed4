"""What is to happen to the next calls of a name: refused, or carried out with the answer lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Plan(Generic[T]):
    """`answer` is given so many times. `lose`: the call is carried out, and only its answer is replaced."""

    answer: T
    times: int
    lose: bool = False


class Plans(Generic[T]):
    """One for each name. Whoever uses it has a lock."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan[T]] = {}

    def put(self, name: str, plan: Plan[T]) -> None:
        self._plans[name] = plan

    def next(self, name: str) -> Plan[T] | None:
        """What happens to this call; None: what always does."""
        plan = self._plans.get(name)
        if plan is None or plan.times <= 0:
            return None
        plan.times -= 1
        return plan
