"""Sends files to whoever stores them, until they are stored, refused, or time is up."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from html import unescape
from typing import BinaryIO

from windlass.sdk.machine.http import Client, Cut, Readable, Reply
from windlass.sdk.machine.patience import Transient, persist

LOOK_FIRST_S = 1.0  # for somebody who has hung up on a body before


class Refused(Exception):
    """The store does not want it; trying again will not help. `code` is its word for why, if it has one."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Slice:
    """A piece of a file as the body of a request. It ends the request when time is up."""

    def __init__(self, file: BinaryIO, start: int, size: int, until: float) -> None:
        self._file, self._left, self._until = file, size, until
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
    body: Callable[[], bytes | Readable],
    until: float,
    wait: Callable[[float], object],
) -> Reply:
    """Headers and body are made anew for each try. Raises Refused, or Transient when time is up."""
    look_first_s = 0.0

    def once() -> Reply:
        nonlocal look_first_s
        left = max(until - time.monotonic(), 0.1)
        try:
            reply = client.request(
                method, url, headers=headers(), body=body(), timeout_s=left, look_first_s=min(look_first_s, left)
            )
        except Cut:
            look_first_s = LOOK_FIRST_S
            raise
        if reply.passing:
            raise Transient(f"{reply.line} {reason(reply)}".strip(), reply.retry_after_s)
        return reply

    reply = persist(once, until=until, wait=wait)
    if reply.status >= 300:
        raise Refused(f"{reply.line} {reason(reply)}".strip(), tag(reply, "Code"))
    return reply


def reason(reply: Reply) -> str:
    """What a store says is wrong: its code and its message, and nothing of the keys that it may repeat."""
    found = [unescape(tag(reply, name)) for name in ("Code", "Message")]
    if (reply.body or b"").startswith(b"{"):  # our own server
        found = re.findall(r'"error":\s*"([^"\\]*)', (reply.body or b"").decode("utf-8", "replace"))
    return ": ".join(text[:300] for text in found if text)


def tag(reply: Reply, name: str) -> str:
    """What stands inside an element of an answer that is XML."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", (reply.body or b"").decode("utf-8", "replace"))
    return found[1] if found else ""
