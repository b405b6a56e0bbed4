"""The queues of runtimes (`platform`, `udf`): a deploy makes those that its file needs and that do not exist."""

from __future__ import annotations

from collections.abc import Collection

from windlass.core.delivery import decode_delivery
from windlass.core.queue import QueueConfig
from windlass.datasets.rules.dag import QUEUES_MADE
from windlass.datasets.rules.dag_form import Reading
from windlass.engine.engine import Engine


async def missing_queues(engine: Engine, reading: Reading, namespace: str) -> set[str]:
    """The queues that a deploy of a file has to make."""
    jobs = () if reading.dag is None else reading.dag.jobs
    return await _missing(engine, {job.queue_name for job in jobs if job.queue_name is not None}, namespace)


async def make_queues(engine: Engine, names: Collection[str], namespace: str = "default") -> None:
    """Make queues of runtimes, carried by PostgreSQL."""
    for name in sorted(names):
        trusted = "true" if name == "platform" else "false"
        delivery = decode_delivery(f'{{"type": "wakeup", "trusted": {trusted}}}')
        await engine.queues.put(name, namespace=namespace, delivery=delivery, limits=QueueConfig())


async def make_all_queues(engine: Engine, namespace: str = "default") -> None:
    """Make the queues of all runtimes, so that wrappers can wait for the first deploy."""
    await make_queues(engine, await _missing(engine, QUEUES_MADE, namespace), namespace)


async def _missing(engine: Engine, names: Collection[str], namespace: str) -> set[str]:
    wanted = QUEUES_MADE.intersection(names)
    return set(wanted - (await engine.queues.settings(namespace, sorted(wanted))).keys()) if wanted else set()
