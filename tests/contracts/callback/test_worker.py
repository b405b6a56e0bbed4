"""A worker that is pushed to, beside something that stands in for an engine and hears what it calls back."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from tests.sdk.process_handlers import app as process_app

from windlass import Cancel, Context, Fail, Retry, WorkflowContext, current, sdk
from windlass.connect import App
from windlass.contracts.callback.conformance.stand_in import Pushed, StandIn, delivery_id
from windlass.contracts.callback.worker import Answer, CallbackWorker
from windlass.contracts.callback.worker.worker import BODY_MAX_BYTES
from windlass.errors import Invalid, InvalidState
from windlass.net.signature import signed_headers
from windlass.testing.conformance.listener import Reply

pytestmark = pytest.mark.slow

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NEW_SECRET = "whsec_" + base64.b64encode(b"n" * 32).decode()


@pytest.fixture
def engine(pace: float) -> Iterator[StandIn]:
    with StandIn("http://127.0.0.1:1", SECRET, interval_ms=int(50 * pace), timeout_s=60) as stand_in:
        yield stand_in


@pytest.fixture
def app() -> App:
    return App("shop")


class Pushing:
    """A worker, and pushes to it as an engine sends them."""

    def __init__(self, engine: StandIn, worker: CallbackWorker) -> None:
        self.engine, self.worker = engine, worker

    async def send(self, pushed: Pushed, secret: str = SECRET) -> Answer:
        body = json.dumps(pushed.envelope).encode()
        headers = signed_headers([secret], delivery_id(pushed.envelope), self.engine.now_s(), body)
        return await self.worker.handle(headers, body)

    async def push(
        self, kind: str, script: Callable[[str, int], Reply | None] = lambda *_: None, **payload: Any
    ) -> Pushed:
        pushed = self.prepared(kind, script, **payload)
        answer = await self.send(pushed)
        assert answer.status == 202, answer
        return pushed

    def prepared(
        self, kind: str, script: Callable[[str, int], Reply | None] = lambda *_: None, **payload: Any
    ) -> Pushed:
        pushed = Pushed(self.engine, self.engine.envelope(kind, payload), script)
        self.engine.expect(pushed)
        return pushed


@asynccontextmanager
async def pushing(engine: StandIn, app: App, **options: Any) -> AsyncIterator[Pushing]:
    async with app.callback_worker(**{"secret": SECRET, **options}) as worker:
        yield Pushing(engine, worker)


async def ended(pushed: Pushed) -> dict[str, Any]:
    return (await asyncio.to_thread(pushed.wait, "completed")).body


# --------------------------------------------------------------------------------------------- handlers as they are


async def test_the_handlers_of_an_app_run_what_is_pushed(engine: StandIn, app: App) -> None:
    @app.task(kind="greet")
    async def greet(ctx: Context, name: str, loud: bool = False) -> dict[str, Any]:
        assert current() is ctx
        return {
            "said": f"Hello, {name}",
            "attempt": ctx.attempt,
            "queue": ctx.queue,
            "due": ctx.deadline_at is not None,
        }

    @app.task(kind="shout")
    def shout(name: str) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return name.upper()

    async with pushing(engine, app) as pusher:
        first = await ended(await pusher.push("greet", name="Ada"))
        second = await ended(await pusher.push("shout", name="Ada"))

    assert first["outcome"] == second["outcome"] == "SUCCEEDED"
    assert first["output"] == {"said": "Hello, Ada", "attempt": 1, "queue": "conformance", "due": True}
    assert second["output"] == "ADA"


@pytest.mark.parametrize(
    ("raised", "outcome", "told"),
    [
        (ValueError("no"), "FAILED", {"category": "USER_CODE", "message": "no", "reason": "ValueError"}),
        (Retry("soon", after="90s"), "FAILED", {"retryable": True, "retryAfterMs": 90_000, "category": "USER_CODE"}),
        (Fail("never", category="CONFIGURATION"), "FAILED", {"retryable": False, "category": "CONFIGURATION"}),
        (Cancel("not needed"), "CANCELLED", {"category": "CANCELLED", "message": "not needed"}),
        (asyncio.CancelledError(), "FAILED", {"category": "USER_CODE"}),
    ],
    ids=["an error", "Retry", "Fail", "Cancel", "cancelled by itself"],
)
async def test_a_handler_says_how_its_attempt_ends(
    engine: StandIn, app: App, raised: BaseException, outcome: str, told: dict[str, Any]
) -> None:
    @app.task(kind="end")
    async def end() -> None:
        raise raised

    async with pushing(engine, app) as pusher:
        body = await ended(await pusher.push("end"))

    assert body["outcome"] == outcome
    assert {name: body["error"].get(name) for name in told} == told


async def test_a_payload_that_does_not_fit_is_bad_data_and_not_tried_again(engine: StandIn, app: App) -> None:
    @app.task(kind="double")
    async def double(number: int) -> int:
        return 2 * number

    async with pushing(engine, app) as pusher:
        body = await ended(await pusher.push("double", number="seven"))

    assert body["error"]["category"] == "DATA_QUALITY"
    assert body["error"]["retryable"] is False


async def test_progress_log_and_checkpoint_travel_with_heartbeats(engine: StandIn, app: App) -> None:
    @app.task(kind="copy")
    async def copy(ctx: Context) -> Any:
        before = ctx.last_checkpoint()
        ctx.log.info("copying from %s", before)
        ctx.progress(3, 4, "third of four")
        await ctx.checkpoint({"row": 3})
        ctx.log.info("the last one")
        await ctx.checkpoint({"row": 4})
        return before

    async with pushing(engine, app) as pusher:
        pushed = pusher.prepared("copy")
        pushed.envelope["checkpoint"] = {"row": 1}
        await pusher.send(pushed)
        body = await ended(pushed)

    beats = [heard.body for heard in pushed.of_kind("heartbeat")]
    assert body["output"] == {"row": 1}
    assert any(beat.get("checkpoint") == {"row": 3} for beat in beats)
    assert any(beat.get("progressPct") == 75 and beat["message"] == "third of four" for beat in beats)
    lines = [line for beat in beats for line in beat.get("log", [])]
    assert [(line["number"], line["level"], line["message"]) for line in lines] == [
        (0, "INFO", "copying from {'row': 1}"), (1, "INFO", "the last one"),
    ]  # fmt: skip


async def test_what_a_handler_said_last_is_told_before_its_end(engine: StandIn, app: App) -> None:
    @app.task(kind="brief")
    async def brief(ctx: Context) -> None:
        ctx.log.warning("one")
        ctx.log.warning("two")

    async with pushing(engine, app) as pusher:
        pushed = await pusher.push("brief")
        await ended(pushed)

    said = [line["message"] for heard in pushed.of_kind("heartbeat") for line in heard.body.get("log", [])]
    assert said == ["one", "two"]
    first, *between, last = [heard.what for heard in pushed.callbacks]
    assert (first, set(between), last) == ("started", {"heartbeat"}, "completed")


# --------------------------------------------------------------------------------------------- alive and told to stop


async def test_heartbeats_go_on_while_a_handler_blocks_the_event_loop_and_it_hears_of_a_cancel(
    engine: StandIn, app: App
) -> None:
    @app.task(kind="block")
    async def block(ctx: Context) -> str:
        while not ctx.cancelled:
            time.sleep(0.005)  # noqa: ASYNC251 (that is the mistake)
        return "stopped"

    def script(what: str, before: int) -> Reply | None:
        return Reply(200, {"acknowledged": True, "shouldCancel": True}) if what == "heartbeat" and before >= 3 else None

    async with pushing(engine, app) as pusher:
        pushed = await pusher.push("block", script)
        body = await ended(pushed)

    assert len(pushed.of_kind("heartbeat")) >= 4
    assert (body["outcome"], body["output"]) == ("SUCCEEDED", "stopped")


async def test_a_cancel_interrupts_async_code_which_may_clean_up_and_tells_how_far_it_came(
    engine: StandIn, app: App
) -> None:
    cleaned = asyncio.Event()

    @app.task(kind="long")
    async def long(ctx: Context) -> None:
        ctx.progress(2, 5, "sorting")
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.2)  # more heartbeats say "cancel" meanwhile, and do not disturb it
            cleaned.set()

    def script(what: str, before: int) -> Reply | None:
        return Reply(200, {"shouldCancel": True}) if what == "heartbeat" else None

    async with pushing(engine, app) as pusher:
        body = await ended(await pusher.push("long", script))

    assert cleaned.is_set()
    assert body["outcome"] == "CANCELLED"
    assert body["cancelledDuringPhase"] == "sorting"
    assert body["partialProgress"] == {"current": 2.0, "maximum": 5.0, "message": "sorting"}


async def test_a_handler_whose_attempt_is_lost_is_stopped_and_nothing_more_is_said(engine: StandIn, app: App) -> None:
    stopped = asyncio.Event()

    @app.task(kind="long")
    async def long(ctx: Context) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()

    def script(what: str, before: int) -> Reply | None:
        return Reply(410, {"error": "task_expired"}) if what == "heartbeat" else None

    async with pushing(engine, app) as pusher:
        pushed = await pusher.push("long", script)
        await asyncio.wait_for(stopped.wait(), 60)
        await asyncio.to_thread(pushed.quiet, 0.3, pushed.callbacks[-1])
        assert pusher.worker.active_count() == 0


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_refusal_of_the_engine_ends_an_attempt_but_that_of_a_proxy_does_not(
    engine: StandIn, app: App, status: int
) -> None:
    @app.task(kind="long")
    async def long() -> None:
        await asyncio.Event().wait()

    def script(what: str, before: int) -> Reply | None:
        if what != "heartbeat":
            return None
        return Reply(status) if before < 2 else Reply(status, {"error": "invalid_token", "message": "it has expired"})

    async with pushing(engine, app) as pusher:
        pushed = await pusher.push("long", script)
        third = await asyncio.to_thread(pushed.wait, "heartbeat", 3)
        await asyncio.to_thread(pushed.quiet, 0.3, third)

    assert [heard.what for heard in pushed.callbacks] == ["started", "heartbeat", "heartbeat", "heartbeat"]


async def test_cancel_kills_the_process_of_a_handler(engine: StandIn) -> None:
    def script(what: str, before: int) -> Reply | None:
        return Reply(200, {"shouldCancel": True}) if what == "heartbeat" and before > 1 else None

    async with pushing(engine, process_app) as pusher:
        body = await ended(await pusher.push("cpu.spin", script))

    assert body["outcome"] == "CANCELLED"


async def test_a_newer_attempt_stops_the_one_that_runs_and_is_run_itself(engine: StandIn, app: App) -> None:
    seen: list[int] = []

    @app.task(kind="long")
    async def long(ctx: Context) -> int:
        seen.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        return ctx.attempt

    async with pushing(engine, app, concurrency=2) as pusher:
        old = await pusher.push("long")
        await asyncio.to_thread(old.wait, "heartbeat")
        new = Pushed(engine, {**old.envelope, "attempt": 2, "taskToken": "token.new"}, lambda *_: None)
        engine.expect(new)
        assert (await pusher.send(new)).status == 202
        assert (await ended(new))["output"] == 2
        assert (await pusher.send(old)).status in (200, 409)
        await asyncio.to_thread(old.quiet, 0.2, old.callbacks[-1])

    assert seen == [1, 2]
    assert old.of_kind("completed") == []


# --------------------------------------------------------------------------------------------- what is refused


async def test_pushes_are_refused_as_they_deserve(engine: StandIn, app: App) -> None:
    @app.task(kind="wait")
    async def wait() -> None:
        await asyncio.Event().wait()

    @app.workflow(kind="flow")
    async def flow(ctx: WorkflowContext) -> None: ...

    async with pushing(engine, app, concurrency=1) as pusher:
        assert (await pusher.send(pusher.prepared("nobody"))).status == 404
        assert (await pusher.send(pusher.prepared("flow"))).status == 404
        assert (await pusher.send(pusher.prepared("wait"), NEW_SECRET)).status == 401
        assert (await pusher.worker.handle({}, b"{}")).status == 401
        assert (await pusher.worker.handle({}, b" " * (BODY_MAX_BYTES + 1))).status == 413
        bad = pusher.prepared("wait")
        bad.envelope["taskId"] = "task_nonsense"
        assert (await pusher.send(bad)).status == 400
        first = await pusher.push("wait")
        assert (await pusher.send(first)).status == 409
        full = await pusher.send(pusher.prepared("wait"))
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        first.script = lambda what, _: Reply(410, {"error": "task_expired"}) if what == "heartbeat" else None
        await asyncio.to_thread(first.wait, "heartbeat")
        assert await pusher.worker._until(pusher.worker._is_idle, 20)
        assert (await pusher.send(first)).status == 200  # it is over, and known to be
        again = await pusher.push("wait", lambda what, _: Reply(410) if what == "heartbeat" else None)
        await asyncio.to_thread(again.wait, "heartbeat")


async def test_integers_of_an_engine_may_be_written_with_a_fraction_of_zero(engine: StandIn, app: App) -> None:
    @app.task(kind="ratio")
    def ratio(value: float) -> str:
        return repr(value)

    async with pushing(engine, app) as pusher:
        pushed = pusher.prepared("ratio", value=1.0)
        for name in ("attempt", "heartbeatIntervalMs", "heartbeatTimeoutMs"):
            pushed.envelope[name] = float(pushed.envelope[name])
        assert (await pusher.send(pushed)).status == 202
        assert (await ended(pushed))["output"] == "1.0"


async def test_an_old_push_is_taken_where_something_slow_carries_it(engine: StandIn, app: App) -> None:
    @app.task(kind="nothing")
    async def nothing() -> None: ...

    for age, status in (("5m", 401), ("1h", 202)):
        async with pushing(engine, app, signature_age=age) as pusher:
            pushed = pusher.prepared("nothing")
            body = json.dumps(pushed.envelope).encode()
            headers = signed_headers([SECRET], "d", engine.now_s() - 1800, body)
            assert (await pusher.worker.handle(headers, body)).status == status


async def test_two_secrets_are_good_while_the_secret_is_changed(engine: StandIn, app: App) -> None:
    @app.task(kind="nothing")
    async def nothing() -> None: ...

    async with pushing(engine, app, secret=[SECRET, NEW_SECRET]) as pusher:
        for secret in (SECRET, NEW_SECRET):
            pushed = pusher.prepared("nothing")
            assert (await pusher.send(pushed, secret)).status == 202
            assert (await ended(pushed))["outcome"] == "SUCCEEDED"


async def test_a_result_that_the_engine_refuses_is_told_as_a_failure(engine: StandIn, app: App) -> None:
    @app.task(kind="large")
    async def large() -> str:
        return "x" * 1000

    def script(what: str, before: int) -> Reply | None:
        refusal = Reply(413, {"error": "payload_too_large", "message": "at most 100 bytes"})
        return refusal if what == "completed" and before == 0 else None

    async with pushing(engine, app) as pusher:
        pushed = await pusher.push("large", script)
        second = (await asyncio.to_thread(pushed.wait, "completed", 2)).body

    assert second["outcome"] == "FAILED"
    assert "at most 100 bytes" in second["error"]["message"]
    assert second["error"]["retryable"] is False


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"secret": "none"},
        {"secret": []},
        {"secret": SECRET, "concurrency": 0},
        {"secret": SECRET, "drain": "soon"},
        {"secret": SECRET, "callback_url": "ftp://x"},
        {"secret": SECRET, "ssl_context": True},
        {"secret": SECRET, "kinds": "greet"},
        {"secret": SECRET, "name": ""},
        {"secret": SECRET, "colour": "red"},
    ],
)
def test_a_wrong_option_is_named(app: App, options: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        app.callback_worker(**options)


# --------------------------------------------------------------------------------------------- start and stop


async def test_it_drains_and_what_takes_too_long_is_given_back(engine: StandIn, app: App, pace: float) -> None:
    go_on, told, block = asyncio.Event(), asyncio.Event(), threading.Event()

    @app.task(kind="short")
    async def short() -> str:
        await go_on.wait()
        return "done"

    @app.task(kind="long")
    async def long() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            told.set()

    @app.task(kind="deaf")
    def deaf() -> None:
        block.wait()

    async with pushing(engine, app) as pusher:
        pushed = [await pusher.push(kind) for kind in ("short", "long", "deaf")]
        for one in pushed:
            await asyncio.to_thread(one.wait, "heartbeat")
        stopping = asyncio.create_task(pusher.worker.stop(drain=0.5 * pace))
        await asyncio.sleep(0)
        assert (await pusher.send(pusher.prepared("short"))).status == 503
        go_on.set()
        await stopping
        assert told.is_set()
        block.set()
    bodies = [await ended(one) for one in pushed]

    assert bodies[0]["output"] == "done"
    for body in bodies[1:]:
        assert body["outcome"] == "FAILED"
        assert (body["error"]["category"], body["error"]["retryable"], body["released"]) == (
            "INFRASTRUCTURE",
            True,
            True,
        )


async def test_the_app_is_opened_with_the_worker_and_says_that_it_cannot_submit(engine: StandIn, app: App) -> None:
    hooks: list[str] = []
    app.on_start(lambda: hooks.append("start"))
    app.on_end(lambda: hooks.append("end"))

    @app.task(kind="fan_out")
    async def fan_out() -> None:
        await fan_out.submit()

    async with pushing(engine, app) as pusher:
        body = await ended(await pusher.push("fan_out"))

    assert "open it with `async with app:`" in body["error"]["message"]
    assert hooks == ["start", "end"]
    assert not app.is_open


async def test_a_worker_that_nobody_started_starts_with_its_first_push(
    engine: StandIn, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(kind="nothing")
    async def nothing() -> None: ...

    worker = app.callback_worker(secret=SECRET)
    pusher = Pushing(engine, worker)
    first, second = pusher.prepared("nothing"), pusher.prepared("nothing")
    answers = await asyncio.gather(pusher.send(first), pusher.send(second))

    assert [answer.status for answer in answers] == [202, 202]
    assert [(await ended(one))["outcome"] for one in (first, second)] == ["SUCCEEDED", "SUCCEEDED"]
    assert sum("will not drain" in message for message in caplog.messages) == 1
    with pytest.raises(InvalidState):
        await worker.start()
    await worker.stop()
    await worker.stop()


async def test_a_router_starts_within_the_lifespan_of_its_service_and_leaves_an_open_app_alone(
    engine: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    app = sdk.App("shop", lambda: nullcontext(cast("sdk.Client", object())))

    @app.task(kind="nothing")
    async def nothing() -> None: ...

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app:
            yield
            told.append("open" if app.is_open else "closed")

    worker = CallbackWorker(app, secret=SECRET)
    api = FastAPI(lifespan=lifespan)
    api.include_router(worker.router("/push"))
    transport = httpx.ASGITransport(api)
    async with api.router.lifespan_context(api), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        pushed = Pushing(engine, worker).prepared("nothing")
        body = json.dumps(pushed.envelope).encode()
        headers = signed_headers([SECRET], delivery_id(pushed.envelope), engine.now_s(), body)
        assert (await client.post("/push", content=body, headers=headers)).status_code == 202
        too_long = b" " * (BODY_MAX_BYTES + 1)
        assert (await client.post("/push", content=too_long, headers=headers)).status_code == 413
        assert (await client.get("/push")).status_code == 405
        await ended(pushed)

    assert told == ["open"]
    assert not [message for message in caplog.messages if "will not drain" in message]


async def test_threads_do_not_stay_behind(engine: StandIn, app: App) -> None:
    @app.task(kind="nothing")
    async def nothing() -> None: ...

    before = set(threading.enumerate())
    for _ in range(3):
        async with pushing(engine, app) as pusher:
            await ended(await pusher.push("nothing"))
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("windlass-") and thread not in before]
    for thread in ours:
        await asyncio.to_thread(thread.join, 60)

    assert [thread.name for thread in ours if thread.is_alive()] == []


# --------------------------------------------------------------------------------------------- the way to the engine


async def test_callbacks_go_where_the_worker_is_told_and_by_tls(app: App, tmp_path: Path) -> None:
    @app.task(kind="nothing")
    async def nothing() -> None: ...

    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    await asyncio.to_thread(
        subprocess.run, [*make, "-out", certificate, "-keyout", key], check=True, capture_output=True
    )
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with StandIn("http://127.0.0.1:1", SECRET, interval_ms=50, timeout_s=60, ssl_context=serving) as engine:
        options = {"ssl_context": trusting, "callback_url": engine.base_url}
        async with pushing(engine, app, **options) as pusher:
            pushed = pusher.prepared("nothing")
            pushed.envelope["callbackBaseUrl"] = "http://127.0.0.1:1"
            await pusher.send(pushed)
            assert (await ended(pushed))["outcome"] == "SUCCEEDED"
        async with pushing(engine, app, callback_url=engine.base_url, drain=0) as pusher:
            distrusted = await pusher.push("nothing")
            await asyncio.to_thread(distrusted.quiet, 0.3)

    assert engine.base_url.startswith("https://")
    assert distrusted.callbacks == []


async def test_an_app_that_the_worker_opened_reaches_its_engine_again_when_it_is_opened_next() -> None:
    there = cast("Any", object())
    app = sdk.App("shop", lambda: nullcontext(there))
    async with CallbackWorker(app, secret=SECRET):
        assert app.client is not there
    async with app:
        assert app.client is there
