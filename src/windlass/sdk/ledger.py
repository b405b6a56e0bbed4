"""What a workflow has recorded, held against what its code asks for, in the order in which it asks.

Pure. Owns one rule: in each place the code must ask for what is recorded there. Which places there are depends on the
code alone, so that what runs side by side is told apart by the order in which it was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.step import FIRST, Place, Step, StepKind
from windlass.sdk.leaving import Mismatched

AROUND = 3


class Ledger:
    """The records of one workflow, and how far the code of this attempt has come."""

    def __init__(self, task_id: UUID, steps: Sequence[Step] = ()) -> None:
        self.origin = task_id
        self._recorded: dict[int, Step] = {}
        self._places: dict[tuple[str, int], int] = {}
        self._counts: dict[str, int] = {}
        self._asked: list[Place] = []
        for step in steps:
            if step.kind is StepKind.ORIGIN:
                self.origin = UUID(msgspec.json.decode(step.result or b"null"))
            elif step.position > FIRST:
                self._recorded[step.position] = step
                self._places[step.name, step.occurrence] = step.position

    def ask(self, kind: StepKind, name: str) -> tuple[Place, Step | None]:
        """The next place of the code, and what is recorded there. Raises Mismatched if that is something else."""
        place = Place(len(self._asked), name, self._next(name))
        known = self._recorded.get(place.position)
        elsewhere = self._places.get((name, place.occurrence), place.position) != place.position
        fits = known is None or (known.name, known.occurrence, known.kind) == (name, place.occurrence, kind)
        if not fits or elsewhere:
            raise Mismatched(self._difference(place))
        self._asked.append(place)
        return place, known

    def ask_for_value(self, name: str) -> int:
        """A place for something that needs no record, since it can be made again: how often it was asked for."""
        place = Place(len(self._asked), name, self._next(name))
        if place.position in self._recorded:
            raise Mismatched(self._difference(place))
        self._asked.append(place)
        return place.occurrence

    def end(self) -> None:
        """The code has come to its end. Raises Mismatched if something is recorded that it never asked for."""
        if any(position >= len(self._asked) for position in self._recorded):
            raise Mismatched(self._difference(None))

    def _next(self, name: str) -> int:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return count

    def _difference(self, asked: Place | None) -> str:
        """The places around the first one that differs, as people read a diff."""
        at = len(self._asked)
        lines = [f"    {i + 1:>4}  {_said(self._asked[i])}" for i in range(max(0, at - AROUND), at)]
        later = sorted(position for position in self._recorded if position >= at)
        if at in self._recorded or asked is None:
            lines += [f"  - {i + 1:>4}  {_told(self._recorded[i])}" for i in later[:AROUND]]
        else:
            position = self._places[asked.name, asked.occurrence] if asked is not None else at
            lines.append(f"  - {position + 1:>4}  {_told(self._recorded[position])}")
        wanted = "the end of the workflow" if asked is None else _said(asked)
        lines.append(f"  + {at + 1:>4}  {wanted}")
        return "\n".join(
            (
                "the code no longer matches what this workflow has recorded (- recorded, + asked for now):",
                *lines,
                "Roll the code back and resume the task, or fork it from a step before the difference.",
            )
        )


def _said(place: Place) -> str:
    return place.name if place.occurrence == 1 else f"{place.name} ({place.occurrence})"


def _told(step: Step) -> str:
    named = step.name if step.occurrence == 1 else f"{step.name} ({step.occurrence})"
    return f"{named}, {step.state} in attempt {step.attempt}"
