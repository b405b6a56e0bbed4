"""Sends files to a store, with retries until they are stored, refused, or time is up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from html import unescape
from typing import BinaryIO

from windlass.net.backoff import Backoff, Transient, retry
from windlass.net.http import PAUSE_MAX_S, PAUSE_S, Client, Interrupted, Reply

AGENT = "windlass-machine"
REPLY_WAIT_S = 1.0  # for a store that closed the connection in the middle of a body


class Refused(Exception):
    """The store refused the request, and a retry would not help. `code` is the error code of the store, if any."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Slice:
    """A piece of a file as the body of a request. It ends the request when time is up."""

    def __init__(self, file: BinaryIO, start: int, size: int, until: float) -> None:
        self._file, self._left, self._until = file, size, until
        self.reply_wait_s = 0.0
        file.seek(start)

    def read(self, size: int = -1, /) -> bytes:
        if time.monotonic() > self._until:
            raise TimeoutError
        piece = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(piece)
        return piece


def send(
    client: Client,
    method: str,
    url: str,
    *,
    headers: Callable[[], Mapping[str, str]],
    body: Callable[[], bytes | Slice],
    until: float,
    wait: Callable[[float], object],
) -> Reply:
    """Send a request with retries. Headers and body are made for each try. Raises Refused, or Transient when time is
    up."""
    reply_wait_s = 0.0

    def once() -> Reply:
        nonlocal reply_wait_s
        left_s, content = max(until - time.monotonic(), 0.1), body()
        if isinstance(content, Slice):
            content.reply_wait_s = min(reply_wait_s, left_s)
        try:
            reply = client.request(method, url, headers=headers(), body=content, timeout_s=left_s)
        except Interrupted:
            reply_wait_s = REPLY_WAIT_S
            raise
        if reply.transient:
            raise Transient(f"{reply.line} {reason(reply)}".strip(), reply.retry_after_s())
        return reply

    reply = retry(once, Backoff(PAUSE_S, PAUSE_MAX_S), until=until, wait=wait)
    if reply.status >= 300:
        raise Refused(f"{reply.line} {reason(reply)}".strip(), tag(reply, "Code"))
    return reply


def reason(reply: Reply) -> str:
    """The code and the message of a store's error. Other elements are left out, since they may repeat keys."""
    found = [unescape(tag(reply, name)) for name in ("Code", "Message")]
    if reply.content.startswith(b"{"):  # our own server
        found = re.findall(r'"error":\s*"([^"\\]*)', reply.content.decode("utf-8", "replace"))
    return ": ".join(text[:300] for text in found if text)


def tag(reply: Reply, name: str) -> str:
    """The text of an element of an XML answer."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", reply.content.decode("utf-8", "replace"))
    return found[1] if found else ""
