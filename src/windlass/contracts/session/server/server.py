"""`windlass.v1.Worker` and `windlass.v1.Client` over gRPC.

Reads the API key, opens a session or carries out a call, and turns errors into a gRPC status (see `net.status`). The
error code travels in the trailing metadata, so that the caller gets the same error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import grpc

from windlass.contracts.session.server.calls import answer
from windlass.contracts.session.server.heartbeats import SessionHeartbeats
from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.contracts.session.server.stream import Session, answers_to
from windlass.contracts.session.wire import session_pb2 as pb
from windlass.contracts.session.wire.messages import extended_message, to_id
from windlass.core.access import Principal, Role, check_role
from windlass.core.lease import Lease
from windlass.engine.engine import Engine
from windlass.errors import ContractViolation, WindlassError
from windlass.net.grpc_admission import Guard, Metadata
from windlass.net.grpc_channel import CODE_KEY, bearer_key
from windlass.net.status import known_code, public_message, status_of

log = logging.getLogger("windlass.session")

Identify = Callable[[str], Awaitable[Principal]]

WORKER, CLIENT = "windlass.v1.Worker", "windlass.v1.Client"


class SessionServer:
    """The methods of both services. `identify` returns the principal of an API key, or raises Unauthenticated."""

    def __init__(self, engine: Engine, identify: Identify) -> None:
        self._engine, self._identify = engine, identify
        self._heartbeats, self._access = SessionHeartbeats(engine), AttemptAccess(engine)
        self._sessions: dict[UUID, asyncio.Task[Any]] = {}

    async def session(self, messages: AsyncIterator[pb.FromWorker], context: Any) -> None:
        async with errors_as_status(context):
            principal = await self._principal(context)
            session = Session(self._engine, principal, context.write, self._heartbeats, self._access)
            lease = await session.open(await _hello(messages))
            await self._replace(lease)
            try:
                await session.run(messages)
            finally:
                if self._sessions.get(lease.id) is asyncio.current_task():
                    del self._sessions[lease.id]

    async def _replace(self, lease: Lease) -> None:
        """Ends the old stream of a worker that resumed before the server noticed the break: it must claim no more."""
        me = asyncio.current_task()
        assert me is not None
        old, self._sessions[lease.id] = self._sessions.get(lease.id), me
        if old is not None:
            old.cancel()

    async def extend(self, request: pb.ExtendRequest, context: Any) -> pb.Extended:
        async with errors_as_status(context):
            lease = await self._lease(request.lease_id, context)
            return extended_message(0, await self._engine.extend_lease(lease, None))
        raise AssertionError("errors_as_status always raises")

    async def lose(self, request: pb.LoseRequest, context: Any) -> pb.Lost:
        async with errors_as_status(context):
            lease = await self._lease(request.lease_id, context)
            return pb.Lost(attempts=await self._engine.parts.leases.lose(lease, request.last_output))
        raise AssertionError("errors_as_status always raises")

    async def report_late(self, request: pb.LateReports, context: Any) -> pb.Answers:
        async with errors_as_status(context):
            principal = await self._principal(context)
            check_role(principal, Role.SUBMITTER)
            lease_id = to_id("lease_id", request.lease_id)
            return await answers_to(self._engine, request.reports, lease_id, partial(self._access.refusals, principal))
        raise AssertionError("errors_as_status always raises")

    async def call(self, request: pb.CallRequest, context: Any) -> pb.CallReply:
        async with errors_as_status(context):
            principal = await self._principal(context)
            return pb.CallReply(body=await answer(self._engine, principal, self._access, request.name, request.body))
        raise AssertionError("errors_as_status always raises")

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
                self.session, pb.FromWorker.FromString, pb.ToWorker.SerializeToString
            ),
            "Extend": grpc.unary_unary_rpc_method_handler(
                self.extend, pb.ExtendRequest.FromString, pb.Extended.SerializeToString
            ),
            "Lose": grpc.unary_unary_rpc_method_handler(
                self.lose, pb.LoseRequest.FromString, pb.Lost.SerializeToString
            ),
            "ReportLate": grpc.unary_unary_rpc_method_handler(
                self.report_late, pb.LateReports.FromString, pb.Answers.SerializeToString
            ),
        }
        client = {
            "Call": grpc.unary_unary_rpc_method_handler(
                self.call, pb.CallRequest.FromString, pb.CallReply.SerializeToString
            )
        }
        return {
            WORKER: grpc.method_handlers_generic_handler(WORKER, worker),
            CLIENT: grpc.method_handlers_generic_handler(CLIENT, client),
        }


async def _hello(messages: AsyncIterator[pb.FromWorker]) -> pb.Hello:
    async for message in messages:
        if message.WhichOneof("message") != "hello":
            raise ContractViolation("a session must start with hello")
        return message.hello
    raise ContractViolation("a session must start with hello")


@asynccontextmanager
async def errors_as_status(context: Any) -> AsyncIterator[None]:
    """Turns a `WindlassError` into a status with its code. Any other exception is a bug: logged, and never shown."""
    try:
        yield
    except WindlassError as error:
        await refuse(context, error)
    except (asyncio.CancelledError, grpc.aio.AbortError):
        raise
    except Exception:
        log.exception("internal error in a session")
        await context.abort(grpc.StatusCode.INTERNAL, "internal error of the server; it has been logged")


async def refuse(context: Any, error: WindlassError) -> None:
    status = getattr(grpc.StatusCode, status_of(error).grpc)
    await context.abort(status, public_message(error)[:1000], ((CODE_KEY, known_code(error)),))
