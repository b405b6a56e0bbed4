"""The HTTP application of the lease contract, for a server that requires client certificates.

The caller is known by the certificate of its connection, which the server has checked and put into the scope. No route
works without one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from windlass.api.framework import openapi
from windlass.api.framework.application import Application, Authenticator, ErrorForm, Limits
from windlass.api.framework.request import Request
from windlass.api.framework.route import INTERNAL_TABLES, Route, Scheme, Table
from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.server.forms import plain_error, refused
from windlass.contracts.lease.server.service import Service
from windlass.contracts.lease.server.wakeups import NO_MESSAGES, WakeupRoutes
from windlass.contracts.lease.wire import messages as wire
from windlass.contracts.lease.wire import wakeup
from windlass.engine.engine import Engine
from windlass.net.asgi import while_connected

log = logging.getLogger("windlass.lease")

CALLER = "caller"  # in the state of a connection
CERTIFICATE = Scheme("certificate", (("type", "mutualTLS"),))
ERRORS = {
    400: "`invalid_argument`: the body is invalid; `field` names the invalid field.",
    403: "`not_allowed`: the task or the certificate does not permit this.",
    404: "`task_not_found`: there is no such task.",
    409: "`stale_lease`: stop, the lease is no longer valid; `conflict`: the attempt already has another result.",
    413: "`payload_too_large`: the body has more than 2 MiB.",
    503: "`unavailable`: send the same request again after `Retry-After`.",
}
Call = Request[Any, bytes]


class Services(NamedTuple):
    """The services behind the routes. Routes of other rooms use the engine."""

    engine: Engine
    tasks: Service
    wakeups: WakeupRoutes


async def authenticate(call: Call) -> Caller:
    caller: Caller = call.scope["state"][CALLER]
    log.debug("%s %s by %s", call.scope["method"], call.scope["path"], caller.subject)
    return caller


async def fetch(call: Call) -> wire.FetchAnswer:
    answer: wire.FetchAnswer = await call.service.tasks.fetch(call.query.task_id, call.caller)
    return answer


async def receive(call: Call) -> wakeup.Messages:
    """A long poll. It ends when the caller disconnects, so that no message is delivered to a caller that has left."""
    poll = call.service.wakeups.receive(call.body, call.caller)
    return await while_connected(poll, call.receive, call.closing) or NO_MESSAGES


def _task(
    name: str, method: Callable[..., Awaitable[object]], summary: str, body: type, answer: Any, *, large: bool = False
) -> Route:
    async def handler(call: Call) -> object:
        return await method(call.service.tasks, call.body, call.caller)

    return _post(name, handler, summary, body, answer, large=large)


def _wakeup(
    path: str, method: Callable[..., Awaitable[object]], summary: str, body: type, answer: type = wakeup.Kept
) -> Route:
    async def handler(call: Call) -> object:
        return await method(call.service.wakeups, call.body, call.caller)

    return _post(path.removeprefix("/internal/"), handler, summary, body, answer)


def _post(
    name: str, handler: Callable[[Call], Awaitable[Any]], summary: str, body: type, answer: Any, *, large: bool = False
) -> Route:
    return Route(
        "POST", f"/internal/{name}", handler, name.replace("/", "-"), summary, CERTIFICATE, body=body, answer=answer,
        large=large, raw=True, errors=tuple(ERRORS),
    )  # fmt: skip


TABLES = (
    Table("tasks", [
        _task("task-claim", Service.claim, "Claim a task.", wire.ClaimRequest,
              wire.ClaimedAnswer | wire.NotClaimedAnswer),
        _task("heartbeat", Service.heartbeat, "Extend the lease of a task.", wire.HeartbeatRequest,
              wire.HeartbeatAnswer),
        _task("task-complete", Service.complete, "Report the end of an attempt.", wire.CompleteRequest,
              wire.CompleteAnswer, large=True),
        _task("events", Service.events, "Report that a dataset has new data.", wire.EventsRequest, wire.AcceptedAnswer),
        _task("buffer-publish", Service.publish, "Publish a batch of records.", wire.PublishRequest,
              wire.PublishAnswer),
        _task("invalidations", Service.invalidate, "Report that a part of an output was wrong.",
              wire.InvalidateRequest, wire.InvalidateAnswer),
        Route("GET", "/internal/task-fetch", fetch, "task-fetch", "Get the status of a task.", CERTIFICATE,
              query=wire.FetchQuery, answer=wire.FetchAnswer, errors=(400, 404, 503)),
    ]),
    Table("wakeups", [
        _wakeup(wakeup.ROUTE, WakeupRoutes.route, "Get the carrier of a queue's wake-ups.", wakeup.QueueRef,
                wakeup.Route),
        _post("wakeups/receive", receive, "Wait for messages that are carried by PostgreSQL.", wakeup.Receive,
              wakeup.Messages),
        _wakeup(wakeup.EXTEND, WakeupRoutes.extend, "Extend the visibility timeout of a message.", wakeup.Extend),
        _wakeup(wakeup.ACK, WakeupRoutes.ack, "Acknowledge a message.", wakeup.Held),
        _wakeup(wakeup.NACK, WakeupRoutes.nack, "Return a message, to be delivered again.", wakeup.Nack),
        _wakeup(wakeup.IDLE, WakeupRoutes.report_idle, "Report that no message arrived from NATS or SQS.",
                wakeup.QueueRef),
        _wakeup(wakeup.DEAD_LETTER, WakeupRoutes.dead_letter, "Dead-letter a message that cannot be processed.",
                wakeup.DeadLetter),
    ]),
    *INTERNAL_TABLES,
)  # fmt: skip
ROUTES = [route for table in TABLES for route in table.routes]
CONTRACT = openapi.Contract(
    info={"title": "Windlass leases", "summary": "Requests of workers that lease tasks."},
    scheme=CERTIFICATE,
    error=wire.RefusedAnswer,
    errors=ERRORS,
)


def openapi_document(version: str) -> dict[str, Any]:
    return openapi.document(TABLES, CONTRACT, version)


def make_app(engine: Engine, service: Service, wakeups: WakeupRoutes, version: str) -> Application:
    """The application for one engine."""
    app = Application(
        ROUTES, Services(engine, service, wakeups), ErrorForm(refused, plain_error), log=log,
        authenticate={CERTIFICATE.name: Authenticator(authenticate)},
        limits=Limits(large_bytes=service.room_bytes, advice=service.advice),
    )  # fmt: skip
    app.add_document("/internal/openapi.json", CERTIFICATE, openapi_document(version))
    return app
