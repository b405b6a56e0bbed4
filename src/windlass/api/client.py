"""The client of our HTTP API, for commands, which then need no database.

An error of the server is raised as the class that the server raised, found by the code in `problem+json`. A request to
a server that is busy or restarts is repeated for a while. Values are plain JSON: the forms belong to the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import msgspec

from windlass.core.validation import LARGE_MAX_BYTES
from windlass.errors import (
    Conflict,
    ContractViolation,
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
    WindlassError,
)
from windlass.net import http
from windlass.net.backoff import Backoff
from windlass.net.http import ConnectFailed

BASE = "/api/v1"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
BODY_MAX = 2 * LARGE_MAX_BYTES + 1024 * 1024  # a task with its payload and its result
PAGE = 200

# For answers of proxies, which have no code of ours.
BY_STATUS: dict[int, type[WindlassError]] = {
    400: Invalid, 401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict, 422: Invalid, 429: Overloaded,
}  # fmt: skip


ApiPath = str | tuple[str, ...]  # with slashes, or in parts that may have slashes in them


class Unreachable(Unavailable):
    """No server listens there."""

    code = "unreachable"


class ApiClient:
    """Calls one server with one key."""

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 5.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Invalid("must begin with http:// or https://", field="url")
        self.url = url.rstrip("/")
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}{BASE}"
        self._key, self._retry_s, self._pause = api_key, retry_s, pause
        self._http = http.Client(timeout_s=timeout_s, deadline=False)

    def get(self, path: ApiPath, query: Mapping[str, object] | None = None) -> Any:
        return self._call("GET", path, query)

    def post(self, path: ApiPath, body: object = None, *, query: Mapping[str, object] | None = None) -> Any:
        """Send with an idempotency key, so that the request can be repeated if its answer is lost."""
        return self._call("POST", path, query, {} if body is None else body, key=str(uuid4()))

    def put(self, path: ApiPath, body: object, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("PUT", path, query, body)

    def patch(self, path: ApiPath, body: object, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("PATCH", path, query, body)

    def delete(self, path: ApiPath, *, query: Mapping[str, object] | None = None) -> Any:
        return self._call("DELETE", path, query)

    def items(self, path: ApiPath, query: Mapping[str, object], most: int) -> Iterator[dict[str, Any]]:
        """Yield at most `most` items of a list, read page by page."""
        position, left = None, most
        while left > 0:
            page = self.get(path, {**query, "after": position, "limit": min(left, PAGE)})
            yield from page["items"][:left]
            left -= len(page["items"])
            position = page.get("next")
            if not position:
                return

    def _call(
        self,
        method: str,
        path: ApiPath,
        query: Mapping[str, object] | None,
        body: object = None,
        key: str | None = None,
    ) -> Any:
        """Send a request, and repeat it for `retry_s` while the server is unavailable."""
        headers = {"Accept": "application/json, application/problem+json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        if key is not None:
            headers["Idempotency-Key"] = key
        payload = None if body is None else msgspec.json.encode(body)
        if payload is not None:
            headers["Content-Type"] = "application/json"
        fields = {name: value for name, value in (query or {}).items() if value is not None and value != ()}
        url = f"{self._base}{_quoted(path)}{'?' + urlencode(fields, doseq=True) if fields else ''}"
        waited_s, backoff = 0.0, Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                return self._once(method, url, payload, headers)
            except Unavailable as error:
                if waited_s >= self._retry_s or isinstance(error, Unreachable):
                    raise  # an operator should learn at once that no server listens
                retry_after_s = error.details.get("retry_after_s")
                pause_s = backoff.next_s(retry_after_s if isinstance(retry_after_s, float) else 0.0)
            pause_s = min(pause_s, self._retry_s - waited_s)
            self._pause(pause_s)
            waited_s += max(pause_s, 0.001)

    def _once(self, method: str, url: str, payload: bytes | None, headers: Mapping[str, str]) -> Any:
        try:
            reply = self._http.request(method, url, body=payload, headers=headers, limit=BODY_MAX)
        except ConnectFailed as error:
            raise Unreachable(
                f"cannot reach {self.url}: {error.reason}. Does `windlass dev` or `windlass serve` run there?"
            ) from None
        except http.Unreachable as error:
            raise Unavailable(f"{self.url} broke off: {error.reason}") from None
        if reply.status == 401 and self._key is None:
            raise Forbidden("the server requires a key: give --api-key, or set WINDLASS_API_KEY")
        if reply.status >= 400:
            raise error_of(reply.status, reply.content, reply.retry_after_s())
        if reply.body is None:
            raise ContractViolation(f"the server's answer has more than {BODY_MAX} bytes")
        if not reply.body:
            return None
        try:
            return msgspec.json.decode(reply.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ContractViolation("the server's answer is not JSON: is it Windlass?") from None


def _quoted(path: ApiPath) -> str:
    return quote(path) if isinstance(path, str) else "".join(f"/{quote(part, safe='')}" for part in path)


def error_of(status: int, content: bytes, retry_after_s: float = 0.0) -> WindlassError:
    """The error that the server raised. If the answer is not one of Windlass, the error that its status means."""
    try:
        problem = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    known = errors_by_code().get(str(problem.pop("code", "")))
    kind = known or BY_STATUS.get(status) or (Unavailable if status >= 500 else Rejected)
    message = problem.pop("detail", None) or problem.pop("title", None) or f"the server answered {status}"
    details = {name: value for name, value in problem.items() if name not in ("type", "title", "status", "instance")}
    error = kind()
    error.message, error.details = str(message), details
    error.args = (error.message,)
    if isinstance(error, Invalid):
        error.field = str(details.get("field", ""))
    if retry_after_s:
        error.details["retry_after_s"] = retry_after_s
    return error


def errors_by_code() -> dict[str, type[WindlassError]]:
    def below(kind: type[WindlassError]) -> list[type[WindlassError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    return {kind.code: kind for kind in reversed(below(WindlassError))}
