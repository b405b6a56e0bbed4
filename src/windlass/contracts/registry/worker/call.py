"""Calls of the service, repeated until the server answers. Every call is idempotent on the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from windlass.net.backoff import Backoff
from windlass.net.grpc_log import keep_grpc_quiet

keep_grpc_quiet()
import grpc  # noqa: E402

from windlass.contracts.registry.wire.service import METHODS, SERVICE  # noqa: E402
from windlass.core.validation import check_name, check_text  # noqa: E402
from windlass.errors import Invalid  # noqa: E402
from windlass.net.grpc_channel import open_channel  # noqa: E402

RETRIED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})
CALL_S = 15.0
FIRST_RETRY_S, MAX_RETRY_S = 0.1, 3.0

Metadata = tuple[tuple[str, str], ...]


class Refused(Exception):
    """The server refused the call."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.status, self.error = error.code(), error


class Connection:
    """A connection to a server. `address` is a URL, or HOST:PORT without TLS. The default key is `WINDLASS_API_KEY`."""

    def __init__(self, address: str, api_key: str | None) -> None:
        check_text("address", address, 1000)
        url = address if "://" in address else f"http://{address}"
        if not url.startswith(("http://", "https://")):
            raise Invalid("must be HOST:PORT, http://HOST:PORT or https://HOST:PORT", field="address")
        if api_key is not None:
            check_name("api_key", api_key)
        key = api_key or os.environ.get("WINDLASS_API_KEY", "")
        self._metadata: Metadata = (("authorization", f"Bearer {key}"),) if key else ()
        self._url = url
        self._channel: Any = None
        self._methods: dict[str, Any] = {}

    async def close(self) -> None:
        if self._channel is not None:
            channel, self._channel, self._methods = self._channel, None, {}
            await channel.close()

    async def call(self, name: str, request: Any, metadata: Metadata = (), *, timeout_s: float = CALL_S) -> Any:
        """Repeats the call until the server answers. Raises Refused."""
        return (await self.call_with_metadata(name, request, metadata, timeout_s=timeout_s))[0]

    async def call_with_metadata(
        self, name: str, request: Any, metadata: Metadata = (), *, timeout_s: float = CALL_S
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the answer and its trailing metadata."""
        backoff = Backoff(FIRST_RETRY_S, MAX_RETRY_S)
        while True:
            try:
                return await self.once(name, request, metadata, timeout_s=timeout_s)
            except Refused as refused:
                if refused.status not in RETRIED:
                    raise
            await asyncio.sleep(backoff.next_s())

    async def once(
        self, name: str, request: Any, metadata: Metadata = (), *, timeout_s: float = CALL_S
    ) -> tuple[Any, dict[str, Any]]:
        call = self._method(name)(request, metadata=(*self._metadata, *metadata), timeout=timeout_s)
        try:
            answer = await call
            return answer, dict(await call.trailing_metadata() or ())
        except grpc.aio.AioRpcError as error:
            raise Refused(error) from None
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                call.cancel()
            raise

    def _method(self, name: str) -> Any:
        if self._channel is None:
            self._channel = open_channel(self._url)
        if name not in self._methods:
            method = METHODS[name]
            self._methods[name] = self._channel.unary_unary(
                f"/{SERVICE}/{name}", method.request.SerializeToString, method.response.FromString
            )
        return self._methods[name]
