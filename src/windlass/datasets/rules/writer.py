"""What a task may write, from the `wire` of its submission: its datasets, how each is kept, and its inputs.

Only tasks that the engine made for a job write to the datasets of a DAG. This module does not know what was written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import msgspec

from windlass.datasets.rules.partition import Scheme

BUFFERED = "buffered"  # the write mode of datasets whose rows are published in batches
LAKE = "s3"  # the storage of datasets whose files are in the lake, whatever store that is
_PROVENANCE = ("index", "dataset_uuid", "dataset_version", "partition_key", "revision", "cursor_to")

Outputs = dict[UUID, UUID]  # the datasets that a task may write, each with its version


class OutputPlace(msgspec.Struct, frozen=True):
    """An output of a task: its number, and how its data is kept."""

    output_index: int
    storage: str
    write_mode: str | None = None


class Production(msgspec.Struct, frozen=True):
    """What a task of a DAG makes and from what: each dataset that it writes, its inputs, its deployment, and the
    partitions that its job declares. `partitions` is JSON; its loader adds the `scheme`, which may need a time
    zone."""

    places: Mapping[UUID, OutputPlace]
    inputs: str
    deployment_id: UUID
    partitions: bytes | None = None
    scheme: Scheme | None = None

    def in_lake(self, dataset_uuid: UUID) -> bool:
        place = self.places.get(dataset_uuid)
        return place is not None and place.storage == LAKE

    def by_sink(self, dataset_uuid: UUID) -> bool:
        """Whether only sinks know how far the dataset reaches: its rows are published in batches."""
        place = self.places.get(dataset_uuid)
        return place is not None and place.write_mode == BUFFERED


class Writer(msgspec.Struct, frozen=True):
    """A task that writes datasets: the attempt whose lease is live (0 if it has expired), the datasets that it may
    write, and what it makes if it is a task of a DAG. Not `live`: it was cancelled, and its job is in no live
    deployment."""

    attempt: int
    outputs: Outputs
    production: Production | None = None
    live: bool = True

    @classmethod
    def of(cls, attempt: int | None, wire: bytes | None, job_id: UUID | None, live: bool = True) -> Writer:
        """From the `wire` of a task. The client writes the `wire` of the tasks that it submits, so only a task that the
        engine made for a job belongs to a DAG."""
        return cls(attempt or 0, outputs_of(wire), None if job_id is None else production_of(wire), live)

    def without(self, datasets: Collection[UUID]) -> Writer:
        """The same, without the right to write these datasets."""
        kept = {id_: version for id_, version in self.outputs.items() if id_ not in datasets}
        return Writer(self.attempt, kept, self.production, self.live)


NO_WRITER = Writer(0, {})


class _Output(msgspec.Struct, frozen=True):
    dataset_uuid: UUID
    dataset_version: UUID


class _Wire(msgspec.Struct, frozen=True):
    outputs: list[_Output] = []


_decode_wire = msgspec.json.Decoder(_Wire).decode


def production_of(wire: bytes | None) -> Production | None:
    """What a task of a DAG makes, from its `wire`. None for other tasks."""
    fields: dict[str, Any] = {} if wire is None else msgspec.json.decode(wire)
    if "dag_version" not in fields:
        return None
    places = {
        UUID(output["dataset_uuid"]): OutputPlace(output["output_index"], output["storage"], output["write_mode"])
        for output in fields["outputs"]
    }
    partitions = None if fields.get("partitions") is None else msgspec.json.encode(fields["partitions"])
    made_from = [
        {name: given[name] for name in _PROVENANCE if given.get(name) is not None} for given in fields["inputs"]
    ]
    return Production(places, msgspec.json.encode(made_from).decode(), UUID(fields["dag_version"]), partitions)


def outputs_of(wire: bytes | None) -> Outputs:
    """The datasets that a task may write (`wire.outputs` of its submission). Unreadable outputs allow nothing."""
    try:
        return {} if wire is None else {o.dataset_uuid: o.dataset_version for o in _decode_wire(wire).outputs}
    except msgspec.DecodeError:
        return {}
