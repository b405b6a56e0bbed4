"""The catalog of datasets over HTTP: who sees what, keys of partitions as they are, pages, reverts, lineage."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest
from tests.api.conftest import NewClient, client_of, problem
from tests.kit.datasets import settle

from windlass import Engine
from windlass.core.access import Role

pytestmark = pytest.mark.slow

D = "/api/v1/datasets"
FLOW = """\
name: flow
jobs:
  - name: ticks
    activation: source
    runtime: dispatcher
    operator: manual_source
    source: {kind: manual}
    outputs: 1
    update_strategy: replace
  - name: tables
    activation: reactive
    runtime: ecs_platform
    operator: o
    execution_strategy: PerPartition
    partitions: {kind: range, size: 10, start: 0}
    inputs: [{from: {dataset: raw}, where: "height > 7"}]
    outputs: 1
    update_strategy: replace
publish:
  raw: {from: {job: ticks}, storage: postgres, write_mode: direct, read_roles: ["*"]}
  fine:
    from: {job: tables}
    storage: postgres
    write_mode: direct
    read_roles: [analysts]
    schema: {columns: [{name: height, type: bigint}]}
"""


@pytest.fixture
async def flow(api: httpx.AsyncClient, engine: Engine) -> str:
    made = await api.post("/api/v1/dags/flow/versions", json={"yaml": FLOW})
    assert made.status_code == 201, made.text
    await settle(engine)
    return str(made.json()["id"])


async def emit(api: httpx.AsyncClient, engine: Engine, key: str, **span: int) -> None:
    """Commit a partition of `raw`."""
    made = await api.post("/api/v1/dags/flow/jobs/ticks/emit", json={"partition_key": key, **span})
    assert made.status_code == 201, made.text
    await settle(engine)


async def found(api: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def with_groups(engine: Engine, *groups: str, namespace: str = "default") -> httpx.AsyncClient:
    _, key = await engine.keys.create_key(name="k", role=Role.VIEWER, namespace=namespace, groups=groups)
    return client_of(engine, key)


async def test_a_dataset_is_shown_by_name_and_by_uuid(api: httpx.AsyncClient, engine: Engine, flow: str) -> None:
    shown = await found(api, f"{D}/fine")

    assert await found(api, f"{D}/{shown['dataset_uuid']}") == shown
    [version] = shown.pop("versions")
    assert version == {
        "dataset_version": shown["current_version"], "state": "current", "rows": None, "bytes": None,
        "created_at": version["created_at"],
    }  # fmt: skip
    assert shown == {
        "name": "fine", "dataset_uuid": str(UUID(shown["dataset_uuid"])), "namespace": "default", "dag": "flow",
        "job": "tables", "output_index": 0, "storage": "postgres", "write_mode": "direct", "description": "",
        "current_version": shown["current_version"], "cursor": None, "fresh": None, "read_roles": ["analysts"],
        "schema": shown["schema"], "retired": False,
        "location": f"postgres_table:windlass_data.v_{UUID(shown['current_version']).hex}",
    }  # fmt: skip
    assert shown["schema"]["columns"][0]["name"] == "height"
    await api.post("/api/v1/dags/flow/jobs/ticks/emit", json={"cursor": 7})
    await settle(engine)
    assert (await found(api, f"{D}/raw"))["cursor"] == 7


async def test_only_keys_with_a_group_and_admins_see_a_dataset(
    api: httpx.AsyncClient, engine: Engine, as_role: NewClient, flow: str
) -> None:
    id_ = (await found(api, f"{D}/fine"))["dataset_uuid"]
    for caller in (await as_role("operator"), await with_groups(engine, "writers")):
        assert [one["name"] for one in (await found(caller, D))["items"]] == ["raw"]
        for path in (f"{D}/fine", f"{D}/{id_}", f"{D}/fine/partitions", f"{D}/fine/coverage", f"{D}/fine/events"):
            refused = problem(await caller.get(path), 404, "not_found")
            unknown = (await caller.get(path.replace("fine", "none").replace(id_, str(UUID(int=7))))).json()
            assert refused["detail"].replace("fine", "none").replace(id_, str(UUID(int=7))) == unknown["detail"]
        problem(await caller.get("/api/v1/lineage", params={"dataset": "fine"}), 404, "not_found")
    for caller in (await as_role("admin"), await with_groups(engine, "analysts")):
        assert [one["name"] for one in (await found(caller, D))["items"]] == ["fine", "raw"]
        assert (await found(caller, f"{D}/{id_}"))["name"] == "fine"


async def test_a_key_of_another_namespace_finds_nothing(api: httpx.AsyncClient, as_role: NewClient, flow: str) -> None:
    id_ = (await found(api, f"{D}/raw"))["dataset_uuid"]
    stranger = await as_role("admin", "elsewhere")

    assert (await found(stranger, D))["items"] == []
    for path in (f"{D}/raw", f"{D}/{id_}", f"{D}/{id_}/partitions", f"{D}/{id_}/coverage", f"{D}/{id_}/events"):
        problem(await stranger.get(path), 404, "not_found")
        problem(await stranger.get(path, params={"namespace": "default"}), 403, "forbidden")
    problem(await stranger.post(f"{D}/{id_}/partitions/k/revert", json={"revision": 1}), 404, "not_found")
    problem(await stranger.get("/api/v1/lineage", params={"dataset": id_}), 404, "not_found")


async def test_an_admin_purges_a_version_that_no_deployment_needs(
    api: httpx.AsyncClient, engine: Engine, as_role: NewClient, flow: str
) -> None:
    version = (await found(api, f"{D}/fine"))["current_version"]
    path = f"{D}/fine/versions/{version}/purge"
    problem(await (await as_role("operator")).post(path), 403, "forbidden")
    refused = problem(await api.post(path), 409, "invalid_state")
    assert refused["detail"] == "version 1 of DAG flow needs this data: it is active"
    problem(await api.post(f"{D}/fine/versions/{UUID(int=7)}/purge"), 404, "not_found")
    problem(await api.post(f"{D}/fine/versions/first/purge"), 400, "malformed")
    assert (await found(api, f"{D}/fine"))["versions"][0]["state"] == "current"

    await api.delete("/api/v1/dags/flow")
    problem(await (await as_role("admin", "elsewhere")).post(path, params={"namespace": "default"}), 403, "forbidden")
    purged = await api.post(f"{D}/{(await found(api, f'{D}/fine'))['dataset_uuid']}/versions/{version}/purge")

    assert (purged.status_code, purged.json()["state"], purged.json()["dataset_version"]) == (200, "purged", version)
    assert (await api.post(path)).json() == purged.json()
    assert [one["state"] for one in (await found(api, f"{D}/fine"))["versions"]] == ["purged"]


@pytest.mark.parametrize(
    "key",
    ["a/b", "/", "//", "50%", "%2F", "a%2fb", "ä/日本?x=1#y", "a b+c", "..%2f", "x" * 500, "2026-01-31T05", "-1--1"],
)
async def test_any_key_of_a_partition_can_be_named_in_a_path(
    api: httpx.AsyncClient, engine: Engine, flow: str, key: str
) -> None:
    await emit(api, engine, key)
    path = f"{D}/raw/partitions/{quote(key, safe='')}"

    shown = await found(api, path)

    assert (shown["partition_key"], shown["revision"], shown["status"]) == (key, 1, "committed")
    reverted = await api.post(f"{path}/revert", json={"revision": 1})
    assert (reverted.status_code, reverted.json()["partition_key"]) == (200, key)
    assert [one["partition_key"] for one in (await found(api, f"{D}/raw/partitions"))["items"]] == [key]


async def test_a_key_that_no_partition_can_have_is_refused(api: httpx.AsyncClient, flow: str) -> None:
    for key in ("a%00b", "a%0Ab", "x" * 501):
        problem(await api.get(f"{D}/raw/partitions/{key}"), 422, "invalid")
    problem(await api.get(f"{D}/raw/partitions/none"), 404, "not_found")
    problem(await api.get(f"{D}/raw%00"), 400, "malformed")
    problem(await api.get(f"{D}/{'x' * 300}"), 400, "malformed")
    problem(await api.get(f"{D}/raw/partitions", params={"version": str(uuid4())}), 404, "not_found")


async def test_partitions_come_in_pages_with_cursors_of_their_own(
    api: httpx.AsyncClient, engine: Engine, flow: str
) -> None:
    for start in (20, 0, 10):
        await emit(api, engine, f"{start}-{start + 9}", start=start, end=start + 9)
    for key in ("日本" * 250, "b/%"):
        await emit(api, engine, key)
    keys: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = await found(api, f"{D}/raw/partitions", limit=1, **after)
        keys += [one["partition_key"] for one in page["items"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}

    assert keys == ["0-9", "10-19", "20-29", "b/%", "日本" * 250]
    first = (await found(api, f"{D}/raw/partitions"))["items"][0]
    assert (first["start"], first["end"], first["inputs"]) == (0, 9, [])
    running = (await found(api, f"{D}/fine/partitions", status="running,failed"))["items"]
    assert [one["partition_key"] for one in running] == keys
    assert (await found(api, f"{D}/fine/partitions", status="committed"))["items"] == []
    problem(await api.get(f"{D}/raw/partitions", params={"after": "AA"}), 400, "malformed")
    problem(await api.get(f"{D}/raw/partitions", params={"status": "lost"}), 400, "malformed")


async def test_coverage_is_in_pairs(api: httpx.AsyncClient, engine: Engine, flow: str) -> None:
    for start in (0, 10, 50):
        await emit(api, engine, f"{start}-{start + 9}", start=start, end=start + 9)

    assert await found(api, f"{D}/raw/coverage") == {
        "committed": [[0, 19], [50, 59]], "missing": [], "failed": [], "truncated": False
    }  # fmt: skip
    assert (await found(api, f"{D}/fine/coverage"))["missing"] == [[0, 19], [50, 59]]


async def test_events_name_their_tasks(api: httpx.AsyncClient, engine: Engine, flow: str) -> None:
    for start in (0, 10, 20):
        await emit(api, engine, f"{start}-{start + 9}", start=start, end=start + 9)

    first = await found(api, f"{D}/raw/events", limit=2)
    rest = await found(api, f"{D}/raw/events", limit=2, after=first["next"])

    events = [*first["items"], *rest["items"]]
    assert {one["partition_key"] for one in events} == {"0-9", "10-19", "20-29"}
    assert (len(events), rest["next"]) == (3, None)
    for event in events:
        assert (event["routing"], event["revision"]) == ("routed", 1)
        [task_id] = event["tasks"]
        assert (await found(api, f"/api/v1/tasks/{task_id}"))["queue"] == "platform"


async def test_a_revert_needs_an_operator_and_a_revision(
    api: httpx.AsyncClient, engine: Engine, as_role: NewClient, flow: str
) -> None:
    for _ in range(2):
        await emit(api, engine, "0-9", start=0, end=9)
    path, order = f"{D}/raw/partitions/0-9/revert", {"revision": 1}

    problem(await (await as_role("submitter")).post(path, json=order), 403, "forbidden")
    problem(await api.post(path, json={}), 422, "invalid")
    problem(await api.post(path, json={"revision": 0}), 422, "invalid")
    problem(await api.post(path, json={"revision": 3}), 404, "not_found")
    made = (await (await as_role("operator")).post(path, json=order)).json()
    assert (made["revision"], [one["revision"] for one in made["revisions"]]) == (3, [3, 2, 1])
    assert made["revisions"][0]["task_id"] == made["revisions"][2]["task_id"]


async def test_lineage_has_nodes_and_edges(api: httpx.AsyncClient, engine: Engine, flow: str) -> None:
    raw, fine = (await found(api, f"{D}/raw")), (await found(api, f"{D}/fine"))

    assert await found(api, "/api/v1/lineage", dataset="raw", direction="down") == {
        "nodes": [
            {"id": one["dataset_uuid"], "kind": "dataset", "name": one["name"], "dag": "flow",
             "dataset_uuid": one["dataset_uuid"], "dataset_version": one["current_version"]}
            for one in (raw, fine)
        ] + [{"id": "flow/tables", "kind": "job", "name": "tables", "dag": "flow"}],
        "edges": [
            {"from": raw["dataset_uuid"], "to": "flow/tables", "where": "height > 7"},
            {"from": "flow/tables", "to": fine["dataset_uuid"]},
        ],
    }  # fmt: skip
    viewer = await with_groups(engine)
    seen = await found(viewer, "/api/v1/lineage", dataset="raw")
    assert {node["name"] for node in seen["nodes"]} == {"raw", "ticks", "tables"}
    assert fine["dataset_uuid"] not in str(seen)
    problem(await api.get("/api/v1/lineage", params={"dataset": "raw", "depth": 0}), 400, "malformed")
    problem(await api.get("/api/v1/lineage"), 400, "malformed")
