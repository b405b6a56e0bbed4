"""Calls to `/internal/*` of the dispatcher, with the wrapper's certificate.

Owns what an answer means for the caller: later (no answer, or not now), never (it was refused), or over (another worker
has the attempt). The caller decides whether to repeat a call.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import UUID

import msgspec

from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.text import words_of
from windlass.core.validation import LARGE_MAX_BYTES
from windlass.errors import Invalid, LeaseLost, Rejected, Unavailable
from windlass.net.file_watcher import Watched
from windlass.net.http import Reply, Unreachable
from windlass.net.http_threads import ThreadedClient

log = logging.getLogger("windlass.wrapper")

ANSWER_TIMEOUT_S = 15.0
ANSWER_MAX_BYTES = LARGE_MAX_BYTES + 1024 * 1024
RETRY_AFTER_MAX_S = 300.0
LATER = frozenset({408, 425, 429})
BY_OTHERS = frozenset({401, 403, 404, 405})  # proxies on the way send these too, without the dispatcher's error
HEADERS = {"Content-Type": "application/json"}


class DispatcherUnavailable(Unavailable):
    """The dispatcher does not answer, or asks to be called later."""

    code = "dispatcher_away"

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Refused(Rejected):
    """The dispatcher does not accept this, and would not accept it later."""

    code = "refused"


class NotJson(Exception):
    """The request cannot be written as JSON."""


class Claimed(msgspec.Struct, frozen=True):
    """The right to run one attempt. `task` is for the operator, the token only for the dispatcher. A dispatcher that is
    `ours` reports a cancel in the answers to heartbeats; for another one it has to be fetched."""

    task_id: UUID
    attempt: int
    lease_token: str
    task: Mapping[str, Any]
    lease_s: float
    ours: bool

    @property
    def fence(self) -> dict[str, Any]:
        return {"task_id": str(self.task_id), "attempt": self.attempt, "lease_token": self.lease_token}


class NotClaimed(msgspec.Struct, frozen=True):
    """Another worker has it, or it is over or not known: nothing is to be run."""

    reason: str
    detail: str = ""


def tls_context(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """TLS with a client certificate and one authority. Raises Invalid for files that cannot be used."""
    for file in (certificate, key, authority):
        if not file.is_file():
            raise Invalid(f"there is no file {file}", field="certificate")
    try:
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid(f"{certificate}, {key} or {authority}: {error}", field="certificate") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class TlsFiles:
    """The wrapper's certificate files. They are checked before each call, so that certificates may be short-lived.
    Files that cannot be used are logged, and the certificates before them stay in use."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self._files = certificate, key, authority
        self._watched = Watched(self._files)

    def replaced(self) -> ssl.SSLContext | None:
        """The new context if the files were replaced since the last call."""
        if not self._watched.replaced():
            return None
        try:
            return tls_context(*self._files)
        except Invalid as error:
            log.warning("the replaced certificates cannot be used: %s", error)
            return None


class Dispatcher:
    """Where the wrapper's attempts are claimed and reported."""

    def __init__(
        self, url: str, context: ssl.SSLContext | None, *, threads: int = 8, tls_files: TlsFiles | None = None
    ) -> None:
        if urlsplit(url).scheme != "https" and context is not None:
            raise Invalid("must begin with https://", field="server")
        self._url, self._tls_files = url.rstrip("/"), tls_files
        self._http = ThreadedClient(threads, context, answer_max_bytes=ANSWER_MAX_BYTES)

    def close(self) -> None:
        self._http.close()

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """For carriers: status and body, whatever they are. Raises Unavailable."""
        reply = await self._send(path, body, timeout_s)
        return reply.status, reply.content

    async def claim(self, task_id: UUID, worker_id: str, claim_id: UUID) -> Claimed | NotClaimed:
        """`claim_id` is the same in each try, so that a claim whose answer was lost is found again."""
        claim = {"task_id": str(task_id), "worker_id": worker_id, "claim_id": str(claim_id)}
        reply = await self._post("task-claim", claim)
        answer = _object(reply)
        if answer.get("status") != "Claimed":
            return NotClaimed(str(answer.get("reason", "NotFound")), str(answer.get("detail") or ""))
        try:
            task = {**answer["task"], **{name: answer[name] for name in EXTRAS if name in answer}}
            attempt, token, ours = int(answer["attempt"]), str(answer["lease_token"]), "server_time" in answer
            return Claimed(task_id, attempt, token, task, _lease_s(answer), ours)
        except (KeyError, TypeError, ValueError) as error:
            raise DispatcherUnavailable(
                f"the answer to a claim cannot be read: {type(error).__name__}: {error}"
            ) from None

    async def is_cancelled(self, task_id: UUID) -> bool:
        reply = await self._send(f"/internal/task-fetch?task_id={quote(str(task_id))}", None, ANSWER_TIMEOUT_S)
        return _object(_accepted(reply)).get("status") == "Canceled"

    async def heartbeat(self, claimed: Claimed) -> Mapping[str, Any]:
        return _object(await self._post("heartbeat", claimed.fence))

    async def events(self, claimed: Claimed, events: list[Any]) -> None:
        await self._post("events", {**claimed.fence, "events": events})

    async def publish(self, claimed: Claimed, batch: Mapping[str, Any]) -> None:
        await self._post("buffer-publish", {**batch, **claimed.fence})

    async def complete(self, claimed: Claimed, report: Mapping[str, Any]) -> None:
        await self._post("task-complete", {**report, **claimed.fence})

    async def _post(self, name: str, request: Mapping[str, Any]) -> Reply:
        try:
            body = write_json(request)
        except UNWRITABLE as error:
            raise NotJson(f"it is not JSON: {words_of(error)}") from None
        return _accepted(await self._send(f"/internal/{name}", body, ANSWER_TIMEOUT_S))

    async def _send(self, path: str, body: bytes | None, timeout_s: float) -> Reply:
        if self._tls_files is not None and (context := self._tls_files.replaced()) is not None:
            self._http.trust(context)
        method = "GET" if body is None else "POST"
        try:
            return await self._http.request(method, self._url + path, headers=HEADERS, body=body, timeout_s=timeout_s)
        except Unreachable as error:
            hint = CLOSED if any(word in error.reason for word in CLOSES) else ""
            raise DispatcherUnavailable(f"{self._url}: {error.reason}{hint}") from None


# A TLS 1.3 server refuses a certificate after the handshake, by closing the connection.
CLOSES = ("RemoteDisconnected", "EOF occurred", "ConnectionResetError", "Connection reset", "alert")
CLOSED = " (so does a server that does not accept the certificate: is it of its authority, and has it not expired?)"
EXTRAS = ("scratch_uri", "capability_token")


def _accepted(reply: Reply) -> Reply:
    if 200 <= reply.status < 300:
        return reply
    word, why = _why(reply)
    if reply.status == 409:
        raise LeaseLost(why)
    if reply.status >= 500 or reply.status in LATER or reply.status < 200 or (reply.status in BY_OTHERS and not word):
        raise DispatcherUnavailable(why, reply.retry_after_s(RETRY_AFTER_MAX_S))
    raise Refused(why)


def _why(reply: Reply) -> tuple[str, str]:
    """The dispatcher's error code, if the answer is the dispatcher's, and a message for people."""
    try:
        answer = msgspec.json.decode(reply.content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return answer["error"], f"{answer['error']}: {answer.get('message', '')}"
    return "", f"{reply.status}: {reply.content[:200].decode(errors='replace')}"


def _object(reply: Reply) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(reply.content or b"{}")
    except msgspec.DecodeError as error:
        raise DispatcherUnavailable(f"an answer that cannot be read: {error}") from None
    return answer if isinstance(answer, dict) else {}


def _lease_s(answer: Mapping[str, Any]) -> float:
    """How long the lease lasts by the dispatcher's clock, if the answer has it. The wrapper's clock does not count."""
    try:
        until, now = (datetime.fromisoformat(str(answer[name])) for name in ("lease_expires_at", "server_time"))
        return max(LEASE_MIN_S, (until - now).total_seconds())
    except (KeyError, TypeError, ValueError):
        return LEASE_S


LEASE_S, LEASE_MIN_S = 30.0, 0.1
