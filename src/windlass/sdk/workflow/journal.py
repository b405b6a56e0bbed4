"""The recorded steps of a workflow, compared with the steps that its code calls, in the order of the calls.

Pure. Owns one rule: at each place the code must call the step that is recorded there. Places depend on the code alone,
so concurrent steps differ by the order of their calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from windlass.core.step import FIRST, Place, Step, StepKind
from windlass.sdk.workflow.exits import CodeMismatch

CONTEXT_LINES = 3


class Journal:
    """The recorded steps of one workflow, and the places that the code of this attempt has reached."""

    def __init__(self, task_id: UUID, steps: Sequence[Step] = ()) -> None:
        self.origin = task_id
        self._recorded: dict[int, Step] = {}
        self._positions: dict[tuple[str, int], int] = {}
        self._counts: dict[str, int] = {}
        self._places: list[Place] = []
        for step in steps:
            if step.kind is StepKind.ORIGIN:
                self.origin = UUID(msgspec.json.decode(step.result or b"null"))
            elif step.position > FIRST:
                self._recorded[step.position] = step
                self._positions[step.name, step.occurrence] = step.position

    def next(self, kind: StepKind, name: str) -> tuple[Place, Step | None]:
        """The next place of the code, and the step recorded there. Raises CodeMismatch if that is another step."""
        place = self._place(name)
        existing = self._recorded.get(place.position)
        elsewhere = self._positions.get((name, place.occurrence), place.position) != place.position
        matches = existing is None or (existing.name, existing.occurrence, existing.kind) == (
            name, place.occurrence, kind,
        )  # fmt: skip
        if not matches or elsewhere:
            raise CodeMismatch(self._difference(place))
        self._places.append(place)
        return place, existing

    def next_value(self, name: str) -> int:
        """A place for a value that needs no record, since it can be computed again: the number of this call."""
        place = self._place(name)
        if place.position in self._recorded:
            raise CodeMismatch(self._difference(place))
        self._places.append(place)
        return place.occurrence

    def end(self) -> None:
        """The code has ended. Raises CodeMismatch if a step is recorded that it never called."""
        if any(position >= len(self._places) for position in self._recorded):
            raise CodeMismatch(self._difference(None))

    def _place(self, name: str) -> Place:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return Place(len(self._places), name, count)

    def _difference(self, called: Place | None) -> str:
        """The places around the first difference, in the form of a diff. `called` is None at the end of the code."""
        at = len(self._places)
        lines = [f"    {i + 1:>4}  {_label(self._places[i])}" for i in range(max(0, at - CONTEXT_LINES), at)]
        if at in self._recorded or called is None:
            shown = sorted(position for position in self._recorded if position >= at)[:CONTEXT_LINES]
        else:
            shown = [self._positions[called.name, called.occurrence]]
        for position in shown:
            step = self._recorded[position]
            lines.append(f"  - {position + 1:>4}  {_label(step)}, {step.state} in attempt {step.attempt}")
        lines.append(f"  + {at + 1:>4}  {'the end of the workflow' if called is None else _label(called)}")
        return "\n".join(
            (
                "the code no longer matches the recorded steps of this workflow (- recorded, + called now):",
                *lines,
                "Roll the code back and resume the task, or fork it from a step before the difference.",
            )
        )


def _label(place: Place | Step) -> str:
    return place.name if place.occurrence == 1 else f"{place.name} ({place.occurrence})"
