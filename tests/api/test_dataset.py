"""What tasks have told of datasets, over HTTP."""

from __future__ import annotations

from uuid import UUID

import httpx
import msgspec
import pytest
from tests.api.conftest import NewClient, problem

from windlass import Engine, Submission
from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.rules import Caller, LeaseCredential
from windlass.core.queue import QueueConfig
from windlass.datasets.rules.events import BatchReport, EventReport

DATASET, VERSION = UUID(int=1), UUID(int=2)
CALLER = Caller("CN=wrapper", "ab" * 32)


@pytest.fixture
async def credential(engine: Engine) -> LeaseCredential:
    """A task that is held, and may write a dataset."""
    await engine.queues.put("remote", delivery=Wakeup(carrier="postgres"), limits=QueueConfig())
    wire = {"outputs": [{"dataset_uuid": str(DATASET), "dataset_version": str(VERSION)}]}
    task_id = await engine.submit(Submission(kind="job", queue="remote", wire=msgspec.json.encode(wire)))
    held = await engine.service(Holders).claim(task_id, "worker", CALLER)
    assert isinstance(held, Held)
    return LeaseCredential(task_id, attempt=1, token=held.task.lease_id, caller=CALLER)


async def test_events_and_batches_are_listed_oldest_first_in_pages_that_lose_and_repeat_nothing(
    api: httpx.AsyncClient, engine: Engine, credential: LeaseCredential
) -> None:
    events = tuple(EventReport(DATASET, VERSION, cursor) for cursor in range(5))
    await engine.service(Holders).emit(credential, (*events, EventReport(DATASET, VERSION, None, "1-2", 1, 2)))
    for number in range(3):
        batch = BatchReport(DATASET, VERSION, f"s3://b/{number}", number)
        await engine.service(Holders).publish(credential, batch, ("s3://b/",))

    for name, total in (("events", 6), ("publishes", 3)):
        path, after, found = f"/api/v1/tasks/{credential.task_id}/{name}", None, []
        while True:
            page = (await api.get(path, params={"limit": 2, **({"after": after} if after else {})})).json()
            found += page["items"]
            after = page["next"]
            if after is None:
                break
        assert len({one["id"] for one in found}) == len(found) == total
        assert {one["caller"] for one in found} == {"ab" * 32}
    assert {one["record_count"] for one in found} == {0, 1, 2}
    [partition] = [
        one
        for one in (await api.get(f"/api/v1/tasks/{credential.task_id}/events")).json()["items"]
        if one["partition_key"] is not None
    ]
    assert (partition["partition_key"], partition["start"], partition["end"]) == ("1-2", 1, 2)


async def test_they_are_told_to_those_whose_namespace_it_is(
    api: httpx.AsyncClient, as_role: NewClient, credential: LeaseCredential
) -> None:
    for name in ("events", "publishes"):
        path = f"/api/v1/tasks/{credential.task_id}/{name}"
        problem(await (await as_role("admin", "theirs")).get(path), 403, "forbidden")
        problem(await api.get(path, params={"after": "rubbish"}), 400, "malformed")
        problem(await api.get(path.replace(str(credential.task_id), str(UUID(int=9)))), 404, "not_found")
