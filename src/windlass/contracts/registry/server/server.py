"""`kagzi.WorkflowService` over gRPC: finds the handler of a call and turns errors into a status of this wire.

The handler of `StartWorkflow` is the function `start_workflow` of one of the `MODULES`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import grpc

from windlass.contracts.registry.server import health, poll, run, schedule, step, work, worker
from windlass.contracts.registry.server.call import Call, Handler, Options, ServerContext
from windlass.contracts.registry.wire.service import METHODS, SERVICE, Method
from windlass.contracts.registry.wire.status import DETAILS_KEY, refusal_of
from windlass.core.access import Principal, Role
from windlass.engine.engine import Engine
from windlass.errors import WindlassError
from windlass.net.grpc_admission import Guard, Metadata
from windlass.net.grpc_channel import bearer_key

log = logging.getLogger("windlass.registry")

Identify = Callable[[str], Awaitable[Principal]]

MODULES: tuple[ModuleType, ...] = (run, schedule, worker, poll, work, step, health)
WITHOUT_KEY = frozenset({"HealthCheck"})
ANYBODY = Principal("anybody", Role.OPERATOR)


class RegistryServer:
    """The methods of the service. `identify` returns the principal of an API key, or raises Unauthenticated."""

    def __init__(self, engine: Engine, identify: Identify, options: Options) -> None:
        self._identify, self._options, self._shared = identify, options, ServerContext(engine, options)

    def handler(self) -> Any:
        return grpc.method_handlers_generic_handler(
            SERVICE, {name: self._method(name, method) for name, method in METHODS.items()}
        )

    def _method(self, name: str, method: Method) -> Any:
        functions = (getattr(module, method.function, None) for module in MODULES)
        handle = next((function for function in functions if function is not None), None)
        return grpc.unary_unary_rpc_method_handler(
            partial(self._answer, name, handle), method.request.FromString, method.response.SerializeToString
        )

    async def _answer(self, name: str, handle: Handler | None, message: Any, context: Any) -> Any:
        if handle is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not served")
        assert handle is not None
        try:
            metadata = dict(context.invocation_metadata() or ())
            principal = await self._principal(name, metadata)
            log.debug("%s by %s", name, principal.name)
            return await handle(Call(self._shared, principal, context, metadata), message)
        except WindlassError as error:
            await _refuse(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception:
            log.exception("internal error in %s", name)
            await _refuse(context, WindlassError("internal error of the server; it has been logged"))

    @property
    def guard(self) -> Guard:
        return Guard(self.admit, _refuse, self._watch)

    def _watch(self, metadata: Metadata) -> AbstractContextManager[None]:
        if self._options.open and "authorization" not in metadata:
            return nullcontext()
        return self._shared.engine.keys.opened(bearer_key(metadata))

    async def admit(self, method: str, metadata: Metadata) -> bool:
        """Checks the API key before the message of a call is read. An open server admits every caller."""
        if method in WITHOUT_KEY:
            return False
        await self._principal(method, metadata)
        return True

    async def _principal(self, name: str, metadata: Metadata) -> Principal:
        if name in WITHOUT_KEY or (self._options.open and "authorization" not in metadata):
            return ANYBODY
        return await self._identify(bearer_key(metadata))


async def _refuse(context: Any, error: WindlassError) -> None:
    refusal = refusal_of(error, dict(context.invocation_metadata() or ()).get("user-agent"))
    await context.abort(refusal.status, refusal.message, ((DETAILS_KEY, refusal.details),))
