"""The HTTP client of launchers: JSON with a timeout, over a Unix socket, TCP or TLS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from windlass.contracts.machine.launchers.port import LauncherAway, LaunchRefused
from windlass.net.http import Unreachable
from windlass.net.push import post

ANSWER_MAX_BYTES = 64 * 1024 * 1024
CALL_S = 30.0
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
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


class Api:
    """The API of one server. `headers` may carry a token, so they are never logged."""

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        context: ssl.SSLContext | None = None,
        timeout_s: float = CALL_S,
    ) -> None:
        self._socket = url.removeprefix("unix://") if url.startswith("unix://") else None
        self._url = "http://localhost" if self._socket is not None else url.rstrip("/")
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
        """Return the answer, whatever its status. `more_s` extends the timeout. Raises LauncherAway if none arrives."""
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
            raise LauncherAway(f"{method} {path}: {error}") from None
        try:
            decoded = msgspec.json.decode(reply.body) if reply.body else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            decoded = None
        return Answer(reply.status, decoded, reply.body)

    async def expect(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        also: tuple[int, ...] = (),
        more_s: float = 0.0,
    ) -> Answer:
        """Return an answer whose status is 2xx or in `also`. Raises LauncherAway for a status that a retry may change,
        LaunchRefused for any other."""
        answer = await self.call(method, path, body, query=query, more_s=more_s)
        if 200 <= answer.status < 300 or answer.status in also:
            return answer
        if answer.status in LATER:
            raise LauncherAway(answer.message)
        raise LaunchRefused(answer.message)


async def quietly(
    api: Api,
    method: str,
    path: str,
    body: object = None,
    *,
    query: Mapping[str, str] | None = None,
    more_s: float = 0.0,
) -> int:
    """Make a call that stops something. A missing machine counts as stopped; a refusal raises LauncherAway, so the
    next sweep tries again."""
    try:
        return (await api.expect(method, path, body, query=query, also=(304, 404, 409), more_s=more_s)).status
    except LaunchRefused as error:
        raise LauncherAway(str(error)) from None


def exit_code_of(code: int | None) -> int | None:
    """The exit code of a container. 128 + SIGKILL or SIGTERM becomes the negative signal number, as for a process."""
    return {137: -9, 143: -15}.get(code, code) if code is not None else None
