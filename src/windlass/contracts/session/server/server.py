"""`windlass.v1.Worker` and `windlass.v1.Client` over gRPC.

Reads the API key, opens a session or carries out a call, and turns errors into a gRPC status (see `net.status`). The
error code travels in the trailing metadata, so that the caller gets the same error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import grpc

from windlass.contracts.session.server.calls import answer
from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.contracts.session.server.stream import GATHER_S, Session, answers_to
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.messages import extended_message, to_id
from windlass.core.access import Principal, Role, check_role
from windlass.core.lease import Lease
from windlass.engine.debounce import Debounce
from windlass.engine.engine import Engine
from windlass.errors import ContractViolation, WindlassError
from windlass.net.grpc_admission import Guard, Metadata
from windlass.net.grpc_channel import CODE_KEY, bearer_key
from windlass.net.status import known_code, public_message, status_of

log = logging.getLogger("windlass.session")

Identify = Callable[[str], Awaitable[Principal]]
Method = Callable[[Any, Any], Awaitable[Any]]  # of a request or a stream of them, and the context of the call

WORKER, CLIENT = "windlass.v1.Worker", "windlass.v1.Client"


class SessionServer:
    """The methods of both services. `identify` returns the principal of an API key, or raises Unauthenticated."""

    def __init__(self, engine: Engine, identify: Identify) -> None:
        self._engine, self._identify = engine, identify
        self._debounce, self._access = Debounce(GATHER_S), AttemptAccess(engine)
        self._sessions: dict[UUID, asyncio.Task[Any] | None] = {}

    async def session(self, messages: AsyncIterator[pb.FromWorker], context: Any) -> None:
        principal = await self._principal(context)
        session = Session(self._engine, principal, context.write, self._debounce, self._access)
        lease = await session.open(await _hello(messages))
        me = asyncio.current_task()
        # A worker may resume before the server notices the break: its old stream must claim no more.
        old, self._sessions[lease.id] = self._sessions.get(lease.id), me
        if old is not None:
            old.cancel()
        try:
            await session.run(lease, messages)
        finally:
            if self._sessions.get(lease.id) is me:
                del self._sessions[lease.id]

    async def extend(self, request: pb.ExtendRequest, context: Any) -> pb.Extended:
        lease = await self._lease(request.lease_id, context)
        return extended_message(0, await self._engine.extend_lease(lease, None))

    async def lose(self, request: pb.LoseRequest, context: Any) -> pb.Lost:
        lease = await self._lease(request.lease_id, context)
        return pb.Lost(attempts=await self._engine.parts.leases.lose(lease, request.last_output))

    async def report_late(self, request: pb.LateReports, context: Any) -> pb.Answers:
        principal = await self._principal(context)
        check_role(principal, Role.SUBMITTER)
        lease_id = to_id("lease_id", request.lease_id)
        return await answers_to(self._engine, request.reports, lease_id, partial(self._access.refusals, principal))

    async def call(self, request: pb.CallRequest, context: Any) -> pb.CallReply:
        principal = await self._principal(context)
        return pb.CallReply(body=await answer(self._engine, principal, self._access, request.name, request.body))

    async def _lease(self, lease_id: bytes, context: Any) -> Lease:
        principal = await self._principal(context)
        check_role(principal, Role.SUBMITTER)
        return await self._access.lease(principal, to_id("lease_id", lease_id))

    async def admit(self, _method: str, metadata: Metadata) -> bool:
        """Checks the API key before the message of a call is read."""
        await self._identify(bearer_key(metadata))
        return True

    async def _principal(self, context: Any) -> Principal:
        return await self._identify(bearer_key(context.invocation_metadata()))

    @property
    def guard(self) -> Guard:
        return Guard(self.admit, refuse, lambda metadata: self._engine.keys.opened(bearer_key(metadata)))

    def handlers(self) -> dict[str, Any]:
        """The gRPC handlers by service name."""
        worker = {
            "Session": grpc.stream_stream_rpc_method_handler(
                errors_as_status(self.session), pb.FromWorker.FromString, pb.ToWorker.SerializeToString
            ),
            "Extend": _unary(self.extend, pb.ExtendRequest, pb.Extended),
            "Lose": _unary(self.lose, pb.LoseRequest, pb.Lost),
            "ReportLate": _unary(self.report_late, pb.LateReports, pb.Answers),
        }
        return {
            WORKER: grpc.method_handlers_generic_handler(WORKER, worker),
            CLIENT: grpc.method_handlers_generic_handler(
                CLIENT, {"Call": _unary(self.call, pb.CallRequest, pb.CallReply)}
            ),
        }


async def _hello(messages: AsyncIterator[pb.FromWorker]) -> pb.Hello:
    async for message in messages:
        if message.WhichOneof("message") == "hello":
            return message.hello
        break
    raise ContractViolation("a session must start with hello")


def _unary(method: Method, request: Any, response: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(errors_as_status(method), request.FromString, response.SerializeToString)


def errors_as_status(method: Method) -> Method:
    """Turns a `WindlassError` into a status with its code. Any other exception is a bug: logged, and never shown."""

    async def answer_or_abort(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except WindlassError as error:
            await refuse(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception:
            log.exception("internal error in a session")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error of the server; it has been logged")

    return answer_or_abort


async def refuse(context: Any, error: WindlassError) -> None:
    status = getattr(grpc.StatusCode, status_of(error).grpc)
    await context.abort(status, public_message(error)[:1000], ((CODE_KEY, known_code(error)),))
