"""Only the tasks that the engine makes for a job write the datasets of a DAG."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.datasets.world import World
from tests.kit.world import ok

from windlass import errors
from windlass.datasets.owned import OwnedDatasets

pytestmark = pytest.mark.slow


async def forged(world: World) -> dict[str, Any]:
    """The `wire` of a task of a source, as somebody could copy it."""
    task_id = await world.sources.emit("chain", "follow")
    view = await world.engine.tasks.get(task_id)
    assert view.wire is not None
    fields: dict[str, Any] = msgspec.json.decode(view.wire)
    return fields


async def test_a_task_submitted_by_hand_may_not_name_a_dataset_of_a_dag(world: World) -> None:
    await world.deploy()
    wire = await forged(world)
    world.engine.parts.submitter.checks.append(world.engine.service(OwnedDatasets).check)

    with pytest.raises(errors.DatasetOwned):
        await world.leases.submit(wire=wire)


async def test_events_of_a_task_submitted_by_hand_commit_nothing_and_wake_nobody(world: World) -> None:
    """Also where the submission was not checked, as in a transaction of the user."""
    await world.deploy()
    wire = await forged(world)
    await world.leases.queue("remote")
    holder = await world.leases.held(wire=wire)
    [output] = wire["outputs"]
    event = {"dataset_uuid": output["dataset_uuid"], "dataset_version": output["dataset_version"], "cursor": 9}

    ok(await holder.complete(events=[event]))
    await world.settle()

    assert await world.tasks("alert") == []
    async with world.engine.store.begin() as tx:
        rows = await tx.session.connection.fetch("select * from windlass.high_water")
        [row] = await tx.session.connection.fetch("select declared, routing from windlass.event")
    assert rows == []
    assert tuple(row) == (False, "undeclared")


async def test_a_dataset_of_no_dag_may_be_written_as_before(world: World) -> None:
    await world.deploy()
    world.engine.parts.submitter.checks.append(world.engine.service(OwnedDatasets).check)
    await world.leases.queue("remote")

    holder = await world.leases.writing()

    assert UUID(holder.reply["task"]["outputs"][0]["dataset_uuid"])


async def test_no_worker_claims_from_a_queue_of_the_server_and_nobody_submits_to_it(world: World) -> None:
    with pytest.raises(errors.Invalid, match="belong to Windlass"):
        await world.engine.open_lease("thief", ["windlass.dispatcher"])
    with pytest.raises(errors.Invalid, match="belong to Windlass"):
        await world.leases.submit(queue="windlass.dispatcher")
