"""Loads what a DAG file is checked against: the datasets, jobs, queues and webhooks of its namespace."""

from __future__ import annotations

from uuid import UUID

import msgspec

from windlass.core.access import Principal
from windlass.core.delivery import type_of
from windlass.datasets.rules.dag import OnUpgrade, Storage
from windlass.datasets.rules.fact import Facts, KnownDataset, KnownQueue, OtherInput, OtherJob
from windlass.datasets.rules.schema import DatasetSchema
from windlass.datasets.tables.dags import DagTable
from windlass.datasets.tables.jobs import decode_job
from windlass.store.transaction import Transaction


async def load_facts(tx: Transaction, namespace: str, dag: str, caller: Principal) -> Facts:
    """What a file is checked against, as far as its deployer may read it."""
    dags = DagTable(tx.session)
    queues = await tx.queues.get_settings(namespace, None)
    edges: dict[tuple[str, str], list[OtherInput]] = {}
    for edge in await dags.outside_edges(namespace, dag):
        on_upgrade = OnUpgrade.CONTINUE if edge.continues else OnUpgrade.REPROCESS
        given = OtherInput(edge.dataset_uuid, edge.condition, edge.trigger, on_upgrade)
        edges.setdefault((edge.dag, edge.job), []).append(given)
    writes: dict[tuple[str, str], list[UUID]] = {}
    for other, job, dataset_uuid in await dags.outside_writes(namespace, dag):
        writes.setdefault((other, job), []).append(dataset_uuid)
    return Facts(
        namespace,
        {
            known.name: KnownDataset(
                known.dag, known.id, Storage(known.storage),
                None if known.schema is None else msgspec.json.decode(known.schema, type=DatasetSchema),
                None if known.definition is None else decode_job(known.definition).output_partitions,
                known.readable,
            )
            for known in await dags.named_datasets(namespace, caller)
        },
        tuple(
            OtherJob(*place, tuple(edges.get(place, ())), tuple(writes.get(place, ())))
            for place in sorted(edges.keys() | writes.keys())
        ),
        {
            name: KnownQueue(
                type_of(settings.delivery), getattr(settings.delivery, "trusted", True),
                tuple(getattr(settings.delivery, "secrets", ())),
            )
            for name, settings in queues.items()
        },
        await dags.webhooks(namespace),
    )  # fmt: skip
