"""Who is let in: keys, roles, namespaces. The matrix is made from the table of routes, so that a new route is in it."""

from __future__ import annotations

import re

import httpx
import pytest
from tests.api.conftest import NewClient, client_of, problem
from tests.api.test_task import submit

from windlass import Engine
from windlass.api.app import ROUTES
from windlass.api.framework.route import Route
from windlass.core.access import Role
from windlass.engine.manage.keys import REMEMBER_S

GUARDED = [route for route in ROUTES if route.role is not None]
NO_ID = "0190f5fe-7c00-7a00-8000-000000000000"
RANK = list(Role)


def path_of(route: Route) -> str:
    return re.sub(r"{\w+}", NO_ID, route.path)


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


async def test_only_health_is_open() -> None:
    assert {route.path for route in ROUTES if route.role is None} == {"/livez", "/readyz"}


async def test_every_route_of_the_document_is_401_without_a_key(
    nobody: httpx.AsyncClient, api: httpx.AsyncClient
) -> None:
    document = (await api.get("/api/v1/openapi.json")).json()
    tried = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if operation.get("security") == []:
                continue
            response = await nobody.request(method, re.sub(r"{\w+}", NO_ID, path))
            problem(response, 401, "unauthenticated")
            assert response.headers["www-authenticate"] == "Bearer"
            tried += 1
    assert tried == len(GUARDED)
    problem(await nobody.get("/api/v1/openapi.json"), 401, "unauthenticated")


async def test_a_wrong_key_is_401(nobody: httpx.AsyncClient) -> None:
    for header in (
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic cm9vdA==",
        b"Bearer wrong",
        b"Bearer a b",
        b"wl_x",
        b"Bearer \xff",
    ):
        problem(await nobody.get("/api/v1/tasks", headers={"Authorization": header}), 401, "unauthenticated")


@pytest.mark.parametrize("role", Role)
async def test_a_role_opens_just_the_routes_that_it_should(as_role: NewClient, role: Role) -> None:
    client = await as_role(role)
    opened = {}
    for route in GUARDED:
        # Neither is right, so that nothing is done and no stream begins; who is let in is told that.
        response = await client.request(route.method, path_of(route), content=b"{", headers={"Last-Event-ID": "x"})
        forbidden = response.status_code == 403 and response.json().get("details", {}).get("role") == route.role
        opened[name_of(route)] = not forbidden

    assert opened == {name_of(r): RANK.index(role) >= RANK.index(r.role or Role.VIEWER) for r in GUARDED}


async def test_a_key_sees_nothing_of_another_namespace(api: httpx.AsyncClient, as_role: NewClient) -> None:
    theirs = await submit(api, namespace="theirs")
    ours = await as_role(Role.ADMIN, "ours")

    task = f"/api/v1/tasks/{theirs['id']}"
    for method, path in [("GET", task), ("GET", f"{task}/history"), ("GET", f"{task}/why-waiting"),
                         ("POST", f"{task}/cancel"), ("POST", f"{task}/retry")]:  # fmt: skip
        problem(await ours.request(method, path), 403, "forbidden")
    problem(await ours.get("/api/v1/tasks", params={"namespace": "theirs"}), 403, "forbidden")
    problem(await ours.post("/api/v1/tasks", json={"kind": "k", "namespace": "theirs"}), 403, "forbidden")
    problem(await ours.post("/api/v1/tasks/replay", json={"namespace": "theirs"}), 403, "forbidden")
    batch = {"tasks": [{"kind": "k"}, {"kind": "k", "namespace": "theirs"}]}
    problem(await ours.post("/api/v1/tasks/batch", json=batch), 403, "forbidden")
    assert (await ours.get("/api/v1/tasks")).json()["items"] == []
    assert (await submit(ours))["namespace"] == "ours"


async def test_the_same_idempotency_key_in_two_namespaces_is_two_tasks(as_role: NewClient) -> None:
    one, other = await as_role("submitter", "one"), await as_role("submitter", "other")

    assert (await submit(one, idempotency_key="k"))["id"] != (await submit(other, idempotency_key="k"))["id"]


# --------------------------------------------------------------------------------------------- keys


async def test_a_key_is_told_once_and_works_until_it_is_revoked(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await api.post("/api/v1/keys", json={"name": "ci", "role": "submitter"})
    assert made.status_code == 201
    key, secret = made.json()["key"], made.json()["secret"]
    assert (key["name"], key["role"], key["namespace"], key["revoked_at"]) == ("ci", "submitter", "default", None)
    assert secret.startswith(key["hint"])

    async with client_of(engine, secret) as client:
        await submit(client)
        listed = await api.get("/api/v1/keys")
        assert listed.json() == {"items": [key], "next": None}
        assert secret not in listed.text
        revoked = (await api.delete(f"/api/v1/keys/{key['id']}")).json()
        assert revoked["revoked_at"] is not None
        problem(await client.get("/api/v1/tasks"), 401, "unauthenticated")
        assert (await api.delete(f"/api/v1/keys/{key['id']}")).json() == revoked


async def test_a_key_has_the_groups_that_it_was_made_with(api: httpx.AsyncClient, engine: Engine) -> None:
    made = await api.post(
        "/api/v1/keys", json={"name": "ci", "role": "viewer", "groups": ["writers", "analysts", "writers"]}
    )

    assert made.json()["key"]["groups"] == ["analysts", "writers"]
    [listed] = (await api.get("/api/v1/keys")).json()["items"]
    assert listed["groups"] == ["analysts", "writers"]
    assert (await engine.keys.identify(made.json()["secret"])).groups == ("analysts", "writers")
    assert (await api.delete(f"/api/v1/keys/{listed['id']}")).json()["groups"] == ["analysts", "writers"]
    problem(await api.post("/api/v1/keys", json={"name": "ci", "role": "viewer", "groups": [""]}), 422, "invalid")


async def test_a_key_without_a_namespace_is_for_that_of_its_maker(api: httpx.AsyncClient, as_role: NewClient) -> None:
    order = {"name": "ci", "role": "viewer"}
    theirs = await as_role("admin", "acme")
    assert (await theirs.post("/api/v1/keys", json=order)).json()["key"]["namespace"] == "acme"
    problem(await theirs.post("/api/v1/keys", json={**order, "namespace": "default"}), 403, "forbidden")
    problem(await theirs.post("/api/v1/keys", json={**order, "namespace": None}), 403, "forbidden")
    assert (await api.post("/api/v1/keys", json={**order, "namespace": None})).json()["key"]["namespace"] is None
    assert (await api.post("/api/v1/keys", json=order)).json()["key"]["namespace"] == "default"


async def test_the_database_knows_only_hashes(api: httpx.AsyncClient, other_connection: object) -> None:
    secret = (await api.post("/api/v1/keys", json={"name": "ci", "role": "viewer"})).json()["secret"]

    kept = await other_connection.fetchval("select k::text from windlass.api_key k")  # type: ignore[attr-defined]
    assert secret not in kept
    assert secret.encode().hex() not in kept


async def test_a_key_revoked_elsewhere_is_dead_within_seconds(engine: Engine, database: str) -> None:
    from windlass.engine.manage.keys import Keys

    now = 0.0
    here = Keys(engine.store, engine.parts.randomness, stopwatch=lambda: now)
    key, secret = await engine.keys.create_key(name="k", role=Role.VIEWER, namespace=None)
    assert (await here.identify(secret)).name == "k"

    await engine.keys.revoke_key(key.id)
    now = REMEMBER_S + 0.001
    with pytest.raises(Exception, match="unknown or was revoked"):
        await here.identify(secret)


async def test_keys_are_listed_page_by_page(api: httpx.AsyncClient) -> None:
    for number in range(5):
        await api.post("/api/v1/keys", json={"name": f"k{number}", "role": "viewer"})

    first = (await api.get("/api/v1/keys", params={"limit": 3})).json()
    rest = (await api.get("/api/v1/keys", params={"limit": 3, "after": first["next"]})).json()
    assert [key["name"] for key in first["items"] + rest["items"]] == ["k4", "k3", "k2", "k1", "k0"]
    assert rest["next"] is None


async def test_an_admin_of_a_namespace_hands_out_keys_for_it_only(api: httpx.AsyncClient, as_role: NewClient) -> None:
    elsewhere = (await api.post("/api/v1/keys", json={"name": "x", "role": "viewer", "namespace": "b"})).json()["key"]
    admin = await as_role("admin", "a")

    for namespace in ("b", None):
        body = {"name": "k", "role": "viewer", "namespace": namespace}
        problem(await admin.post("/api/v1/keys", json=body), 403, "forbidden")
    problem(await admin.delete(f"/api/v1/keys/{elsewhere['id']}"), 403, "forbidden")
    problem(await admin.get("/api/v1/keys", params={"namespace": "b"}), 403, "forbidden")
    assert [key["namespace"] for key in (await admin.get("/api/v1/keys")).json()["items"]] == ["a"]
    assert (await admin.post("/api/v1/keys", json={"name": "k", "role": "admin", "namespace": "a"})).status_code == 201


async def test_a_key_needs_a_name_and_a_role(api: httpx.AsyncClient) -> None:
    for body in (
        {},
        {"name": "k"},
        {"name": "", "role": "viewer"},
        {"name": "k", "role": "god"},
        {"name": 1, "role": 1},
    ):
        problem(await api.post("/api/v1/keys", json=body), 422, "invalid")
