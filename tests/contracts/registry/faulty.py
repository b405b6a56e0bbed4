"""A worker of the registry contract on plain gRPC, for its conformance cases: `python faulty.py [FAULT]`.

Without a fault it passes every case. Each fault changes one thing. Run as a program, in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from windlass.contracts.registry.wire import kagzi_pb2 as pb

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
QUEUE, NAMESPACE = os.environ["KAGZI_TASK_QUEUE"], os.environ["KAGZI_NAMESPACE"]
CONCURRENCY = int(os.environ["KAGZI_MAX_CONCURRENT"])
METHODS = pb.DESCRIPTOR.services_by_name["WorkflowService"].methods_by_name
AGAIN = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
UNKNOWN = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}
TOKEN = "x-windlass-lease-token"

Metadata = tuple[tuple[str, str], ...]
TOKENS: dict[str, Metadata] = {}


class Paused(Exception):
    """The run sleeps, or is not ours any more."""


class Client:
    def __init__(self, address: str, key: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._key: Metadata = (("authorization", f"Bearer {key}"),)
        if FAULT == "shows no key":
            self._key = ()

    def once(self, name: str, metadata: Metadata, fields: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kinds = (getattr(pb, kind.name) for kind in (METHODS[name].input_type, METHODS[name].output_type))
        request, response = kinds
        method = self._channel.unary_unary(
            f"/kagzi.WorkflowService/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer, call = method.with_call(request(**fields), timeout=10, metadata=(*self._key, *metadata))
        return answer, dict(call.trailing_metadata())

    def call(self, name: str, metadata: Metadata = (), **fields: Any) -> Any:
        """Until it is answered."""
        pause_s = 0.05
        while True:
            try:
                return self.once(name, metadata, fields)[0]
            except grpc.RpcError as error:
                if error.code() not in AGAIN or FAULT == "gives up when an answer is lost":
                    raise
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 1.0)


class Run:
    def __init__(self, client: Client, polled: Any, token: str) -> None:
        self.id, self.kind, self._client = polled.run_id, polled.workflow_type, client
        self.input = polled.workflow_input
        self._token: Metadata = () if FAULT == "sends no token" else ((TOKEN, token),)
        self._sleeps = 0
        TOKENS[self.id] = self._token

    def call(self, name: str, **fields: Any) -> Any:
        token = TOKENS[self.id] if FAULT == "mixes attempts up" else self._token
        try:
            return self._client.call(name, token, run_id=self.id, **fields)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION and FAULT != "fails a run that was cancelled":
                raise Paused from None
            raise

    def step(self, step_id: str, function: Callable[[], Any]) -> Any:
        begun = self.call("BeginStep", step_id=step_id)
        if not begun.should_execute and FAULT != "repeats steps":
            return json.loads(begun.cached_result)
        try:
            result = function()
        except Exception as error:
            if FAULT == "hides failed steps":
                raise
            self.call("FailStep", step_id=step_id, error=pb.ErrorDetail(message=str(error)))
            now = self.call("GetWorkflowRun", namespace_id=NAMESPACE).workflow_run.status
            if now == pb.WORKFLOW_STATUS_SLEEPING and FAULT != "goes on after a failed step":
                raise Paused from None
            raise
        if FAULT != "does not complete steps":
            self.call("CompleteStep", step_id=step_id, output=json.dumps(result).encode())
        return result

    def sleep(self, seconds: int) -> None:
        if FAULT == "sleeps in its process":
            time.sleep(30)
            return
        step_id, self._sleeps = f"__sleep_{self._sleeps}", self._sleeps + 1
        if self.call("BeginStep", step_id=step_id).should_execute or FAULT == "sleeps again":
            wrong = 1 if FAULT == "sleeps for another time" else seconds
            self.call("ScheduleSleep", duration_seconds=wrong)
            if FAULT != "completes what sleeps":
                raise Paused


def echo(_run: Run, payload: Any) -> Any:
    return payload


def fail(_run: Run, payload: Any) -> Any:
    raise RuntimeError(payload["message"])


def steps(run: Run, payload: Any) -> Any:
    def number(value: int) -> int:
        time.sleep(payload.get("work_ms", 0) / 1000)
        return value

    return [run.step(f"step-{n}", lambda n=n: number(n)) for n in range(1, payload["count"] + 1)]  # type: ignore[misc]


def step_fails(run: Run, payload: Any) -> Any:
    def doomed() -> Any:
        raise RuntimeError(payload["message"])

    return run.step("doomed", doomed)


def sleep(run: Run, payload: Any) -> Any:
    before = run.step("before", lambda: "before")
    run.sleep(payload["seconds"])
    return [before, run.step("after", lambda: "after")]


def work(_run: Run, payload: Any) -> Any:
    time.sleep(payload["work_ms"] / 1000)
    return payload["work_ms"]


WORKFLOWS = {f"conformance.{handler.__name__}": handler for handler in (echo, fail, steps, step_fails, sleep, work)}


class Worker:
    def __init__(self) -> None:
        self.client = Client(os.environ["KAGZI_SERVER"], os.environ["WINDLASS_API_KEY"])
        self.stopping, self._lock = threading.Event(), threading.Lock()
        self._slots = threading.Semaphore(CONCURRENCY + 1 if FAULT == "runs too many" else CONCURRENCY)
        self._active, self._completed, self._failed = 0, 0, 0
        self.id, self._every_s = "", 1.0

    def run(self) -> None:
        self.register()
        threading.Thread(target=self.beat, daemon=True).start()
        with ThreadPoolExecutor(CONCURRENCY + 1) as pool:
            while not self.stopping.is_set():
                if self._slots.acquire(timeout=0.1):
                    pool.submit(self.poll)
            for _ in range(4 if FAULT == "polls while it stops" else 0):
                self._slots.acquire()
                self.poll()
            if FAULT == "leaves its runs":
                os._exit(0)
        if FAULT != "does not deregister":
            self.client.call("DeregisterWorker", worker_id=self.id)

    def register(self) -> None:
        where: dict[str, Any] = {"hostname": socket.gethostname(), "pid": os.getpid()}
        kinds = list(WORKFLOWS)[:2] if FAULT == "registers some types" else list(WORKFLOWS)
        answer = self.client.call(
            "RegisterWorker", task_queue=QUEUE, namespace_id=NAMESPACE, workflow_types=kinds,
            max_concurrent=CONCURRENCY, **({} if FAULT == "says not where" else where),
        )  # fmt: skip
        self.id, self._every_s = answer.worker_id, float(answer.heartbeat_interval_secs)
        if FAULT == "has an interval of its own":
            self._every_s = 10.0

    def beat(self) -> None:
        while not (self.stopping.is_set() and FAULT == "is silent while it drains"):
            time.sleep(self._every_s)
            with self._lock:
                active, completed, failed = self._active, self._completed, self._failed
                self._completed = self._failed = 0
            if FAULT == "counts nothing":
                active = completed = failed = 0
            told = {"active_count": active, "completed_delta": completed, "failed_delta": failed}
            try:
                answer, _ = self.client.once("WorkerHeartbeat", (), {"worker_id": self.id, **told})
            except grpc.RpcError as error:
                if FAULT == "ends when a heartbeat fails":
                    os._exit(1)
                if error.code() in UNKNOWN and FAULT != "never registers again":
                    self.register()
                continue
            if not answer.accepted and FAULT != "believes that it is accepted":
                self.register()
            if answer.should_drain and FAULT != "ignores drain":
                self.stopping.set()

    def poll(self) -> None:
        try:
            kinds = [] if FAULT == "polls without types" else list(WORKFLOWS)
            asked = {"worker_id": self.id, "task_queue": QUEUE, "namespace_id": NAMESPACE}
            answer, told = self.client.once("PollActivity", (), {**asked, "supported_workflow_types": kinds})
            if answer.run_id:
                self.execute(Run(self.client, answer, told[TOKEN]))
        except grpc.RpcError:
            if FAULT != "polls without pauses":
                time.sleep(0.2)
        finally:
            self._slots.release()

    def execute(self, run: Run) -> None:
        with self._lock:
            self._active += 1
        completed = failed = 0
        try:
            try:
                payload = json.loads(run.input or b"null")
            except ValueError:
                if FAULT == "ends with bad input":
                    os._exit(1)
                raise RuntimeError("the input is no JSON") from None
            result = WORKFLOWS[run.kind](run, payload)
            output = b"" if result is None and FAULT == "sends nothing for null" else json.dumps(result).encode()
            run.call("CompleteWorkflow", output=output)
            if FAULT == "completes twice":
                run.call("CompleteWorkflow", output=output)
            completed = 1
        except Paused:
            if FAULT == "fails what was refused":
                self.client.call("FailWorkflow", run_id=run.id, error=pb.ErrorDetail(message="paused"))
        except Exception as error:
            message = "" if FAULT == "fails without a reason" else str(error)
            try:
                run.call("FailWorkflow", error=pb.ErrorDetail(message=message))
            except (Paused, grpc.RpcError):
                return
            failed = 1
        finally:
            with self._lock:
                self._active, self._completed = self._active - 1, self._completed + completed
                self._failed += failed


if __name__ == "__main__":
    worker = Worker()
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set() if FAULT != "ignores SIGTERM" else None)
    worker.run()
