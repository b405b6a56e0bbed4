"""The HTTP client of launchers: JSON with a timeout, over a Unix socket, TCP or TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import msgspec

from windlass.contracts.machine.launchers.port import LauncherUnavailable, LaunchRefused
from windlass.net.http import Unreachable
from windlass.net.push import post

ANSWER_MAX_BYTES = 64 * 1024 * 1024
CALL_S = 30.0
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
STOPPED = (304, 404, 409)  # a machine that does not exist counts as stopped
MESSAGE_MAX = 1000


class Answer(NamedTuple):
    status: int
    content: Any
    raw: bytes

    @property
    def message(self) -> str:
        """The error message of the server."""
        message = self.content
        if isinstance(message, dict):
            message = message.get("message") or message.get("error") or message
        return f"{self.status} {message if message is not None else self.raw.decode('utf-8', 'replace')}"[:MESSAGE_MAX]

    def expect(self, *also: int, refusal: type[Exception] = LaunchRefused) -> Self:
        """The answer itself if its status is 2xx or in `also`. Raises LauncherUnavailable for a status that a retry may
        change, `refusal` for any other."""
        if 200 <= self.status < 300 or self.status in also:
            return self
        raise (LauncherUnavailable if self.status in LATER else refusal)(self.message)


class Api:
    """The API of one server, below a path. `headers` may carry a token, so they are never logged."""

    def __init__(
        self,
        url: str,
        base_path: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        timeout_s: float = CALL_S,
    ) -> None:
        self._socket = url.removeprefix("unix://") if url.startswith("unix://") else None
        self._url = "http://localhost" if self._socket is not None else url.rstrip("/")
        self._base_path = base_path
        self._headers, self._context, self._timeout_s = dict(headers or {}), context, timeout_s

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        more_s: float = 0.0,
    ) -> Answer:
        """Return the answer, whatever its status. `more_s` extends the timeout. Raises LauncherUnavailable if
        none arrives."""
        path = self._base_path + path
        suffix = f"?{urlencode(query)}" if query else ""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "User-Agent": "windlass", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            reply = await post(
                f"{self._url}{path}{suffix}", headers, content, timeout_s=self._timeout_s + more_s, method=method,
                targets=None,
                answer_max=ANSWER_MAX_BYTES, context=self._context, socket_path=self._socket,
            )  # fmt: skip
        except Unreachable as error:
            raise LauncherUnavailable(f"{method} {path}: {error}") from None
        try:
            decoded = msgspec.json.decode(reply.body) if reply.body else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded = None
        return Answer(reply.status, decoded, reply.body)

    async def get(self, path: str, *also: int, query: Mapping[str, str] | None = None) -> Answer:
        """Read something. Raises LauncherUnavailable unless the status is 2xx or in `also`."""
        return (await self.call("GET", path, query=query)).expect(*also, refusal=LauncherUnavailable)

    async def stop(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        more_s: float = 0.0,
    ) -> None:
        """Make a call that stops something. A refusal raises LauncherUnavailable, so the next sweep tries again."""
        answer = await self.call(method, path, body, query=query, more_s=more_s)
        answer.expect(*STOPPED, refusal=LauncherUnavailable)


class RemoteLauncher:
    """A launcher with an HTTP API that does not notify us: the sweep notices machines that ended."""

    def __init__(self, api: Api, place: str) -> None:
        self._api, self.place = api, place

    def open(self, wake: Callable[[], None]) -> None:
        pass

    def close(self) -> None:
        pass


def exit_code_of(code: int | None) -> int | None:
    """The exit code of a container. 128 + SIGKILL or SIGTERM becomes the negative signal number, as for a process."""
    return {137: -9, 143: -15}.get(code, code) if code is not None else None
