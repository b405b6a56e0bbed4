"""Hostile handlers through every kind of worker of an app: each comes to its end, and its neighbours do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.kit import zoo
from tests.kit.work import SOON_S
from tests.kit.world import KEY
from tests.kit.zoo_app import ALL, app, in_process, neighbour, threaded_neighbour

from windlass import Engine, State
from windlass.contracts.callback.conformance.stand_in import Pushed, StandIn
from windlass.contracts.session.client.remote import connect
from windlass.net.signature import signed_headers
from windlass.sdk.handler.handle import TaskHandle
from windlass.sdk.worker import outcome
from windlass.serve import open_sessions

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def mode() -> str:
    """Pooler or not is the engine's business; here it is direct."""
    return "direct"


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(outcome, "DESCRIBE_S", 3.0)
    zoo.words_may_come.clear()
    yield
    zoo.words_may_come.set()


@asynccontextmanager
async def working(client: Any, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """The app, on this client, with a worker that must be there to the end and stop when it is told to."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        yield client

    usual = app.connect_by(connected)
    try:
        async with app:
            worker = app.worker(concurrency=200, **options)
            running = asyncio.create_task(worker.run())
            yield running
            assert not running.done()
            worker.stop()
            await asyncio.wait_for(running, SOON_S)
    finally:
        app.connect_by(usual)


async def neighbours(count: int = 20) -> None:
    """They come in while the others are there, and their results arrive."""
    for handler in (neighbour, threaded_neighbour):
        handles = await handler.submit_many([(number,) for number in range(count)])
        assert [await handle.result(f"{SOON_S:g}s") for handle in handles] == [2 * number for number in range(count)]


async def ended(engine: Engine, handle: TaskHandle[Any]) -> Any:
    task = (await engine.wait(handle.id, SOON_S)).task
    assert task.terminal, f"{task.kind} is {task.state}"
    return task


@pytest.mark.parametrize("far", [False, True], ids=["beside the database", "through a server"])
async def test_whatever_a_handler_does_its_attempt_ends_and_its_neighbours_do_not_notice(
    live_engine: Engine, far: bool
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(open_sessions(live_engine, grpc="127.0.0.1:0", api_key=KEY))
        remote = await stack.enter_async_context(connect(url, KEY))
        await stack.enter_async_context(working(remote if far else live_engine, heartbeat_process=False))
        handles = [await handler.submit(name) for handler, name, _ in ALL]
        await neighbours()
        zoo.words_may_come.set()
        seen = [await ended(live_engine, handle) for handle in handles]
        await neighbours()
    for (handler, name, fails), task in zip(ALL, seen, strict=True):
        where = f"{handler.kind}: {name}"
        assert fails is None or task.state is (State.FAILED if fails else State.SUCCEEDED), f"{where}: {task}"
        assert task.losses == 0, where
        if task.error is not None:
            assert task.error.message, where
            assert task.error.reason, where
    errors = {(h.kind, name): task.error for (h, name, _), task in zip(ALL, seen, strict=True) if task.error}
    assert errors["in the loop", "a surrogate"].line == "ValueError: caf\ufffd"
    assert errors["in the loop", "sys.exit"].line == "SystemExit: 3"
    assert "no words" not in errors["in the loop", "words that raise"].message
    assert "__str__" in errors["in the loop", "words that raise"].message
    assert errors["says", "words that come late"].message == "at last"
    assert "took longer" in errors["says", "words that never come"].message
    assert "rows[2].mean is -Infinity" in errors["in a thread", "infinity deep inside"].message
    assert len(errors["in a thread", "20 MB of words"].message) == 64 * 1024


async def test_in_a_process_too(live_engine: Engine) -> None:
    wild = ["closes files", "exits at once", "kills", "takes the signals", "breaks the output", "leaves a thread"]
    names = [*zoo.BEASTS, *wild, "changes its place", "a NUL"]
    async with working(live_engine, heartbeat_process=False):
        handles = [await in_process.submit(name) for name in names]
        await neighbours()
        seen = [await ended(live_engine, handle) for handle in handles]
    for name, task in zip(names, seen, strict=True):
        fails = zoo.BEASTS[name][1] if name in zoo.BEASTS else name in wild[:3]
        assert fails is None or task.state is (State.FAILED if fails else State.SUCCEEDED), f"{name}: {task}"


async def test_a_pushed_service_tells_all_of_it(pace: float) -> None:
    with StandIn("http://127.0.0.1:1", SECRET, interval_ms=int(1000 * pace), timeout_s=60) as engine:
        async with app.callback_worker(secret=SECRET, concurrency=500) as worker:

            async def push(kind: str, **payload: Any) -> Pushed:
                pushed = Pushed(engine, engine.envelope(kind, payload), lambda *_: None)
                engine.expect(pushed)
                body = msgspec.json.encode(pushed.envelope)
                headers = signed_headers([SECRET], f"msg_{pushed.envelope['taskId']}", engine.now_s(), body)
                assert (await worker.handle(headers, body)).status == 202
                return pushed

            out = [
                await push(handler.kind, **{"what" if handler.kind == "says" else "name": name})
                for handler, name, _ in ALL
            ]
            near = [await push("neighbour", number=number) for number in range(20)]
            told = [(await asyncio.to_thread(pushed.wait, "completed")).body for pushed in near]
            assert [body["output"] for body in told] == [2 * number for number in range(20)]
            zoo.words_may_come.set()
            ends = [(await asyncio.to_thread(pushed.wait, "completed")).body for pushed in out]
    for (handler, name, fails), end in zip(ALL, ends, strict=True):
        assert fails is None or end["outcome"] == ("FAILED" if fails else "SUCCEEDED"), f"{handler.kind} {name}: {end}"
        if end["outcome"] == "FAILED":
            assert end["error"]["message"], name
            assert len(end["error"].get("stackTrace") or "") < 65_536, name
