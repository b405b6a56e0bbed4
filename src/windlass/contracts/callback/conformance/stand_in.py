"""A server that stands in for the engine: it pushes envelopes to a worker, and receives and answers its callbacks.

It decides nothing: each push has a script that gives the answers. Every callback is recorded with its time. One that is
wrong in itself (another token, another attempt, not JSON) is recorded as a fault.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

from windlass.errors import Unavailable
from windlass.net.http import Client, Unreachable
from windlass.net.ids import ulid
from windlass.net.signature import signed_headers
from windlass.testing.conformance.kit import Broken
from windlass.testing.conformance.listener import BODY_MAX_BYTES, Listener, Reply, Request
from windlass.testing.conformance.probe import Probe
from windlass.testing.conformance.watch import Watch

CATEGORIES = ("USER_CODE", "DATA_QUALITY", "INFRASTRUCTURE", "CONFIGURATION", "TIMEOUT", "CANCELLED")
OUTCOMES = ("SUCCEEDED", "FAILED", "CANCELLED")
CALLBACKS = ("started", "heartbeat", "completed")
PROBE = "probe"


@dataclass(frozen=True)
class Callback:
    """One callback."""

    what: str
    body: dict[str, Any]
    token: str
    at_s: float
    status: int


Script = Callable[[str, int], Reply | None]  # the kind of a callback, and how many of this kind came before


class Pushed:
    """One attempt that was pushed, and all its callbacks."""

    def __init__(self, engine: StandIn, envelope: dict[str, Any], script: Script) -> None:
        self.engine, self.envelope, self.script = engine, envelope, script
        self.tokens = [str(envelope["taskToken"])]  # and those that replaced it; a call on its way may carry an old one
        self.callbacks: list[Callback] = []
        self.probe = Probe("its handler")
        self.faults: list[str] = []
        self.answered = threading.Event()
        self.status: int | None = None
        self.callbacks_when_answered = 0  # how many callbacks had come when the push was answered

    @property
    def attempt(self) -> int:
        return int(self.envelope["attempt"])

    @property
    def work_s(self) -> float:
        """How long its handler should work, 0 if the payload does not say."""
        payload = self.envelope.get("payload")
        return float(payload.get("work_ms", 0)) / 1000 if isinstance(payload, dict) else 0.0

    def of_kind(self, what: str) -> list[Callback]:
        with self.engine.lock:
            return [callback for callback in self.callbacks if callback.what == what]

    def check(self) -> None:
        """Raise the first fault."""
        if self.faults:
            raise Broken(self.faults[0])

    def wait(self, what: str, count: int = 1, *, unless: str = "", timeout_s: float | None = None) -> Callback:
        """Wait for `count` callbacks of this kind. Fails if one of the kind `unless` comes first."""
        limit_s = self.engine.timeout_s + self.work_s if timeout_s is None else timeout_s
        self.engine.until(lambda: len(self.of_kind(what)) >= count or self.faults or self.of_kind(unless), limit_s)
        self.check()
        found = self.of_kind(what)
        if len(found) >= count:
            return found[count - 1]
        when = f"before {unless}" if self.of_kind(unless) else f"within {limit_s:g} s"
        raise Broken(f"{count} × {what} expected, {len(found)} came {when}; {self.summary()}")

    def quiet(self, seconds: float, after: Callback | None = None) -> None:
        """Check that no callback follows this one (None: that there is none at all)."""
        before = 0 if after is None else self.callbacks.index(after) + 1
        if self.engine.until(lambda: len(self.callbacks) > before, seconds):
            raise Broken(f"it went on with {self.callbacks[before].what}")

    def summary(self) -> str:
        push = "the push was not answered" if self.status is None else f"the push was answered with {self.status}"
        return f"{push}, callbacks: {', '.join(callback.what for callback in self.callbacks) or 'none'}"


class StandIn(Watch):
    """Listens for callbacks while it is open. A worker is given `timeout_s` for what it has to do."""

    def __init__(
        self,
        worker_url: str,
        secret: str,
        *,
        interval_ms: int,
        timeout_s: float,
        callback_url: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__()
        self.worker_url, self.secret = worker_url, secret
        self.interval_ms, self.timeout_s = interval_ms, timeout_s
        self._pushed: dict[str, list[Pushed]] = {}
        host = "0.0.0.0" if callback_url else own_address(worker_url)  # noqa: S104
        self._listener = Listener(self._receive, host=host, ssl_context=ssl_context)
        self.base_url = callback_url or self._listener.url

    def __enter__(self) -> StandIn:
        self._listener.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.__exit__(None, None, None)

    # ----------------------------------------------------------------------------------------- pushing

    def envelope(self, kind: str, payload: object, **changes: object) -> dict[str, Any]:
        now = datetime.now(UTC)
        task_id = uuid4()
        made: dict[str, Any] = {
            "taskId": ulid("task", task_id), "runId": ulid("run", UUID(int=task_id.int ^ 1)), "assetId": kind,
            "taskKey": {"asset_key": {"namespace": "conformance", "name": kind}, "operation": "materialize"},
            "tenantId": "conformance", "workspaceId": "conformance", "attempt": 1,
            "resources": {"memoryBytes": 536870912, "cpuMillicores": 1000, "timeoutMs": 3600000},
            "enqueuedAt": now.isoformat(), "deadline": (now + timedelta(hours=1)).isoformat(),
            "callbackBaseUrl": self.base_url, "taskToken": f"token.{uuid4().hex}",
            "tokenExpiresAt": (now + timedelta(hours=1)).isoformat(), "heartbeatIntervalMs": self.interval_ms,
            "heartbeatTimeoutMs": 3 * self.interval_ms, "cancelGracePeriodMs": 20 * self.interval_ms,
            "kind": kind, "queue": "conformance", "payload": payload, "failures": 0,
        }  # fmt: skip
        return made | changes

    def push(self, envelope: dict[str, Any], script: Script) -> Pushed:
        """Push an envelope as an engine does, with retries if the worker is full. Does not wait for the answer."""
        pushed = Pushed(self, envelope, script)
        self.expect(pushed)
        threading.Thread(target=self._deliver_until_accepted, args=(pushed,), daemon=True).start()
        return pushed

    def expect(self, pushed: Pushed) -> None:
        """Accept callbacks of this attempt from now on."""
        with self.lock:
            self._pushed.setdefault(pushed.envelope["taskId"], []).append(pushed)

    def now_s(self) -> int:
        return int(time.time())

    def deliver(self, pushed: Pushed) -> int:
        """Send a push once, or once more. Returns the status of the answer."""
        return self.send(json.dumps(pushed.envelope).encode(), message_id=delivery_id(pushed.envelope))

    def _deliver_until_accepted(self, pushed: Pushed) -> None:
        until_s = time.monotonic() + self.timeout_s
        try:
            status = self.deliver(pushed)
            while status in (429, 503) and time.monotonic() < until_s:
                time.sleep(0.1)
                status = self.deliver(pushed)
        except Unreachable:
            status = -1
        with self.lock:
            pushed.status, pushed.callbacks_when_answered = status, len(pushed.callbacks)
            self.news.notify_all()
        pushed.answered.set()

    def send(self, body: bytes, *, message_id: str, headers: Mapping[str, str] | None = None) -> int:
        """Send any bytes, with these headers or a correct signature. Returns the status of the answer."""
        if headers is None:
            headers = signed_headers([self.secret], message_id, self.now_s(), body)
        with closing(Client(timeout_s=self.timeout_s)) as client:  # a new connection for each request
            headers = {"Content-Type": "application/json", **headers}
            return client.request("POST", self.worker_url, headers=headers, body=body, limit=BODY_MAX_BYTES).status

    # ----------------------------------------------------------------------------------------- receiving

    def _receive(self, request: Request) -> Reply:
        """Record one callback, and answer it as the script of its push says."""
        scheme, _, token = (request.headers.get("Authorization") or "").partition(" ")
        token, raw = token if scheme == "Bearer" else "", request.body()
        words = request.target.split("?")[0].rstrip("/").split("/")
        what, task_id = words[-1], words[-2] if len(words) > 1 else ""
        with self.lock:
            if what == PROBE:
                for pushed in self._pushed.get(task_id, ()):
                    pushed.probe.call()
                return Reply(200)
            candidates = self._pushed.get(task_id)
            if candidates is None or what not in CALLBACKS:
                return Reply(404, {"error": "task_not_found", "message": f"there is nothing at {request.target}"})
            body = _read(raw)
            number = (body or {}).get("attempt")
            pushed = next((one for one in reversed(candidates) if one.attempt == number), candidates[-1])
            reply = self._reply(pushed, what, token, body)
            pushed.callbacks.append(Callback(what, body or {}, token, time.monotonic(), reply.status))
            self.news.notify_all()
            return reply

    def probe_url(self, task_id: str) -> str:
        """The URL that the handler calls while it works, so that a case notices when it stops."""
        return f"{self.base_url}/{task_id}/{PROBE}"

    def _reply(self, pushed: Pushed, what: str, token: str, body: dict[str, Any] | None) -> Reply:
        if token not in pushed.tokens:
            given = f"the token {token[:20]}…" if token else "no token"
            pushed.faults.append(f"{what} came with {given}, not with the one that this attempt was given")
            return Reply(401, {"error": "invalid_token", "message": "the token is not that of this attempt"})
        fault = _fault(what, body, pushed.attempt)
        if fault or body is None:
            pushed.faults.append(f"{what}: {fault}")
            status = 409 if "attempt" in fault else 400
            return Reply(status, {"error": "attempt_mismatch" if status == 409 else "invalid_argument"})
        before = sum(callback.what == what for callback in pushed.callbacks)
        accepted: dict[str, Any] = {"acknowledged": True, "serverTime": datetime.now(UTC).isoformat()}
        if what == "heartbeat":
            accepted["shouldCancel"] = False
        elif what == "completed":
            accepted["finalState"] = body["outcome"]
        reply = pushed.script(what, before) or Reply(200, accepted)
        if isinstance(reply.body, Mapping) and "taskToken" in reply.body:
            pushed.tokens.append(str(reply.body["taskToken"]))
        return reply


def delivery_id(envelope: Mapping[str, Any]) -> str:
    return f"{envelope['taskId']}.{envelope['attempt']}"


def _read(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _fault(what: str, body: dict[str, Any] | None, attempt: int) -> str:
    """The fault of a callback, or ""."""
    if body is None:
        return "the body is not a JSON object"
    if body.get("attempt") != attempt:
        return f"attempt is {body.get('attempt')!r}, the envelope has {attempt}"
    if not isinstance(body.get("workerId"), str) or not body["workerId"]:
        return "workerId is missing"
    percent = body.get("progressPct")
    if percent is not None and (not isinstance(percent, int) or not 0 <= percent <= 100):
        return f"progressPct is {percent!r}, which is no whole number from 0 to 100"
    if what == "completed" and body.get("outcome") not in OUTCOMES:
        return f"outcome is {body.get('outcome')!r}, not one of {', '.join(OUTCOMES)}"
    if what == "completed" and body["outcome"] == "FAILED":
        error = body.get("error")
        if not isinstance(error, dict) or error.get("category") not in CATEGORIES or not error.get("message"):
            return f"FAILED without an error that has a message and a category of {', '.join(CATEGORIES)}"
    return ""


def own_address(worker_url: str) -> str:
    """Our address as the machine of the worker sees it. Sends nothing."""
    where = urlsplit(worker_url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((where.hostname or "", where.port or 80))
            return str(way.getsockname()[0])
    except OSError as error:
        raise Unavailable(f"there is no route to {worker_url}: {error}") from None
