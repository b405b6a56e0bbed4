"""A complete worker of the callback contract in plain Python: copy it, and add your own functions to HANDLERS.

Run it with `WINDLASS_SIGNING_SECRET=whsec_… python callback_worker.py 8080`; it accepts pushes at any path.
"""

import base64
import hmac
import json
import os
import signal
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from traceback import format_exc
from urllib.parse import urlsplit
from urllib.request import urlopen

SECRETS = os.environ["WINDLASS_SIGNING_SECRET"].split()  # two while the secret is rotated
WORKER = f"{os.uname().nodename}-{os.getpid()}"
RUNNING_MAX = 16
running, lock = {}, threading.Lock()  # attempts by task


def rehearse(attempt, payload):
    """The handler for `windlass conformance callback`: works in small pieces, then ends as the payload says."""
    for piece in range(pieces := payload.get("work_ms", 0) // 20):
        if payload.get("probe_url"):
            urlopen(payload["probe_url"], b"", 10).close()
        attempt.progress = {"progressPct": 100 * piece // pieces, "message": f"piece {piece} of {pieces}"}
        if attempt.stop.wait(0.02):
            return None
    if payload.get("outcome") == "FAILED":
        raise RuntimeError("asked to fail")
    return {"pieces": pieces}


HANDLERS = {"conformance": rehearse}  # kind of task -> function(attempt, payload), which returns a JSON value


class Attempt:
    def __init__(self, envelope):
        self.id, self.number, self.handler = envelope["taskId"], envelope["attempt"], HANDLERS.get(envelope["kind"])
        self.envelope, self.token, self.progress = envelope, envelope["taskToken"], {}
        self.stop, self.over = threading.Event(), threading.Event()  # stop the work; send nothing more
        self.cancelled, self.calling = False, threading.Lock()  # one call at a time

    def run(self):
        if self.call("started") is not None:
            threading.Thread(target=self.send_heartbeats, daemon=True).start()
            self.call("completed", **self.work())
        with lock:
            if running.get(self.id) is self:
                del running[self.id]

    def work(self):
        try:
            output = self.handler(self, self.envelope["payload"])
        except Exception as error:
            problem = {"category": "USER_CODE", "message": repr(error), "stackTrace": format_exc()}
            return {"outcome": "FAILED", "error": problem}
        cancelled = {"outcome": "CANCELLED", "partialProgress": self.progress}
        return cancelled if self.cancelled else {"outcome": "SUCCEEDED", "output": output}

    def send_heartbeats(self):
        while not self.over.wait(self.envelope["heartbeatIntervalMs"] / 1000):
            answer = self.call("heartbeat", **self.progress) or {}
            self.token = answer.get("taskToken", self.token)
            if answer.get("shouldCancel"):
                self.cancelled = True
                self.stop.set()

    def end(self):
        self.over.set()
        self.stop.set()

    def call(self, what, **fields):
        """Repeat a call until it is answered, or the attempt is over. Calls are idempotent; none may be lost."""
        body, wait_s = json.dumps({"attempt": self.number, "workerId": WORKER, **fields}), 0.1
        while True:
            with self.calling:
                if self.over.is_set():
                    return None
                status, retry_after_s, answer = self.post(what, body)
                if (400 <= status < 500 and status != 429) or (status == 200 and what == "completed"):
                    self.end()  # 409 and 410: another worker has the task now
                if status == 200:
                    return answer
            self.over.wait(max(wait_s, retry_after_s))
            wait_s = min(wait_s * 2, 10)

    def post(self, what, body):
        base = urlsplit(self.envelope["callbackBaseUrl"])
        connection = (HTTPSConnection if base.scheme == "https" else HTTPConnection)(base.netloc, timeout=10)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", f"{base.path.rstrip('/')}/v1/tasks/{self.id}/{what}", body, headers)
            reply = connection.getresponse()
            after, answer = reply.getheader("Retry-After", ""), reply.read() if reply.status == 200 else b""
            return reply.status, float(after) if after.isdigit() else 0.0, json.loads(answer or "{}")
        except (OSError, HTTPException, ValueError):  # unreachable, slow, or no JSON
            return 0, 0.0, {}
        finally:
            connection.close()


def signed(headers, body):
    at = headers.get("webhook-timestamp", "")
    fresh = at.isdigit() and abs(time.time() - int(at)) <= 300
    content = f"{headers.get('webhook-id')}.{at}.".encode() + body
    keys = [base64.b64decode(secret.removeprefix("whsec_")) for secret in SECRETS]
    expected = [b"v1," + base64.b64encode(hmac.digest(key, content, "sha256")) for key in keys]
    received = headers.get("webhook-signature", "").encode().split()
    return fresh and any(hmac.compare_digest(a, b) for a in expected for b in received)


def accept(attempt):
    """Start the attempt, and return the status of the answer at once."""
    with lock:
        older = running.get(attempt.id)
        if older is not None and older.number >= attempt.number:
            return 409  # this attempt already runs: the engine counts it as delivered
        if attempt.handler is None or len(running) >= RUNNING_MAX:
            return 404 if attempt.handler is None else 503
        if older is not None:
            older.end()
        running[attempt.id] = attempt
    threading.Thread(target=attempt.run).start()  # no daemon, so that running attempts finish when the server stops
    return 202


class Pushes(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), 4_000_000))
        try:
            status = accept(Attempt(json.loads(body))) if signed(self.headers, body) else 401
        except (ValueError, KeyError, TypeError):
            status = 400
        self.send_response(status)
        self.send_header("Retry-After", "1")  # for a 503
        self.end_headers()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("", int([*sys.argv, "8080"][1])), Pushes)
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"taking pushes on port {server.server_port}", flush=True)
    server.serve_forever()
