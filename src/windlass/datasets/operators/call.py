"""What an operator of the server gets: the task's config, trigger and inputs, and the outputs that it may write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.states import Instant
from windlass.datasets.rules.events import EventReport
from windlass.errors import Invalid

RANGES_MAX = 10_000  # events of one task


class Call(msgspec.Struct, frozen=True):
    """One call of an operator. `cursor_from` is how far the job has read; `high_waters` has the highest cursor of each
    version that the task may write."""

    config: Mapping[str, Any]
    trigger: Mapping[str, Any]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    cursor_from: int | None
    high_waters: Mapping[UUID, int]
    now: Instant

    def number(self, name: str, default: int | None = None, *, least: int | None = None) -> int:
        """A whole number of the config."""
        value = self.config.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid("must be a whole number", field=f"config.{name}")
        if least is not None and value < least:
            raise Invalid(f"must be at least {least}", field=f"config.{name}")
        return value

    def ranges(self, first: int, last: int, size: int) -> list[EventReport]:
        """Events of the ranges of this size from `first` to `last`, for every output."""
        count = max(0, (last - first + 1) // size)
        if count > RANGES_MAX:
            raise Invalid(f"{count} ranges are more than {RANGES_MAX} for one task", field="config.range_size")
        starts = [first + place * size for place in range(count)]
        return [
            EventReport(
                UUID(output["dataset_uuid"]),
                UUID(output["dataset_version"]),
                None,
                f"{s}-{s + size - 1}",
                s,
                s + size - 1,
            )
            for output in self.outputs
            for s in starts
        ]
