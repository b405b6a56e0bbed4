"""Plans for the next calls of a name: refuse them, or execute them and lose the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class Plan(Generic[T]):
    """Reply with `answer` this many times. With `lose`, the call is executed and only its answer is replaced."""

    answer: T
    times: int
    lose: bool = False


class Plans(Generic[T]):
    """One plan for each name. The caller holds a lock."""

    def __init__(self) -> None:
        self._plans: dict[str, Plan[T]] = {}

    def put(self, name: str, plan: Plan[T]) -> None:
        self._plans[name] = plan

    def next(self, name: str) -> Plan[T] | None:
        """The plan for this call; None if there is none."""
        plan = self._plans.get(name)
        if plan is None or plan.times <= 0:
            return None
        plan.times -= 1
        return plan
