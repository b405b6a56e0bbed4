"""How launchers talk to whoever starts machines for them: JSON over HTTP, in bounded time, by a socket or by TLS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from windlass.engine.launcher import LauncherAway, LaunchRefused
from windlass.wire.post import Unreachable, post

ANSWER_MAX_BYTES = 64 * 1024 * 1024
CALL_S = 30.0
LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
TOLD_MAX = 1000


class Answer(NamedTuple):
    status: int
    content: Any
    raw: bytes

    @property
    def message(self) -> str:
        """What they say is wrong."""
        told = self.content
        if isinstance(told, dict):
            told = told.get("message") or told.get("error") or told
        return f"{self.status} {told if told is not None else self.raw.decode('utf-8', 'replace')}"[:TOLD_MAX]


class Api:
    """One server's API. `headers` may carry a token: they are shown to nobody."""

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
        """What they answer, whatever it is; for an answer that takes its time, so much later. Raises LauncherAway if
        they do not."""
        asked = f"?{urlencode(query)}" if query else ""
        content = b"" if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "User-Agent": "windlass", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            reply = await post(
                f"{self._url}{path}{asked}", headers, content, timeout_s=self._timeout_s + more_s, method=method,
                targets=None,
                answer_max=ANSWER_MAX_BYTES, context=self._context, socket_path=self._socket,
            )  # fmt: skip
        except Unreachable as error:
            raise LauncherAway(f"{method} {path}: {error}") from None
        try:
            told = msgspec.json.decode(reply.body) if reply.body else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = None
        return Answer(reply.status, told, reply.body)

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
        """A good answer, or one of those that are as good. Raises LaunchRefused for a refusal, LauncherAway for one
        that may be another next time."""
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
    """For stopping: what is not there needs no stopping, and a refusal is no answer that helps."""
    try:
        return (await api.expect(method, path, body, query=query, also=(304, 404, 409), more_s=more_s)).status
    except LaunchRefused as error:
        raise LauncherAway(str(error)) from None


def exit_code_of(code: int | None) -> int | None:
    """Containers tell a signal as 128 more than it is; only those that end a program from outside are taken for one."""
    return {137: -9, 143: -15}.get(code, code) if code is not None else None
