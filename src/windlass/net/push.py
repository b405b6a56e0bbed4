"""The asynchronous HTTP client: calls only addresses that were checked, follows no redirects, in bounded time.

Not a library, since that would resolve the name again after the check. The reply is a status, headers, and the
beginning of a body.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import h11
import msgspec

from windlass.errors import Invalid, why_broken
from windlass.net.http import Unreachable
from windlass.net.targets import Targets

ANSWER_MAX_BYTES = 64 * 1024
PORTS = {"http": 80, "https": 443}


class Reply(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


async def resolve(url: str, targets: Targets | None) -> list[str]:
    """The addresses of the host of a URL. Raises Forbidden if one may not be called, Unreachable if there is none."""
    parts = split(url)
    assert parts.hostname, url
    if targets is not None:
        targets.check_name(parts.hostname)  # also where it has no address
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable("", f"{parts.hostname} has no address: {error}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if targets is not None:
        for address in addresses:
            targets.check(parts.hostname, address)
    return addresses


def split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Invalid(f"cannot be read: {error}", field="url") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise Invalid("must be an http or https URL with a host", field="url")
    return parts


async def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    timeout_s: float,
    targets: Targets | None,
    method: str = "POST",
    answer_max: int = ANSWER_MAX_BYTES,
    context: ssl.SSLContext | None = None,
    socket_path: str | None = None,
) -> Reply:
    """Send one request to the first address that accepts a connection, or to a Unix socket. `targets` are the addresses
    that may be called; None for a URL of our own. `context` is for certificates other than the usual ones."""
    try:
        async with asyncio.timeout(timeout_s):
            if socket_path is not None:
                reader, writer = await asyncio.open_unix_connection(socket_path)
            else:
                addresses = await resolve(url, targets)
                reader, writer = await _connect(split(url), addresses, context)
            try:
                return await _exchange(reader, writer, split(url), method, headers, body, answer_max)
            finally:
                writer.close()
    except TimeoutError:
        raise Unreachable("", f"no answer within {timeout_s:g} s") from None
    except (OSError, h11.ProtocolError, EOFError) as error:
        raise Unreachable("", why_broken(error)) from None


async def _connect(
    parts: SplitResult, addresses: list[str], trusted: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = (trusted or ssl.create_default_context()) if parts.scheme == "https" else None
    failed: OSError | None = None
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address, _port(parts), ssl=context, server_hostname=parts.hostname if context else None
            )
        except OSError as error:
            failed = error
    raise failed or OSError("no address")


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    parts: SplitResult,
    method: str,
    headers: Mapping[str, str],
    body: bytes,
    answer_max: int,
) -> Reply:
    connection = h11.Connection(h11.CLIENT)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    sent = [("Host", host), ("Content-Length", str(len(body))), ("Connection", "close"), *headers.items()]
    for event in (h11.Request(method=method, target=target, headers=sent), h11.Data(data=body), h11.EndOfMessage()):
        writer.write(connection.send(event) or b"")
    await writer.drain()
    status, received, content = 0, {}, b""
    while True:
        event_: Any = connection.next_event()
        if event_ is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event_, h11.Response):
            status = event_.status_code
            received = {name.decode("latin-1"): value.decode("latin-1") for name, value in event_.headers}
        elif isinstance(event_, h11.Data):
            content += bytes(event_.data)
            if len(content) > answer_max:  # the beginning is enough to report
                return Reply(status, received, content[:answer_max])
        elif isinstance(event_, h11.EndOfMessage):
            return Reply(status, received, content)
        elif isinstance(event_, h11.ConnectionClosed):
            raise EOFError("the connection was closed before the answer")


def _port(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]
