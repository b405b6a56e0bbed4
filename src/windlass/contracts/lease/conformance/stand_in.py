"""A stand-in for the dispatcher of one worker: `/internal/*` over mTLS, with tasks and wake-ups in memory.

It answers like a dispatcher and records every call. A case can make it refuse calls, or lose the answers to them.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any
from uuid import uuid4

import msgspec

from windlass.testing.conformance.listener import Listener, Reply, Request
from windlass.testing.conformance.plan import Plan, Plans
from windlass.testing.conformance.probe import Probe
from windlass.testing.conformance.watch import Watch

PREFIX = "/internal/"
TERMINAL = ("Completed", "Failed", "Canceled")
FENCED = ("heartbeat", "events", "buffer-publish", "task-complete")
STALE = Reply(409, {"error": "stale_lease", "message": "another worker holds the lease"})
NO_TASK = Reply(404, {"error": "task_not_found", "message": "there is no such task"})
RECEIVE_MAX_S = 20.0


class Call(msgspec.Struct):
    """One call of the worker. `status` is that of the answer; 0 if there was none."""

    name: str
    body: dict[str, Any]
    at_s: float
    status: int = 0

    def task_id(self) -> str:
        return str(self.body.get("task_id", ""))


class Task:
    """One task of the stand-in."""

    def __init__(self, config: Mapping[str, Any], status: str = "Queued") -> None:
        self.id, self.config, self.status = str(uuid4()), dict(config), status
        self.attempt, self.token = 0, ""
        self.cancelled = self.lost = False
        self.probe = Probe("its operator")

    @property
    def held(self) -> bool:
        return self.status == "Running"


class Wakeup:
    """One message. `ends` lists how the worker settled it: ack, nack, bury."""

    def __init__(self, body: str) -> None:
        self.id, self.body, self.deliveries = str(uuid4()), body, 0
        self.hidden_until_s = 0.0
        self.ends: list[str] = []

    @property
    def over(self) -> bool:
        return "ack" in self.ends or "bury" in self.ends


class StandIn(Watch):
    """Listens on loopback while it is open. Operators call its probe URL, without TLS."""

    def __init__(self, context: ssl.SSLContext, *, lease_s: float, visibility_s: float) -> None:
        super().__init__()
        self.lease_s, self.visibility_s = lease_s, visibility_s
        self.calls: list[Call] = []
        self.tasks: dict[str, Task] = {}
        self.wakeups: list[Wakeup] = []
        self.most_held = 0
        self.extra: Mapping[str, Any] = {}  # unknown fields in every answer
        self._plans = Plans[Reply]()
        self._closed = False
        self._listener = Listener(self._answer, ssl_context=context)
        self._probes = Listener(self._probed)
        self.url = self._listener.url

    def __enter__(self) -> StandIn:
        self._listener.__enter__()
        self._probes.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self._closed = True
            self.news.notify_all()
        self._listener.__exit__(kind, error, trace)
        self._probes.__exit__(kind, error, trace)

    # ----------------------------------------------------------------------------------------- what a case does

    def submit(self, config: Mapping[str, Any], status: str = "Queued") -> Task:
        """A task; its wake-up is sent with `wake`."""
        task = Task(config, status)
        with self.lock:
            self.tasks[task.id] = task
        return task

    def wake(self, body: str) -> Wakeup:
        wakeup = Wakeup(body)
        with self.lock:
            self.wakeups.append(wakeup)
            self.news.notify_all()
        return wakeup

    def take_back(self, task: Task) -> None:
        """Let the lease of a task expire: it can be claimed again."""
        with self.lock:
            task.status = "Queued"

    def probe_url(self, task: Task) -> str:
        return f"{self._probes.url}/{task.id}"

    def answer_with(self, name: str, reply: Reply, times: int = 1) -> None:
        with self.lock:
            self._plans.put(name, Plan(reply, times))

    def lose_answer(self, name: str, times: int = 1) -> None:
        """Carry out the next calls, but send no answer."""
        with self.lock:
            self._plans.put(name, Plan(Reply(0), times, lose=True))

    def made(self, name: str, task: Task | None = None) -> list[Call]:
        """The calls of this name so far, about this task."""
        with self.lock:
            return [call for call in self.calls if call.name == name and (task is None or call.task_id() == task.id)]

    def about(self, task: Task) -> list[Call]:
        """All calls about a task in order, without `task-fetch`."""
        with self.lock:
            return [call for call in self.calls if call.task_id() == task.id and call.name != "task-fetch"]

    def names(self) -> str:
        with self.lock:
            recent = [call.name for call in self.calls if call.name != "wakeups/receive"][-12:]
        return f"its last calls: {', '.join(recent)}" if recent else "it made no calls"

    # ----------------------------------------------------------------------------------------- what is answered

    def _probed(self, request: Request) -> Reply:
        request.body()
        with self.lock:
            task = self.tasks.get(request.path.strip("/"))
        if task is not None:
            task.probe.call()
        return Reply(200)

    def _answer(self, request: Request) -> Reply:
        name, body = request.path.removeprefix(PREFIX), _read(request)
        call = Call(name, body, time.monotonic())
        with self.lock:
            self.calls.append(call)
            plan = self._plans.next(name)
            if plan is None or plan.lose:
                reply = self._carry_out(name, body)
            if plan is not None:
                reply = plan.answer
            call.status = reply.status
            self.news.notify_all()
        return reply

    def _carry_out(self, name: str, body: dict[str, Any]) -> Reply:
        handle: Callable[[dict[str, Any]], Reply] | None = getattr(
            self, f"_on_{name.replace('-', '_').replace('/', '_')}", None
        )
        if handle is None:
            return Reply(404, {"error": "not_found", "message": f"there is no {name}"})
        if name in FENCED and (refused := self._stale(name, body)) is not None:
            return refused
        reply = handle(body)
        if isinstance(reply.body, Mapping):
            return Reply(reply.status, {**reply.body, **self.extra}, reply.headers)
        return reply

    def _stale(self, name: str, body: dict[str, Any]) -> Reply | None:
        task = self.tasks.get(str(body.get("task_id")))
        if task is None:
            return NO_TASK
        current = (body.get("attempt"), body.get("lease_token")) == (task.attempt, task.token)
        over = task.lost or task.status == "Queued" or (name != "task-complete" and not task.held)
        return STALE if over or not current else None

    def _on_task_claim(self, body: dict[str, Any]) -> Reply:
        task = self.tasks.get(str(body.get("task_id")))
        if task is None or task.status != "Queued":
            return Reply(200, {"status": "NotClaimed", "reason": _reason(task)})
        task.status, task.attempt, task.token = "Running", task.attempt + 1, str(uuid4())
        self.most_held = max(self.most_held, sum(one.held for one in self.tasks.values()))
        return Reply(200, {
            "status": "Claimed", "attempt": task.attempt, "lease_token": task.token, "task": _details(task),
            **self._lease_times(),
        })  # fmt: skip

    def _on_task_fetch(self, body: dict[str, Any]) -> Reply:
        task = self.tasks.get(str(body.get("task_id")))
        if task is None:
            return NO_TASK
        return Reply(200, {**_details(task), "status": "Canceled" if task.cancelled else task.status})

    def _on_heartbeat(self, body: dict[str, Any]) -> Reply:
        cancelled = self.tasks[str(body["task_id"])].cancelled
        return Reply(200, {"status": "Canceled" if cancelled else "Running", **self._lease_times()})

    def _lease_times(self) -> dict[str, str]:
        now = datetime.now(UTC)
        return {
            "lease_expires_at": (now + timedelta(seconds=self.lease_s)).isoformat(),
            "server_time": now.isoformat(),
        }

    def _on_events(self, body: dict[str, Any]) -> Reply:
        return Reply(200, {"status": "Accepted", "accepted": len(body.get("events") or ())})

    def _on_buffer_publish(self, _body: dict[str, Any]) -> Reply:
        return Reply(200, {"status": "Accepted", "publish_id": str(uuid4())})

    def _on_task_complete(self, body: dict[str, Any]) -> Reply:
        task, status = self.tasks[str(body["task_id"])], body.get("status")
        if status not in TERMINAL:
            return Reply(400, {"error": "invalid_argument", "message": "status is not known", "field": "status"})
        if task.status in TERMINAL and task.status != status:
            return Reply(409, {"error": "conflict", "message": f"it has ended as {task.status}"})
        task.status = status
        return Reply(200, {"status": status})

    # ----------------------------------------------------------------------------------------- wake-ups

    def _on_wakeups_route(self, body: dict[str, Any]) -> Reply:
        return Reply(200, {
            "queue": body.get("queue"), "namespace": body.get("namespace", "default"), "carrier": "postgres",
            "address": "", "visibility_s": self.visibility_s, "max_deliveries": 5, "trusted": True, "secrets": [],
        })  # fmt: skip

    def _on_wakeups_receive(self, body: dict[str, Any]) -> Reply:
        wait_s = min(float(body.get("wait_s") or 0), RECEIVE_MAX_S)
        self.news.wait_for(lambda: self._closed or bool(self._waiting()), wait_s)
        given = self._waiting()[: int(body.get("limit") or 1)]
        for wakeup in given:
            wakeup.deliveries += 1
            wakeup.hidden_until_s = time.monotonic() + self.visibility_s
        messages = [{"message_id": one.id, "deliveries": one.deliveries, "body": one.body} for one in given]
        return Reply(200, {"messages": messages})

    def _on_wakeups_extend(self, body: dict[str, Any]) -> Reply:
        return self._settle(body, hidden_s=self.visibility_s)

    def _on_wakeups_ack(self, body: dict[str, Any]) -> Reply:
        return self._settle(body, "ack")

    def _on_wakeups_nack(self, body: dict[str, Any]) -> Reply:
        return self._settle(body, "nack", hidden_s=float(body.get("delay_s") or 0))

    def _on_wakeups_unheard(self, _body: dict[str, Any]) -> Reply:
        return Reply(200, {"kept": True})

    def _on_wakeups_bury(self, body: dict[str, Any]) -> Reply:
        return self._settle(body, "bury")

    def _settle(self, body: dict[str, Any], how: str = "", hidden_s: float = 0.0) -> Reply:
        """Settle or hide a message, unless it was delivered again."""
        held = (body.get("message_id"), body.get("deliveries"))
        wakeup = next((one for one in self.wakeups if (one.id, one.deliveries) == held), None)
        if wakeup is not None:
            wakeup.hidden_until_s = time.monotonic() + hidden_s
            wakeup.ends += [how] if how else []
        return Reply(200, {"kept": wakeup is not None})

    def _waiting(self) -> list[Wakeup]:
        now_s = time.monotonic()
        return [one for one in self.wakeups if not one.over and one.hidden_until_s <= now_s]


def _read(request: Request) -> dict[str, Any]:
    if request.method == "GET":
        return dict(request.query)
    try:
        body = json.loads(request.body() or b"{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _reason(task: Task | None) -> str:
    if task is None:
        return "NotFound"
    return {"Running": "AlreadyRunning", "Canceled": "Canceled"}.get(task.status, "Completed")


def _details(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.id, "attempt": task.attempt, "job": {"dag_name": "conformance", "name": "conformance"},
        "operator": "conformance", "config": task.config, "inputs": [],
    }  # fmt: skip
