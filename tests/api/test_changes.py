"""The live feed over a real socket: what happens is told, once each, across breaks and overlapping transactions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import pytest
from tests.api.conftest import NewClient, problem
from tests.api.test_task import fail, submit
from tests.kit.work import CRASH, soon, waits_for, worker
from tests.kit.world import ROOT

from windlass import Engine
from windlass.api.routes import changes as feed
from windlass.core.access import Role
from windlass.net.server import limits
from windlass.net.server.server import listening
from windlass.serve import open_server

pytestmark = pytest.mark.slow

Event = tuple[str, dict[str, Any]]


@pytest.fixture
async def web(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ROOT}"}, timeout=60) as client:
        yield client


class Reader:
    """Reads events; `position` is what a browser would send as Last-Event-ID."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines, self.position, self.signs = lines, "", 0

    async def next(self) -> dict[str, Any]:
        fields: dict[str, str] = {}
        async for line in self._lines:
            if line.startswith(":"):
                self.signs += 1
            elif line:
                name, _, value = line.partition(": ")
                fields[name] = value
            else:
                self.position = fields.get("id", self.position)
                if "data" in fields:
                    assert fields["event"] == "change"
                    data: dict[str, Any] = json.loads(fields["data"])
                    return data
                fields = {}
        raise EOFError

    async def take(self, count: int) -> list[dict[str, Any]]:
        return [await soon(self.next()) for _ in range(count)]

    async def sign(self) -> None:
        """Until the next sign of life; an event before it is a mistake."""
        async for line in self._lines:
            assert not line.startswith("data"), line
            if line.startswith("id: "):
                self.position = line[4:]
            elif not line:
                return


@asynccontextmanager
async def follow(web: httpx.AsyncClient, after: str | None = None, **query: str) -> AsyncIterator[Reader]:
    headers = {} if after is None else {"Last-Event-ID": after}
    async with web.stream("GET", "/api/v1/changes", headers=headers, params=query) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = Reader(response.aiter_lines())
        await soon(reader.sign())
        yield reader


def states(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(event["state"], event["attempt"]) for event in events]


async def test_the_life_of_a_task_is_told_as_it_happens(web: httpx.AsyncClient, engine: Engine) -> None:
    async with follow(web) as reader:
        task = await submit(web)
        await fail(engine, failure=CRASH)
        await web.post(f"/api/v1/tasks/{task['id']}/retry")
        [claimed] = await engine.claim(await worker(engine, "mail"))
        await engine.complete(claimed)

        events = await reader.take(5)
        assert states(events) == [("queued", 0), ("running", 1), ("queued", 1), ("running", 2), ("succeeded", 2)]
        named = {(event["task_id"], event["namespace"], event["queue"], event["kind"]) for event in events}
        assert named == {(task["id"], "default", "mail", "send")}


async def test_what_is_submitted_by_sql_is_told_too(
    web: httpx.AsyncClient, other_connection: asyncpg.Connection
) -> None:
    async with follow(web) as reader:
        task_id = await other_connection.fetchval("select windlass.submit('send')")
        [event] = await reader.take(1)
        assert event["task_id"] == str(task_id)


async def test_a_reader_that_breaks_off_anywhere_misses_nothing_and_hears_nothing_twice(
    web: httpx.AsyncClient, engine: Engine
) -> None:
    """Batches of tasks are one row of the feed: a break in the middle of one is a break like any other."""
    heard: list[str] = []
    sent: list[str] = []
    position = None
    for size in (1, 7, 2, 5, 3, 1):
        async with follow(web, position) as reader:
            body = {"tasks": [{"kind": "k", "payload": n} for n in range(6)]}
            sent += [task["id"] for task in (await web.post("/api/v1/tasks/batch", json=body)).json()["items"]]
            heard += [event["task_id"] for event in await reader.take(size)]
            position = reader.position
    async with follow(web, position) as reader:
        heard += [event["task_id"] for event in await reader.take(len(sent) - len(heard))]
        await submit(web, kind="last")
        [event] = await reader.take(1)
        assert event["kind"] == "last"

    assert len(heard) == len(set(heard))
    assert set(heard) == set(sent)


async def test_a_transaction_that_began_first_and_commits_last_is_not_lost_and_holds_nobody_up(
    web: httpx.AsyncClient, other_connection: asyncpg.Connection
) -> None:
    async with follow(web) as reader:
        slow = other_connection.transaction()
        await slow.start()
        late = await other_connection.fetchval("select windlass.submit('late')")
        early = await submit(web)
        [event] = await reader.take(1)
        assert event["task_id"] == early["id"]
        position = reader.position
    async with follow(web, position) as reader:
        await slow.commit()
        [event] = await reader.take(1)
        assert event["task_id"] == str(late)
        await submit(web, kind="last")
        [event] = await reader.take(1)
        assert event["kind"] == "last"


async def test_what_is_rolled_back_is_never_told(web: httpx.AsyncClient, other_connection: asyncpg.Connection) -> None:
    async with follow(web) as reader:
        undone = other_connection.transaction()
        await undone.start()
        await other_connection.fetchval("select windlass.submit('undone')")
        await undone.rollback()
        task = await submit(web)
        [event] = await reader.take(1)
        assert event["task_id"] == task["id"]


async def test_many_writers_and_a_reader_that_keeps_breaking_off(web: httpx.AsyncClient, database: str) -> None:
    async def write(number: int) -> list[str]:
        connection = await asyncpg.connect(database)
        ids = []
        try:
            for turn in range(10):
                async with connection.transaction():
                    for _ in range(1 + (number + turn) % 3):
                        ids.append(str(await connection.fetchval("select windlass.submit('k')")))
                        await asyncio.sleep(0)
        finally:
            await connection.close()
        return ids

    async with follow(web) as reader:
        position = reader.position
    writing = asyncio.gather(*(write(number) for number in range(6)))
    heard: list[str] = []
    while not writing.done() or len(heard) < len([id_ for ids in writing.result() for id_ in ids]):
        async with follow(web, position) as reader:
            heard += [event["task_id"] for event in await reader.take(3 if len(heard) < 100 else 1)]
            position = reader.position

    sent = [id_ for ids in await writing for id_ in ids]
    assert len(heard) == len(set(heard))
    assert set(heard) == set(sent)


async def test_nothing_is_recorded_until_somebody_follows(
    web: httpx.AsyncClient, other_connection: asyncpg.Connection
) -> None:
    await submit(web)
    assert await other_connection.fetchval("select count(*) from windlass.change") == 0


async def test_the_first_reader_waits_for_an_open_transaction_and_then_hears_it(
    web: httpx.AsyncClient, other_connection: asyncpg.Connection
) -> None:
    """A transaction that wrote before recording began would not be told: the feed begins after it."""
    open_one = other_connection.transaction()
    await open_one.start()
    await other_connection.fetchval("select windlass.submit('before')")

    began = asyncio.Event()

    async def first() -> dict[str, Any]:
        async with follow(web) as reader:
            began.set()
            return await reader.next()

    reading = asyncio.create_task(first())
    await waits_for(other_connection)
    await submit(web)  # others are not held up for long
    assert not began.is_set()
    await open_one.commit()
    await soon(began.wait())
    await submit(web, kind="after")
    assert (await soon(reading))["kind"] == "after"


async def test_a_position_that_is_no_longer_kept_is_410_and_nonsense_400(
    web: httpx.AsyncClient, engine: Engine, other_connection: asyncpg.Connection
) -> None:
    async with follow(web) as reader:
        await submit(web)
        await reader.take(1)
        position = reader.position
    await other_connection.execute("update windlass.change set at = at - interval '2 days'")
    await engine.changes.forget()

    old = f"{position.split(';')[0]}"
    problem(await web.get("/api/v1/changes", headers={"Last-Event-ID": old}), 410, "expired")
    problem(await web.get("/api/v1/changes", headers={"Last-Event-ID": "3:3:"}), 410, "expired")
    for text in ("x", "1:2", "9:1:", "1:2:;3", "1:1:;1:1:;1", "1:2:" + "9" * 30, "-1:2:", "1:2:;1:2:;1.x"):
        problem(await web.get("/api/v1/changes", headers={"Last-Event-ID": text}), 400, "malformed")


async def test_recording_ends_when_nobody_has_read_for_a_day(
    web: httpx.AsyncClient, engine: Engine, other_connection: asyncpg.Connection
) -> None:
    async with follow(web) as reader:
        position = reader.position
    await other_connection.execute("update windlass.feed set read_at = read_at - interval '2 days'")
    await engine.changes.forget()
    await submit(web)

    assert await other_connection.fetchval("select count(*) from windlass.change") == 0
    problem(await web.get("/api/v1/changes", headers={"Last-Event-ID": position}), 410, "expired")
    async with follow(web) as reader:
        task = await submit(web)
        assert (await reader.take(1))[0]["task_id"] == task["id"]


async def test_a_key_hears_of_its_namespace_only(web: httpx.AsyncClient, url: str, engine: Engine) -> None:
    _, key = await engine.keys.create_key(name="k", role=Role.VIEWER, namespace="ours")
    async with httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        problem(await client.get("/api/v1/changes", params={"namespace": "theirs"}), 403, "forbidden")
        async with follow(client) as reader, follow(web) as all_reader, follow(web, namespace="theirs") as theirs:
            await submit(web, namespace="theirs")
            await submit(web, namespace="ours")
            assert (await reader.take(1))[0]["namespace"] == "ours"
            assert [event["namespace"] for event in await all_reader.take(2)] == ["theirs", "ours"]
            assert (await theirs.take(1))[0]["namespace"] == "theirs"


async def test_a_quiet_reader_gets_signs_of_life_and_a_revoked_key_ends_the_stream(
    web: httpx.AsyncClient, url: str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "KEEP_ALIVE_S", 0.3)
    made, key = await engine.keys.create_key(name="k", role=Role.VIEWER, namespace="ours")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client, follow(client) as reader:
        first = reader.position
        await submit(web, namespace="theirs")
        await soon(reader.sign())
        await soon(reader.sign())
        assert reader.position != first, "a quiet reader does not fall behind"
        await engine.keys.revoke_key(made.id)
        with pytest.raises(EOFError):
            await soon(reader.next())


async def test_a_stream_ends_with_its_server(engine: Engine, as_role: NewClient) -> None:
    async with open_server(engine, http="127.0.0.1:0", api_key=ROOT) as url:
        client = httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {ROOT}"}, timeout=60)
        stream = client.stream("GET", "/api/v1/changes")
        response = await stream.__aenter__()
        reader = Reader(response.aiter_lines())
        await soon(reader.sign())
    with pytest.raises(EOFError):
        await soon(reader.next())
    await stream.__aexit__(None, None, None)
    await client.aclose()


class _Flood:
    """An application that answers without end, as a feed does."""

    def __init__(self) -> None:
        self.state = SimpleNamespace(closing=asyncio.Event())
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        gone = asyncio.ensure_future(self._gone(receive))
        while not gone.done() and not self.state.closing.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self.ended.set()

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def test_who_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALLED_S", 0.2)
    app = _Flood()
    async with listening(app, "127.0.0.1", 0) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await soon(app.ended.wait())
        writer.close()
