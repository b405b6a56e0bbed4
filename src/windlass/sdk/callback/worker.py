"""A worker that is pushed to: part of a service that has an HTTP server of its own.

A push is checked and answered at once; the attempt then runs in the event loop of the service (or a thread, or a
process, as its handler says), while the line tells the engine how it is. The handlers are those of an app, so that a
task moves from a queue that workers claim from to one that is pushed by changing its queue and nothing else.
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
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

import msgspec

from windlass.core.check import LARGE_MAX_BYTES, check_count, check_name, check_names, check_type, check_url
from windlass.core.error import Invalid, InvalidState, Unauthenticated
from windlass.sdk.callback.attempt import PushedAttempt
from windlass.sdk.callback.line import Line
from windlass.sdk.callback.no_engine import no_engine
from windlass.sdk.callback.post import Poster
from windlass.sdk.duration import Duration, seconds
from windlass.sdk.handler import Handler
from windlass.sdk.portal import Portal
from windlass.sdk.workflow_handler import WorkflowHandler
from windlass.wire.decode import decoded
from windlass.wire.envelope import TaskEnvelope
from windlass.wire.id import parse_id
from windlass.wire.signature import TOLERANCE_S, check_signature, signing_key

if TYPE_CHECKING:
    from windlass.sdk.app import App

log = logging.getLogger("windlass.worker")

BODY_MAX_BYTES = LARGE_MAX_BYTES + 4 * 1024 * 1024
REMEMBERED = 10_000  # attempts that have ended here
FULL_RETRY_AFTER_S = 1
POSTS_AT_ONCE = 16
STOP_S = 2.0  # for handlers to notice that they are to end, and for the last words

_envelope = msgspec.json.Decoder(TaskEnvelope)


class Answer(msgspec.Struct, frozen=True):
    """How a push is answered."""

    status: int
    body: bytes
    headers: dict[str, str]


class CallbackOptions(TypedDict, total=False):
    """What a worker that is pushed to may be told."""

    secret: str | Sequence[str]  # that pushes are signed with; two while it is being changed
    kinds: Sequence[str] | None  # of the handlers it has; by default all
    name: str | None  # by default host and process id
    concurrency: int  # how many tasks run side by side; more are sent away for a while
    drain: Duration  # how long what runs may take when the service stops
    callback_url: str | None  # where the engine is, if not where it says
    signature_age: Duration  # how old a signed push may be; more where something carries them that takes its time
    ssl_context: ssl.SSLContext | None  # for an engine whose certificate is not one of the system's


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
        self._keys = [signing_key(one) for one in ([secret] if isinstance(secret, str) else _listed(secret))]
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
        self._home: asyncio.AbstractEventLoop | None = None
        self._line: Line | None = None
        self._poster: Poster | None = None
        self._opened_app = self._stopping = False
        self._portal: Portal | None = None
        self._opening = threading.Lock()
        self._starting = asyncio.Lock()
        self._something_ended = asyncio.Event()

    # ----------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """In the event loop in which handlers are to run. Opens the app, without an engine, unless it is open."""
        async with self._starting:
            if self._home is not None:
                raise InvalidState("the worker runs already")
            await self._start()

    async def _start(self) -> None:
        if not self._app.is_open:
            usual = self._app.connect_by(no_engine)
            try:
                await self._app.__aenter__()
            finally:
                self._app.connect_by(usual)  # for who opens it next
            self._opened_app = True
        self.name = self._name or f"{socket.gethostname()}-{os.getpid()}"
        self._poster = Poster(min(POSTS_AT_ONCE, self._concurrency), self._ssl_context)
        self._line = Line()
        self._something_ended, self._stopping = asyncio.Event(), False
        self._home = asyncio.get_running_loop()
        log.info("worker %s takes pushes of %s", self.name, ", ".join(sorted(self.handlers)) or "nothing")

    async def stop(self, drain: Duration | None = None) -> None:
        """Take nothing more, let what runs come to its end, at most so long; the rest is told to stop, and given back:
        another worker may run it, and none of its budgets is used."""
        if self._home is None:
            return
        self._stopping = True
        await self._until(self._is_idle, self._drain_s if drain is None else seconds("drain", drain))
        for attempt in self._attempts():
            attempt.stop_for_good()
        if not await self._until(self._is_idle, STOP_S):
            for attempt in self._attempts():
                attempt.leave_behind()
            await self._until(lambda: all(attempt.silent for attempt in self._attempts()), STOP_S)
        assert self._line is not None
        assert self._poster is not None
        await asyncio.to_thread(self._line.close)
        self._poster.close()
        self._home = self._line = self._poster = None
        if self._opened_app:
            self._opened_app = False
            await self._app.__aexit__(None, None, None)

    async def _until(self, reached: Callable[[], bool], seconds: float) -> bool:
        """Looks again whenever something has ended."""
        try:
            async with asyncio.timeout(seconds):
                while not reached():
                    self._something_ended.clear()
                    await self._something_ended.wait()
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
        """Those that it runs. Workflows are not among them: their steps cannot be recorded from here."""
        found = {
            kind: handler for kind, handler in self._app.handlers.items() if not isinstance(handler, WorkflowHandler)
        }
        return found if self._kinds is None else {kind: found[kind] for kind in self._kinds if kind in found}

    def active_count(self) -> int:
        """How many tasks run here now."""
        return len(self._running)

    # ----------------------------------------------------------------------------------------- pushes

    async def handle(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one push, in the event loop in which the worker runs. One that was not started is started now."""
        if self._home is None:
            log.warning(
                "the worker was not started with its service, so it will not drain when that ends: see lifespan"
            )
            await self.start()
        if asyncio.get_running_loop() is not self._home:
            raise InvalidState("the worker runs in another event loop")
        answer = self._answer({name.lower(): value for name, value in headers.items()}, body)
        if answer.status >= 400:
            log.log(
                logging.INFO if answer.status in (409, 503) else logging.WARNING,
                "push refused: %s",
                answer.body.decode(),
            )
        return answer

    def handle_sync(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Answer one push, for services without an event loop: handlers run in a thread of the worker's own, which is
        started with the first push and drains when the program ends."""
        with self._opening:
            if self._portal is None:
                self._portal = Portal(self)
        assert self._home is not None
        return asyncio.run_coroutine_threadsafe(self.handle(headers, body), self._home).result()

    def _answer(self, headers: dict[str, str], body: bytes) -> Answer:
        if len(body) > BODY_MAX_BYTES:
            return told(413, "too_large", f"a push has at most {BODY_MAX_BYTES} bytes")
        try:
            check_signature(self._keys, headers, body, time.time(), self._signature_age_s)
        except Unauthenticated as error:
            return told(401, "bad_signature", error.message)
        try:
            envelope = decoded(_envelope, body)
        except Invalid as error:
            return told(400, "bad_envelope", str(error))
        task_id = parse_id("task", envelope.task_id)
        if task_id is None:
            return told(400, "bad_envelope", f"{envelope.task_id[:100]!r} is not an id of a task")
        return self._accept(task_id, envelope)

    def _accept(self, task_id: UUID, envelope: TaskEnvelope) -> Answer:
        """Take it, unless it is or was here already, or there is no room. 200 and 409: do not send it again."""
        older = self._running.get(task_id)
        if (task_id, envelope.attempt) in self._ended:
            return told(200)
        if older is not None and older.number >= envelope.attempt:
            return told(409, "duplicate", f"attempt {older.number} runs here already")
        handler = self.handlers.get(envelope.kind or envelope.asset_id)
        if handler is None:
            return told(
                404, "unknown_kind", f"there is no handler for {(envelope.kind or envelope.asset_id)[:200]} here"
            )
        if older is not None:  # the engine has given it up, or there would be no newer one
            self._ending.add(self._running.pop(task_id))
            older.supersede()
        if self._stopping or len(self._running) + len(self._ending) >= self._concurrency:
            why = "the worker stops" if self._stopping else f"{self._concurrency} tasks run already"
            return told(503, "busy", why, retry_after_s=FULL_RETRY_AFTER_S)
        assert self._line is not None
        assert self._poster is not None
        self._running[task_id] = attempt = PushedAttempt(
            task_id, envelope, handler, self.name, self._callback_url or envelope.callback_base_url, self._attempt_ended
        )
        attempt.begin(self._line, self._poster)
        return told(202)

    def _attempt_ended(self, attempt: PushedAttempt) -> None:
        """Its handler, or what is said about it."""
        self._something_ended.set()
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
        from windlass.sdk.callback.asgi import serve

        await serve(self, scope, receive, send)

    def wsgi(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """As a WSGI application: `application = worker.wsgi`, or mounted in another."""
        from windlass.sdk.callback.wsgi import serve

        return serve(self, environ, start_response)

    def router(self, path: str = "/windlass") -> Any:
        """A router for FastAPI: `api.include_router(worker.router())` starts and stops the worker with the service."""
        from windlass.sdk.callback.fastapi import made_router

        return made_router(self, path)


def told(status: int, error: str = "", message: str = "", *, retry_after_s: int | None = None) -> Answer:
    body = msgspec.json.encode({"error": error, "message": message} if error else {"accepted": True})
    headers = {"content-type": "application/json"}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    return Answer(status, body, headers)


def _listed(secrets: object) -> Sequence[str]:
    if not isinstance(secrets, tuple | list) or not secrets:
        raise Invalid("must be text, or a list of at least one", field="secret")
    return secrets
