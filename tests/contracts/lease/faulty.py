"""A worker of the lease contract with nothing but the standard library, for its conformance cases.

`python faulty.py [FAULT]`. Without a fault it passes every case. Each fault changes one thing. Run as a program, in a
process of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SERVER = urlsplit(os.environ["LEASE_SERVER"])
CONCURRENCY = int(os.environ["LEASE_CONCURRENCY"]) + (FAULT == "takes too many")
WHERE = {"queue": os.environ["LEASE_QUEUE"], "namespace": os.environ["LEASE_NAMESPACE"]}
context = ssl.create_default_context(cafile=os.environ["LEASE_CA"])
if FAULT != "shows no certificate":
    context.load_cert_chain(os.environ["LEASE_CERTIFICATE"], os.environ["LEASE_KEY"])
if FAULT == "trusts anybody":
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
stopping = threading.Event()
FENCES: dict[str, dict[str, Any]] = {}


class Lost(Exception):
    """409: somebody else has it."""


class Refused(Exception):
    """Any other 4xx."""


def once(name: str, body: dict[str, Any], timeout_s: float = 10) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPSConnection(SERVER.netloc, timeout=timeout_s, context=context)
    try:
        connection.request("POST", f"/internal/{name}", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read() or b"{}")
    except (OSError, http.client.HTTPException, ValueError):
        return 0, {}
    finally:
        connection.close()


def call(name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Until it is answered."""
    pause_s = 0.05
    while True:
        status, told = once(name, body)
        if status == 200 or FAULT == f"does not repeat {name}":  # noqa: SIM300
            return told
        if status == 409 and FAULT != f"does not accept a refusal of {name}":  # noqa: SIM300
            raise Lost
        if 400 <= status < 500 and status != 409:
            raise Refused(told.get("message"))
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 1.0)


class Attempt:
    def __init__(self, claimed: dict[str, Any]) -> None:
        self.task, self.over, self.stop = claimed["task"], threading.Event(), threading.Event()
        self.cancelled = self.lost = False
        token = "none" if FAULT == "forgets its token" else claimed["lease_token"]
        self._fence = FENCES[self.task["task_id"]] = {
            "task_id": self.task["task_id"],
            "attempt": claimed["attempt"],
            "lease_token": token,
        }
        until, now = (datetime.fromisoformat(claimed[name]) for name in ("lease_expires_at", "server_time"))
        self.every_s = (until - now).total_seconds() / 3

    @property
    def fence(self) -> dict[str, Any]:
        return FENCES[self.task["task_id"]] if FAULT == "mixes attempts up" else self._fence

    def run(self) -> None:
        if FAULT != "never heartbeats":
            threading.Thread(target=self.beat, daemon=True).start()
        try:
            report = self.work()
            if not self.lost or FAULT == "reports what it lost":
                self.report(report)
        except Lost:
            pass
        finally:
            self.over.set()

    def report(self, report: dict[str, Any]) -> None:
        try:
            call("task-complete", {**self.fence, **report})
            if FAULT == "completes twice":
                call("task-complete", {**self.fence, **report})
        except Lost:
            if FAULT == "fails what was refused":
                once("task-complete", {**self.fence, "status": "Failed", "error_message": "refused"})

    def work(self) -> dict[str, Any]:
        config = self.task["config"]
        try:
            for event in config.get("events") or ():
                if FAULT != "drops events":
                    call("events", {**self.fence, "events": [event]})
            self.operate(config)
        except RuntimeError as error:
            message = None if FAULT == "tells no reason" else str(error)
            return {"status": "Failed", "events": [], "outputs": [], "error_message": message}
        if self.cancelled:
            return {"status": "Completed" if FAULT == "completes what was cancelled" else "Canceled"}
        outputs = [] if FAULT == "drops outputs" else config.get("outputs") or []
        return {"status": "Completed", "events": [], "outputs": outputs, "error_message": None}

    def operate(self, config: dict[str, Any]) -> None:
        deaf = FAULT == "does not stop its operator"
        for _ in range(config.get("work_ms", 0) // 20):
            if config.get("probe_url"):
                urllib.request.urlopen(config["probe_url"], b"", 10).close()
            if not deaf and self.stop.wait(0.02):
                return
            if deaf:
                time.sleep(0.02)
        if config.get("outcome") == "Failed":
            raise RuntimeError("asked to fail")

    def beat(self) -> None:
        while not self.over.wait(self.every_s):
            status, told = once("heartbeat", self.fence)
            if status == 409 and FAULT != "ignores its loss":
                self.lost = True
                self.stop.set()
                return
            if told.get("status") == "Canceled" and FAULT != "ignores a cancel":
                self.cancelled = True
                self.stop.set()
            if status != 200 and FAULT == "gives up when a heartbeat fails":
                self.lost = True
                self.stop.set()


def handle(message: dict[str, Any]) -> None:
    held = {"message_id": message["message_id"], "deliveries": message["deliveries"]}
    done = threading.Event()
    if FAULT != "lets messages go":
        threading.Thread(target=keep, args=(held, done), daemon=True).start()
    try:
        if FAULT == "acks at once":
            call("wakeups/ack", held)
        try:
            told = json.loads(message["body"])
            task_id = told["task_id"]
            if FAULT == "refuses unknown fields" and set(told) != {"task_id"}:
                raise ValueError("unknown fields")  # noqa: TRY301
            bad = not isinstance(task_id, str) or len(task_id) != 36
        except (ValueError, KeyError, TypeError):
            bad = True
        if bad:
            if FAULT == "ends with the first garbage":
                os._exit(1)
            call("wakeups/nack" if FAULT == "gives garbage back" else "wakeups/ack", held)
            return
        work(task_id)
        if FAULT != "never acks":
            call("wakeups/ack", held)
    finally:
        done.set()


def work(task_id: str) -> None:
    who = {} if FAULT == "has no name" else {"worker_id": f"faulty:{os.getpid()}"}
    claimed = call("task-claim", {"task_id": task_id, **who})
    if claimed.get("status") == "Claimed":
        Attempt(claimed).run()
    elif FAULT == "runs what it could not claim":
        once("task-complete", {"task_id": task_id, "attempt": 1, "lease_token": "none", "status": "Completed"})


def keep(held: dict[str, Any], done: threading.Event) -> None:
    while not done.wait(0.5):
        once("wakeups/extend", {**held, "visibility_s": 3})


def main() -> None:
    slots = threading.Semaphore(CONCURRENCY)

    def run(message: dict[str, Any]) -> None:
        try:
            handle(message)
        finally:
            slots.release()

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        while not stopping.is_set():
            if not slots.acquire(timeout=0.1):
                continue
            status, told = once("wakeups/receive", {**WHERE, "limit": 1, "wait_s": 0.2, "visibility_s": 3})
            messages = told.get("messages", [])
            if status != 200:
                time.sleep(0.2)
            if stopping.is_set() and messages and FAULT != "claims while it stops":
                once("wakeups/nack", {**messages.pop(), "delay_s": 0})
            if messages:
                pool.submit(run, messages[0])
            else:
                slots.release()
        if FAULT == "leaves its tasks":
            os._exit(0)
        if FAULT == "claims while it stops":
            time.sleep(0.3)
            told = once("wakeups/receive", {**WHERE, "limit": 1, "wait_s": 2, "visibility_s": 3})[1]
            for message in told.get("messages", []):
                pool.submit(run, message)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    main()
