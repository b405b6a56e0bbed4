"""A client of our HTTP API: the standard library only, so that a command needs no database and little else.

What the server refuses comes back as the error that it raised (`problem+json`, by its code); a server that is away or
busy is tried again for a while, as its error says. Values are what JSON makes of them: the forms belong to the server.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import msgspec

from windlass.core.check import LARGE_MAX_BYTES
from windlass.core.error import (
    Conflict,
    ContractViolation,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
    WindlassError,
    why_broken,
)

BASE = "/api/v1"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
BODY_MAX = 2 * LARGE_MAX_BYTES + 1024 * 1024  # a task with its payload and its result
PAGE = 200

# For servers between us and Windlass, which know nothing of our codes.
BY_STATUS: dict[int, type[WindlassError]] = {
    400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid, 429: Overloaded,
}  # fmt: skip


class Change(NamedTuple):
    """One thing that happened, from the live feed; `id` is where to go on after a break."""

    id: str
    what: str
    data: Any


class Unreachable(Unavailable):
    """Nobody listens there."""

    code = "unreachable"


class ApiClient:
    """Calls of one server with one key. Not for many threads at once."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 5.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid("must begin with http:// or https://", field="url")
        self.url = url.rstrip("/")
        self._parts, self._key = parts, api_key
        self._timeout_s, self._patience_s, self._pause = timeout_s, patience_s, pause

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        return self._call("GET", path, query)

    def post(self, path: str, body: object = None, *, query: Mapping[str, object] | None = None) -> Any:
        """Sent with a key of its own, so that it may be sent again when its answer was lost."""
        return self._call("POST", path, query, {} if body is None else body, key=str(uuid4()))

    def put(self, path: str, body: object, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("PUT", path, query, body)

    def patch(self, path: str, body: object, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("PATCH", path, query, body)

    def delete(self, path: str, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("DELETE", path, query)

    def items(self, path: str, query: Mapping[str, object], most: int) -> Iterator[dict[str, Any]]:
        """One after the other, page by page, up to `most`."""
        position, left = None, most
        while left > 0:
            page = self.get(path, {**query, "after": position, "limit": min(left, PAGE)})
            yield from page["items"][:left]
            left -= len(page["items"])
            position = page.get("next")
            if not position:
                return

    # ----------------------------------------------------------------------------------------- one call

    def _call(
        self, method: str, path: str, query: Mapping[str, object] | None, body: object = None, key: str | None = None
    ) -> Any:
        """Until it is answered, or for `patience_s`; what follows a pause is the same request."""
        headers = {"Accept": "application/json, application/problem+json"}
        if key is not None:
            headers["Idempotency-Key"] = key
        payload = None if body is None else msgspec.json.encode(body)
        waited_s, pause_s = 0.0, FIRST_PAUSE_S
        while True:
            try:
                return self._once(method, _target(path, query), payload, headers)
            except Unavailable as error:
                if waited_s >= self._patience_s or isinstance(error, Unreachable):
                    raise  # nobody listens: a person wants to know that at once
                asked_s = error.details.get("retry_after_s")
                wait_s = min(asked_s if isinstance(asked_s, float) else pause_s, self._patience_s - waited_s)
            self._pause(wait_s)
            waited_s += max(wait_s, 0.001)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _once(self, method: str, target: str, payload: bytes | None, headers: Mapping[str, str]) -> Any:
        connection = self._connect()
        try:
            with self._ask(connection, method, target, payload, headers) as response:
                content = response.read(BODY_MAX)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.url} broke off: {why_broken(error)}") from None
        finally:
            connection.close()
        if response.status == 401 and self._key is None:
            raise Forbidden("the server asks for a key: give --api-key, or set WINDLASS_API_KEY")
        if response.status >= 400:
            raise error_of(response.status, content, response.getheader("Retry-After"))
        return _decoded(content) if content else None

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._parts.scheme == "https":
            tls = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(
                f"cannot reach {self.url}: {why_broken(error)}. Does `windlass dev` or `windlass serve` run there?"
            ) from None
        return connection

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        payload: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        sent = dict(headers)
        if payload is not None:
            sent["Content-Type"] = "application/json"
        if self._key is not None:
            sent["Authorization"] = f"Bearer {self._key}"
        connection.request(method, self._parts.path.rstrip("/") + target, payload, sent)
        return connection.getresponse()

    # ----------------------------------------------------------------------------------------- the live feed

    def changes(self, query: Mapping[str, object] | None = None, *, after: str | None = None) -> Iterator[Change]:
        """What happens from now on (or after a change), until the server ends or the caller stops."""
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
        connection = self._connect()
        try:
            with self._ask(connection, "GET", _target("/changes", query), None, headers) as response:
                if response.status >= 400:
                    raise error_of(response.status, response.read(BODY_MAX), response.getheader("Retry-After"))
                yield from read_changes(response)
        except TimeoutError:
            return  # nothing happened for a while, not even a sign of life
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{self.url} broke off: {why_broken(error)}") from None
        finally:
            connection.close()


def _target(path: str, query: Mapping[str, object] | None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None and value != ()}
    text = urlencode(given, doseq=True)
    return f"{BASE}{quote(path)}{'?' + text if text else ''}"


def read_changes(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Change]:
    """Server-Sent Events: fields line by line, an empty line ends one; comments are signs of life."""
    fields: dict[str, list[str]] = {}
    for raw in lines:
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        if not line:
            if "data" in fields:
                data = _decoded("\n".join(fields["data"]).encode())
                yield Change(fields.get("id", [""])[-1], fields.get("event", ["message"])[-1], data)
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))


# --------------------------------------------------------------------------------------------- errors


def error_of(status: int, content: bytes, retry_after: str | None = None) -> WindlassError:
    """The error that the server raised, or what its status means where the answer is not ours."""
    problem = _problem(content)
    known = errors_by_code().get(str(problem.pop("code", "")))
    kind = known or BY_STATUS.get(status) or (Unavailable if status >= 500 else Rejected)
    message = problem.pop("detail", None) or problem.pop("title", None) or f"the server answered {status}"
    details = {name: value for name, value in problem.items() if name not in ("type", "title", "status", "instance")}
    error = kind()
    error.message, error.details = str(message), details
    error.args = (error.message,)
    if isinstance(error, Invalid):
        error.field = str(details.get("field", ""))
    if retry_after is not None and retry_after.isdigit():
        error.details["retry_after_s"] = float(retry_after)
    return error


def errors_by_code() -> dict[str, type[WindlassError]]:
    def below(kind: type[WindlassError]) -> list[type[WindlassError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    return {kind.code: kind for kind in reversed(below(WindlassError))}


def _problem(content: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _decoded(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ContractViolation("the server's answer is not JSON: is it Windlass?") from None
