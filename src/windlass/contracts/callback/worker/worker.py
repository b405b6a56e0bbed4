"""A callback worker: part of a service with its own HTTP server, to which the engine pushes tasks.

A push is checked and answered at once; the attempt then runs in the event loop of the service (or a thread or a
process, as its handler declares), while a loop thread reports to the engine. The handlers are those of an app, so a
task can move from a queue that workers claim from to one that pushes by changing its queue alone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypedDict, cast
from uuid import UUID

import msgspec

from windlass.contracts.callback.wire.envelope import TaskEnvelope
from windlass.contracts.callback.worker.attempt import PushedAttempt
from windlass.contracts.callback.worker.loop_thread import LoopThread
from windlass.core.validation import LARGE_MAX_BYTES, check_count, check_name, check_names, check_type, check_url
from windlass.errors import Invalid, InvalidState, Unauthenticated
from windlass.net.decode import decoded
from windlass.net.http_threads import ThreadedClient
from windlass.net.ids import parse_id
from windlass.net.signature import TOLERANCE_S, check_signature, signing_key
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler.handler import Handler
from windlass.sdk.sync import SyncBridge
from windlass.sdk.workflow.handler import WorkflowHandler

if TYPE_CHECKING:
    from windlass.sdk.app import App
    from windlass.sdk.client import Client

log = logging.getLogger("windlass.worker")

BODY_MAX_BYTES = LARGE_MAX_BYTES + 4 * 1024 * 1024
REMEMBERED = 10_000  # attempts that have ended here
FULL_RETRY_AFTER_S = 1
POSTS_AT_ONCE = 16
ANSWER_MAX_BYTES = 1024 * 1024
STOP_S = 2.0  # for handlers to notice that they were cancelled, and for the last reports

_envelope = msgspec.json.Decoder(TaskEnvelope)


class Answer(msgspec.Struct, frozen=True):
    """The answer to a push."""

    status: int
    body: bytes
    headers: dict[str, str]


class CallbackOptions(TypedDict, total=False):
    """The options of a callback worker."""

    secret: str | Sequence[str]  # that pushes are signed with; two while it is being changed
    kinds: Sequence[str] | None  # of the handlers it has; default: all
    name: str | None  # default: host and process id
    concurrency: int  # how many tasks run at the same time; more are answered with 503
    drain: Duration  # how long running tasks may take when the service stops
    callback_url: str | None  # of the engine; default: the one in the push
    signature_age: Duration  # how old a signed push may be; raise it if a slow carrier delivers them
    ssl_context: ssl.SSLContext | None  # for an engine whose certificate the system does not trust


class CallbackWorker:
    """Made by `app.callback_worker(secret=…)`. It is an ASGI application itself; `router()` is for FastAPI, `wsgi` for
    WSGI, `handle` and `handle_sync` for everything else."""

    def __init__(
        self,
        app: App,
        *,
        secret: str | Sequence[str],
        kinds: Sequence[str] | None = None,
        name: str | None = None,
        concurrency: int = 32,
        drain: Duration = 30.0,
        callback_url: str | None = None,
        signature_age: Duration = TOLERANCE_S,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        secrets = [secret] if isinstance(secret, str) else secret
        if not isinstance(secrets, tuple | list) or not secrets:
            raise Invalid("must be text, or a list of at least one", field="secret")
        self._keys = [signing_key(one) for one in secrets]
        check_count("concurrency", concurrency, least=1, most=100_000)
        if kinds is not None:
            check_names("kinds", kinds)
        if name is not None:
            check_name("name", name)
        if callback_url is not None:
            check_url("callback_url", callback_url)
        if ssl_context is not None:
            check_type("ssl_context", ssl_context, ssl.SSLContext)
        self._app, self._kinds, self._name = app, kinds, name
        self._concurrency, self._drain_s = concurrency, seconds("drain", drain)
        self._callback_url, self._ssl_context = callback_url, ssl_context
        self._signature_age_s = seconds("signature_age", signature_age)
        self._running: dict[UUID, PushedAttempt] = {}
        self._ending: set[PushedAttempt] = set()  # given up, but still running
        self._ended: OrderedDict[tuple[UUID, int], None] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: LoopThread | None = None
        self._http: ThreadedClient | None = None
        self._opened_app = self._stopping = False
        self._sync_bridge: SyncBridge | None = None
        self._opening = threading.Lock()
        self._starting = asyncio.Lock()
        self._attempt_ended = asyncio.Event()

    # ----------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Start in this event loop, in which handlers will run. Opens the app, without an engine, unless it is open."""
        async with self._starting:
            if self._loop is not None:
                raise InvalidState("the worker is already running")
            if not self._app.is_open:
                previous = self._app.connect_by(_no_engine)
                try:
                    await self._app.__aenter__()
                finally:
                    self._app.connect_by(previous)  # for the next time that it is opened
                self._opened_app = True
            self.name = self._name or f"{socket.gethostname()}-{os.getpid()}"
            threads = min(POSTS_AT_ONCE, self._concurrency)
            self._http = ThreadedClient(threads, self._ssl_context, answer_max_bytes=ANSWER_MAX_BYTES)
            self._thread = LoopThread()
            self._attempt_ended, self._stopping = asyncio.Event(), False
            self._loop = asyncio.get_running_loop()
        log.info("worker %s accepts pushes of %s", self.name, ", ".join(sorted(self.handlers)) or "nothing")

    async def stop(self, drain: Duration | None = None) -> None:
        """Refuse new pushes, and wait up to `drain` for running tasks; the rest is cancelled and released: another
        worker may run it, and none of its budgets is used."""
        if self._loop is None:
            return
        self._stopping = True
        await self._until(self._is_idle, self._drain_s if drain is None else seconds("drain", drain))
        for attempt in self._attempts():
            attempt.stop()
        if not await self._until(self._is_idle, STOP_S):
            for attempt in self._attempts():
                attempt.release()
            await self._until(lambda: all(attempt.reported for attempt in self._attempts()), STOP_S)
        assert self._thread is not None
        assert self._http is not None
        await asyncio.to_thread(self._thread.close)
        self._http.close()
        self._loop = self._thread = self._http = None
        if self._opened_app:
            self._opened_app = False
            await self._app.__aexit__(None, None, None)

    async def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, checked whenever an attempt has ended; False if it does not come true in time."""
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    self._attempt_ended.clear()
                    await self._attempt_ended.wait()
        except TimeoutError:
            return False
        return True

    def _attempts(self) -> list[PushedAttempt]:
        return [*self._running.values(), *self._ending]

    def _is_idle(self) -> bool:
        return not self._running and not self._ending

    async def __aenter__(self) -> CallbackWorker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """For `Starlette(lifespan=worker.lifespan)` and `FastAPI(lifespan=worker.lifespan)`."""
        async with self:
            yield

    @property
    def handlers(self) -> dict[str, Handler[..., Any]]:
        """The handlers that it runs. Workflows are left out, since their steps cannot be recorded from here."""
        found = {
            kind: handler for kind, handler in self._app.handlers.items() if not isinstance(handler, WorkflowHandler)
        }
        return found if self._kinds is None else {kind: found[kind] for kind in self._kinds if kind in found}

    def active_count(self) -> int:
        """The number of tasks that run here now."""
        return len(self._running)

    # ----------------------------------------------------------------------------------------- pushes

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one push, in the event loop in which the worker runs. Starts the worker if it is not running."""
        if self._loop is None:
            log.warning("the worker was not started with its service, so it will not drain with it: see lifespan")
            await self.start()
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidState("the worker runs in another event loop")
        answer = self._answer({name.lower(): value for name, value in headers.items()}, body)
        if answer.status >= 400:
            level = logging.INFO if answer.status in (409, 503) else logging.WARNING
            log.log(level, "push refused: %s", answer.body.decode())
        return answer

    def handle_sync(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one push, for services without an event loop: handlers run in a thread of the worker, which is started
        with the first push and drains when the program ends."""
        with self._opening:
            if self._sync_bridge is None:
                self._sync_bridge = SyncBridge(self)
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.handle(headers, body), self._loop).result()

    def _answer(self, headers: dict[str, str], body: bytes) -> Answer:
        if len(body) > BODY_MAX_BYTES:
            return TOO_LARGE
        try:
            check_signature(self._keys, headers, body, time.time(), self._signature_age_s)
        except Unauthenticated as error:
            return make_answer(401, "bad_signature", error.message)
        try:
            envelope = decoded(_envelope, body)
        except Invalid as error:
            return make_answer(400, "bad_envelope", str(error))
        task_id = parse_id("task", envelope.task_id)
        if task_id is None:
            return make_answer(400, "bad_envelope", f"{envelope.task_id[:100]!r} is not an id of a task")
        return self._accept(task_id, envelope)

    def _accept(self, task_id: UUID, envelope: TaskEnvelope) -> Answer:
        """Accept it, unless it runs or ran here, or all slots are taken. After 200 and 409 it is not sent again."""
        older = self._running.get(task_id)
        if (task_id, envelope.attempt) in self._ended:
            return make_answer(200)
        if older is not None and older.number >= envelope.attempt:
            return make_answer(409, "duplicate", f"attempt {older.number} already runs here")
        kind = envelope.kind or envelope.asset_id
        handler = self.handlers.get(kind)
        if handler is None:
            return make_answer(404, "unknown_kind", f"there is no handler for {kind[:200]} here")
        if older is not None:  # the engine has ended it, or there would be no newer one
            self._ending.add(self._running.pop(task_id))
            older.supersede()
        if self._stopping or len(self._running) + len(self._ending) >= self._concurrency:
            why = "the worker is stopping" if self._stopping else f"{self._concurrency} tasks are running"
            return make_answer(503, "busy", why, retry_after_s=FULL_RETRY_AFTER_S)
        assert self._thread is not None
        assert self._http is not None
        base_url = self._callback_url or envelope.callback_base_url
        attempt = PushedAttempt(task_id, envelope, handler, self.name, base_url, self._on_attempt_end)
        self._running[task_id] = attempt
        attempt.start(self._thread, self._http)
        return make_answer(202)

    def _on_attempt_end(self, attempt: PushedAttempt) -> None:
        """Its handler has ended, or its reports have."""
        self._attempt_ended.set()
        if not attempt.over:
            return
        if self._running.get(attempt.task_id) is attempt:
            del self._running[attempt.task_id]
        self._ending.discard(attempt)
        self._ended[attempt.task_id, attempt.number] = None
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # ----------------------------------------------------------------------------------------- ways to mount it

    async def __call__(self, scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """As an ASGI application: the whole one, or mounted in another."""
        from windlass.contracts.callback.worker.mounts import serve_asgi

        await serve_asgi(self, scope, receive, send)

    def wsgi(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """As a WSGI application: `application = worker.wsgi`, or mounted in another."""
        from windlass.contracts.callback.worker.mounts import serve_wsgi

        return serve_wsgi(self, environ, start_response)

    def router(self, path: str = "/windlass") -> Any:
        """A router for FastAPI: `api.include_router(worker.router())` starts and stops the worker with the service."""
        from windlass.contracts.callback.worker.mounts import make_router

        return make_router(self, path)


def make_answer(status: int, error: str = "", message: str = "", *, retry_after_s: int | None = None) -> Answer:
    body = msgspec.json.encode({"error": error, "message": message} if error else {"accepted": True})
    headers = {"content-type": "application/json"}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return Answer(status, body, headers)


TOO_LARGE = make_answer(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")


class _NoEngine:
    """The client of an app that is open without an engine: its handlers run, but every method here raises."""

    def __getattr__(self, name: str) -> Any:
        raise InvalidState(
            f"{name} needs an engine, and this app was opened without one by its callback worker: "
            "open it with `async with app:` before the worker starts"
        )


@asynccontextmanager
async def _no_engine() -> AsyncIterator[Client]:
    yield cast("Client", _NoEngine())
