"""Admits calls to a gRPC server before their messages are read.

gRPC hands a call to its interceptor when its metadata has arrived. A call without a valid key is refused there, and its
message is never read. gRPC cannot limit the size of messages by method, so calls that need no key (health) are read one
at a time, for two seconds at most. A message that cannot be decoded is refused without a traceback.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Any, NamedTuple

import grpc

from windlass.errors import Malformed, Overloaded, TooLarge, Unauthenticated, WindlassError
from windlass.net.log_throttle import Throttle
from windlass.net.memory import Memory
from windlass.net.status import public_message, status_of

log = logging.getLogger("windlass.limits")

CALLS_MAX = 10_000
FREE_CALLS_MAX, FREE_WAIT_S, FREE_READ_S, FREE_MAX_BYTES = 100, 5.0, 2.0, 64 * 1024

Metadata = Mapping[str, Any]
Refuse = Callable[[Any, WindlassError], Awaitable[None]]


async def refuse_plainly(context: Any, error: WindlassError) -> None:
    await context.abort(getattr(grpc.StatusCode, status_of(error).grpc), public_message(error)[:1000])


class Guard(NamedTuple):
    """How one service is guarded. `admit` gets the method and the metadata, and returns whether the caller is
    authenticated, or raises Unauthenticated. `refuse` sends an error in the form of the service. `watch` surrounds each
    authenticated call, and ends it with Unauthenticated when the key is revoked."""

    admit: Callable[[str, Metadata], Awaitable[bool]]
    refuse: Refuse = refuse_plainly
    watch: Callable[[Metadata], AbstractContextManager[None]] = lambda _: nullcontext()


async def _admit_without_key(_method: str, _metadata: Metadata) -> bool:
    return False


FREE = Guard(_admit_without_key)


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The interceptor for all services of one server. A service without a guard is open to all, as health is."""

    def __init__(self, guards: Mapping[str, Guard], memory: Memory, calls_max: int = CALLS_MAX) -> None:
        self._guards, self._memory, self._calls_max = guards, memory, calls_max
        self._made: dict[tuple[str, bool], Any] = {}
        self._calls = self._free_calls = 0
        self._reading = asyncio.Semaphore(1)
        self._by_address: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._throttle = Throttle(log)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None:  # gRPC answers that there is no such method, and reads nothing
            return None
        service, _, method = details.method.removeprefix("/").partition("/")
        guard = self._guards.get(service, FREE)
        try:
            known = await guard.admit(method, dict(details.invocation_metadata or ()))
        except WindlassError as error:
            return _refusing(guard.refuse, error)
        except Exception:
            log.exception("the admission to %s failed", details.method)
            return _refusing(guard.refuse, WindlassError("a defect of the server; it has been logged"))
        calls, most = (self._calls, self._calls_max) if known else (self._free_calls, FREE_CALLS_MAX)
        if calls >= most:
            detail = f"{calls} {'with' if known else 'without'} a key (grpc_calls bounds those with one)"
            self._throttle.warn("too many gRPC calls at once", detail)
            return _refusing(guard.refuse, Overloaded("too many calls are open"))
        key = details.method, known
        if key not in self._made:
            self._made[key] = self._kept(handler, guard) if known else self._free(handler, guard.refuse)
        return self._made[key]

    # ----------------------------------------------------------------------------------------- callers with a key

    def _kept(self, handler: Any, guard: Guard) -> Any:
        """Wrap a method: its messages are counted against the memory limit and decoded here."""
        behave, decode = _behaviour(handler), handler.request_deserializer

        @asynccontextmanager
        async def call(context: Any) -> AsyncIterator[None]:
            self._calls += 1
            refused = None
            try:
                with guard.watch(dict(context.invocation_metadata() or ())):
                    yield
            except (Overloaded, Malformed, Unauthenticated) as error:
                refused = _light(error)
            finally:
                self._calls -= 1
            if refused is not None:
                await guard.refuse(context, refused)

        async def messages(given: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
            async for raw in given:
                async with self._memory.hold(len(raw)):
                    yield self._decoded(raw, decode)

        async def one_to_one(raw: bytes, context: Any) -> Any:
            async with call(context), self._memory.hold(len(raw)):
                return await behave(self._decoded(raw, decode), context)

        async def many_to_many(given: AsyncIterator[bytes], context: Any) -> Any:
            async with call(context), aclosing(messages(given)) as read:
                return await behave(read, context)

        async def many_generated(given: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async with call(context), aclosing(messages(given)) as read:
                async for answer in behave(read, context):
                    yield answer

        encode = handler.response_serializer
        if not handler.request_streaming:
            assert not handler.response_streaming, "no service of ours has such a method"
            return grpc.unary_unary_rpc_method_handler(one_to_one, None, encode)
        assert handler.response_streaming, "no service of ours has such a method"
        many = many_generated if inspect.isasyncgenfunction(behave) else many_to_many
        return grpc.stream_stream_rpc_method_handler(many, None, encode)

    def _decoded(self, raw: bytes, decode: Any) -> Any:
        try:
            return decode(raw)
        except Exception:  # protobuf has errors of several kinds
            self._throttle.warn("a gRPC message cannot be decoded", f"{len(raw)} bytes")
            raise Malformed("the message cannot be decoded") from None

    # ----------------------------------------------------------------------------------------- callers without a key

    def _free(self, handler: Any, refuse: Refuse) -> Any:
        """Wrap a method that needs no key as one with a stream of messages, so that we decide when to read one."""
        behave, decode = _behaviour(handler), handler.request_deserializer
        assert not handler.request_streaming, "a method with a stream of messages needs a key"

        async def call(given: AsyncIterator[bytes], context: Any) -> Any:
            self._free_calls += 1
            try:
                message = self._decoded(await self._first(given, context.peer()), decode)
                return await behave(message, context)
            except (Overloaded, Malformed, TooLarge) as error:
                refused = _light(error)
            finally:
                self._free_calls -= 1
            await refuse(context, refused)
            raise AssertionError("a refusal ends the call")

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(call, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(call, None, handler.response_serializer)

    async def _first(self, given: AsyncIterator[bytes], peer: str) -> bytes:
        address = peer.rpartition(":")[0]
        lock = self._by_address.setdefault(address, asyncio.Lock())
        try:
            async with (
                asyncio.timeout(FREE_WAIT_S), lock, self._reading, asyncio.timeout(FREE_READ_S),
                aclosing(aiter(given)) as messages,  # type: ignore[type-var]  # or it would keep the message
            ):  # fmt: skip
                async for raw in messages:
                    size = len(raw)
                    if size <= FREE_MAX_BYTES:
                        return raw
                    raw = b""  # or the frame of the error would keep it
                    self._throttle.warn("a gRPC message without a key is too long", f"{size} bytes from {address}")
                    raise TooLarge(f"without a key, a message may have at most {FREE_MAX_BYTES} bytes")
        except TimeoutError:
            self._throttle.warn("a gRPC message without a key did not arrive in time", f"from {address}")
            raise Overloaded("the message did not arrive in time") from None
        raise Malformed("there is no message")


def _behaviour(handler: Any) -> Any:
    return handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream


def _light(error: WindlassError) -> WindlassError:
    """Drop the traceback of an error, since its frames would keep the message in memory."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _refusing(refuse: Refuse, error: WindlassError) -> Any:
    """A method that refuses a call without reading its message."""

    async def refused(_messages: Any, context: Any) -> None:
        await refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(refused)
