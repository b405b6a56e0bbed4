"""Calls to `/internal/*` of the dispatcher, with the wrapper's certificate.

Owns what an answer means for the caller: later (nobody answered, or not now), never (it was refused), or over (the
attempt is somebody else's). Whether something is said again is decided by who says it.
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

from windlass.core.check import LARGE_MAX_BYTES
from windlass.core.error import Invalid, LeaseLost, Rejected, Unavailable
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.text import words_of
from windlass.sdk.callback.post import Poster, Reply, Unreachable
from windlass.wire.watched import Watched

log = logging.getLogger("windlass.wrapper")

ANSWER_TIMEOUT_S = 15.0
ANSWER_MAX_BYTES = LARGE_MAX_BYTES + 1024 * 1024
LATER = frozenset({408, 425, 429})
BY_OTHERS = frozenset({401, 403, 404, 405})  # also said by what stands between us and the dispatcher, without its words
HEADERS = {"Content-Type": "application/json"}


class Away(Unavailable):
    """The dispatcher does not answer, or asks for patience."""

    code = "dispatcher_away"

    def __init__(self, message: str, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Refused(Rejected):
    """The dispatcher does not take this, and would not if it were said again."""

    code = "refused"


class Unspeakable(Exception):
    """What is to be said is no JSON, and never will be."""


class Claimed(msgspec.Struct, frozen=True):
    """The right to run one attempt. `task` is what the operator gets; the token is for nobody but the dispatcher. One
    that is `ours` tells of a cancel in its heartbeats; of others it has to be asked."""

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
    """Somebody else's, over, or not known: nothing is to be run."""

    reason: str
    detail: str = ""


def tls_context(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Who we are, and whom we believe. Raises Invalid for files that cannot be used."""
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


class Papers:
    """The files that say who we are: looked at before each call, so that certificates may live for days only. What
    cannot be used is told in the log, and what was good before stays in force."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self._files = certificate, key, authority
        self._watched = Watched(self._files)

    def replaced(self) -> ssl.SSLContext | None:
        """What they say now, if that is news."""
        if not self._watched.replaced():
            return None
        try:
            return tls_context(*self._files)
        except Invalid as error:
            log.warning("certificates were replaced by what cannot be used: %s", error)
            return None


class Dispatcher:
    """Where the wrapper's attempts are claimed and reported."""

    def __init__(
        self, url: str, context: ssl.SSLContext | None, *, threads: int = 8, papers: Papers | None = None
    ) -> None:
        if urlsplit(url).scheme != "https" and context is not None:
            raise Invalid("must begin with https://", field="server")
        self._url, self._papers = url.rstrip("/"), papers
        self._poster = Poster(threads, context, answer_max_bytes=ANSWER_MAX_BYTES)

    def close(self) -> None:
        self._poster.close()

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """For carriers: status and body, whatever they are. Raises Unavailable."""
        reply = await self._send(path, body, timeout_s)
        return reply.status, reply.body

    async def claim(self, task_id: UUID, worker_id: str, claim_id: UUID) -> Claimed | NotClaimed:
        """`claim_id` is the same in each try, so that one whose answer was lost is not held by nobody."""
        claim = {"task_id": str(task_id), "worker_id": worker_id, "claim_id": str(claim_id)}
        reply = await self._post("task-claim", claim)
        said = _object(reply)
        if said.get("status") != "Claimed":
            return NotClaimed(str(said.get("reason", "NotFound")), str(said.get("detail") or ""))
        try:
            task = {**said["task"], **{name: said[name] for name in EXTRAS if name in said}}
            return Claimed(
                task_id, int(said["attempt"]), str(said["lease_token"]), task, _lease_s(said), "server_time" in said
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Away(f"the answer to a claim cannot be read: {type(error).__name__}: {error}") from None

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

    async def _post(self, name: str, said: Mapping[str, Any]) -> Reply:
        try:
            body = write_json(said)
        except UNWRITABLE as error:
            raise Unspeakable(f"it is no JSON: {words_of(error)}") from None
        return _accepted(await self._send(f"/internal/{name}", body, ANSWER_TIMEOUT_S))

    async def _send(self, path: str, body: bytes | None, timeout_s: float) -> Reply:
        if self._papers is not None and (context := self._papers.replaced()) is not None:
            self._poster.trust(context)
        method = "GET" if body is None else "POST"
        try:
            return await self._poster.post(self._url + path, HEADERS, body or b"", timeout_s, method=method)
        except Unreachable as error:
            hint = CLOSED if any(word in str(error) for word in CLOSES) else ""
            raise Away(f"{self._url}: {error}{hint}") from None


# How a server of TLS 1.3 says no to a certificate: after the handshake, by going.
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
        raise Away(why, reply.retry_after_s)
    raise Refused(why)


def _why(reply: Reply) -> tuple[str, str]:
    """The dispatcher's word for it, if it was the dispatcher, and what a person can read."""
    try:
        said = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), str):
        return said["error"], f"{said['error']}: {said.get('message', '')}"
    return "", f"{reply.status}: {reply.body[:200].decode(errors='replace')}"


def _object(reply: Reply) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(reply.body or b"{}")
    except msgspec.DecodeError as error:
        raise Away(f"an answer that cannot be read: {error}") from None
    return said if isinstance(said, dict) else {}


def _lease_s(said: Mapping[str, Any]) -> float:
    """How long the lease lasts, by the dispatcher's own clock, where it tells the time; ours does not count."""
    try:
        until, now = (datetime.fromisoformat(str(said[name])) for name in ("lease_expires_at", "server_time"))
        return max(LEASE_MIN_S, (until - now).total_seconds())
    except (KeyError, TypeError, ValueError):
        return LEASE_S


LEASE_S, LEASE_MIN_S = 30.0, 0.1
