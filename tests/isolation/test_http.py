"""Every route of our own API × every role × the own namespace and another, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from tests.isolation.subject import ELSEWHERE, ROLES, SECRET, VICTIM, Unbuildable, Victim, requests

from windlass.api.app import ROUTES, make_api
from windlass.api.framework.route import Route
from windlass.core.access import Role

NO_STREAM = {"Last-Event-ID": "x"}  # is refused, where a stream would begin
OPEN = {"/livez", "/readyz"}


@dataclass(frozen=True)
class Request:
    """`names`: something of the victim's, by its id or by its namespace."""

    route: Route
    path: str
    query: dict[str, Any]
    body: Any
    names: bool

    def __str__(self) -> str:
        return f"{self.route.method} {self.path} {self.query or ''} {self.body or ''}"


def requests_of(world: Victim, route: Route) -> Iterator[Request]:
    """All that name something of the victim's, and one that names as little as it may."""
    path, by_id = route.path, False
    for name in re.findall(r"{(\w+)}", route.path):
        if name in world.ids:
            path, by_id = path.replace(f"{{{name}}}", str(world.ids[name])), True
        elif name == "name":
            value = VICTIM if "/namespaces/" in route.path else world.values["queue"]
            path, by_id = path.replace("{name}", value), by_id or value == VICTIM
        elif name == "namespace":
            path, by_id = path.replace("{namespace}", VICTIM), True
        elif name in world.values:  # a name, which others may have in their own namespace
            path = path.replace(f"{{{name}}}", world.values[name])
        else:
            raise Unbuildable(
                f"{route.method} {route.path}: the matrix has no value for {name!r}: add one in `populated`"
            )
    queries = list(requests(world, route.query)) if route.query is not None else [({}, False)]
    bodies = list(requests(world, route.body)) if route.body is not None else [(None, False)]
    for number, (query, in_query) in enumerate(queries):
        for body, in_body in bodies if number == 0 else bodies[:1]:
            yield Request(route, path, query, body, by_id or in_query or in_body)


class Caller:
    def __init__(self, world: Victim, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(make_api(world.engine), raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://windlass", headers=headers | NO_STREAM)

    async def send(self, said: Request) -> httpx.Response:
        body = {"content": said.body} if isinstance(said.body, bytes) else {"json": said.body}
        if said.body is None:
            body = {}
        return await self._http.request(said.route.method, said.path, params=said.query, **body)


def test_a_route_whose_request_cannot_be_made_is_named() -> None:
    world = Victim(None, {}, {}, {}, None)  # type: ignore[arg-type]
    [route] = [route for route in ROUTES if route.path == "/api/v1/tasks/{task_id}" and route.method == "GET"]

    with pytest.raises(Unbuildable, match=r"GET /api/v1/tasks/{task_id}: the matrix has no value for 'task_id'"):
        list(requests_of(world, route))


async def test_nobody_gets_in_without_a_key_or_with_a_credential_of_another_kind(world: Victim) -> None:
    wrong = []
    lease, jwt = str(world.token), "eyJhbGciOiJIUzI1NiJ9.e30.c2lnbmF0dXJl"
    for key in (None, "wl_unknown", lease, jwt):
        caller = Caller(world, key)
        for route in ROUTES:
            for said in requests_of(world, route):
                answer = await caller.send(said)
                if route.path not in OPEN and answer.status_code != 401:
                    wrong.append(f"{said}: {answer.status_code} for {key}")
    assert not wrong, "\n".join(wrong)


async def test_no_role_reaches_another_namespace(world: Victim) -> None:
    before, wrong = await world.rows(), []
    for role in ROLES:
        caller = Caller(world, world.keys[ELSEWHERE, role])
        for route in ROUTES:
            for said in requests_of(world, route):
                answer = await caller.send(said)
                if (problem := _wrong(said, role, answer)) is not None:
                    wrong.append(f"{role}: {said}: {problem}: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert await world.rows() == before


def _wrong(said: Request, role: Role, answer: httpx.Response) -> str | None:
    if SECRET in answer.text and SECRET not in str(said):
        return "tells of the victim"
    if answer.status_code >= 500:
        return f"is a defect, {answer.status_code}"
    if not _may(role, said.route):
        return None if answer.status_code == 403 else f"is not refused for its role, {answer.status_code}"
    told = answer.json() if said.names and answer.status_code < 400 else {"items": []}
    if [] not in (told.get("items"), told.get("task_ids")):  # a filter that finds nothing tells nothing
        return f"names the victim and is answered, {answer.status_code}"
    return None


async def test_each_role_reaches_its_own_namespace_as_far_as_it_may(world: Victim) -> None:
    wrong, world.own = [], VICTIM
    for role in ROLES:
        caller = Caller(world, world.keys[VICTIM, role])
        for route in sorted(ROUTES, key=lambda route: route.method in ("DELETE", "POST")):
            for said in requests_of(world, route):
                answer = await caller.send(said)
                barred = answer.status_code in (401, 403)
                everywhere = barred and "to all namespaces" in answer.text  # a key that is bound cannot do it at all
                if answer.status_code >= 500 or (barred and not everywhere) is _may(role, route):
                    wrong.append(f"{role}: {said}: {answer.status_code} {answer.text[:200]}")
                if role is Role.VIEWER and route.role is role and said.names and answer.status_code == 404:
                    wrong.append(f"{role}: {said}: is not found, so that the matrix proves nothing")
    assert not wrong, "\n".join(wrong)


def _may(role: Role, route: Route) -> bool:
    return route.role is None or ROLES.index(role) >= ROLES.index(route.role)
