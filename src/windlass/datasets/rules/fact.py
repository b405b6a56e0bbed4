"""What a DAG file is checked against: the namespace that it is deployed to.

Values that a caller loads from the store. Entries that belong to the DAG itself are ignored, so that a caller may load
all of the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from windlass.datasets.rules.dag import OnUpgrade, Partitioning, Storage
from windlass.datasets.rules.schema import DatasetSchema


class KnownDataset(msgspec.Struct, frozen=True):
    """A published dataset of the namespace. `readable` is whether the caller may read it: a dataset that it may not
    read does not exist for it, but its name is taken."""

    dag: str
    dataset_uuid: UUID
    storage: Storage = Storage.S3
    schema: DatasetSchema | None = None
    partitions: Partitioning | None = None
    readable: bool = True


class OtherInput(msgspec.Struct, frozen=True):
    """An input of a job in the active deployment of another DAG."""

    dataset_uuid: UUID
    where: str | None = None
    trigger: bool = True
    on_upgrade: OnUpgrade = OnUpgrade.REPROCESS


class OtherJob(msgspec.Struct, frozen=True):
    """A job in the active deployment of another DAG: the datasets that it reads and writes, also those of its own DAG,
    since a cycle may lead through them."""

    dag: str
    job: str
    inputs: tuple[OtherInput, ...] = ()
    outputs: tuple[UUID, ...] = ()


class KnownQueue(msgspec.Struct, frozen=True):
    """A queue of the namespace: the type of its delivery, whether its workers are trusted, and the secrets that it
    names."""

    delivery: str
    trusted: bool = True
    secrets: tuple[str, ...] = ()


class Facts(msgspec.Struct, frozen=True):
    """The namespace: datasets and queues by name, jobs of other DAGs, and paths of webhooks with the DAG of each."""

    namespace: str
    datasets: Mapping[str, KnownDataset] = msgspec.field(default_factory=dict)
    jobs: tuple[OtherJob, ...] = ()
    queues: Mapping[str, KnownQueue] = msgspec.field(default_factory=dict)
    webhooks: Mapping[str, str] = msgspec.field(default_factory=dict)

    def foreign(self, dag: str, name: str) -> KnownDataset | None:
        """A dataset of another DAG than this."""
        found = self.datasets.get(name)
        return None if found is None or found.dag == dag else found

    def readable(self, dag: str, name: str) -> KnownDataset | None:
        """A dataset of another DAG that the caller may read."""
        found = self.foreign(dag, name)
        return found if found and found.readable else None
