"""A worker of the registry contract with plain gRPC. Of Windlass it needs only the proto file.

    pip install grpcio grpcio-tools protobuf
    windlass dev                                                   # in another terminal; it prints a key
    WINDLASS_API_KEY=... python examples/registry_worker.py        # Ctrl-C lets it finish what runs

It runs a workflow of two steps and a sleep. Kill it and start it again: recorded steps are not run twice.
"""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

pb, services = grpc.protos_and_services(os.environ.get("KAGZI_PROTO", "windlass/contracts/registry/wire/kagzi.proto"))
AGAIN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
SOON = [("grpc.max_reconnect_backoff_ms", 1000)]


class Paused(Exception):
    """The run sleeps, or belongs to another worker: this execution of it ends without a report."""


class Run:
    """One execution of a run. The token names this attempt: after another one began, its calls are refused."""

    def __init__(self, worker, polled, token):
        self.id, self.kind, self.data = polled.run_id, polled.workflow_type, polled.workflow_input
        self._worker, self._token, self._sleeps = worker, ("x-windlass-lease-token", token), 0

    def call(self, name, **fields):
        return self._worker.call(name, self._token, run_id=self.id, **fields)

    def step(self, step_id, function, *args):
        """Run a step once: its result is recorded, and returned again if the run is executed again."""
        begun = self.call("BeginStep", step_id=step_id)
        if not begun.should_execute:
            return json.loads(begun.cached_result)
        try:
            result = function(*args)
        except Exception as error:
            self.call("FailStep", step_id=step_id, error=pb.ErrorDetail(message=str(error)))
            reply = self._worker.call("GetWorkflowRun", run_id=self.id, namespace_id=self._worker.where["namespace_id"])
            if reply.workflow_run.status == pb.WORKFLOW_STATUS_SLEEPING:
                raise Paused from None  # the engine will retry it
            raise
        self.call("CompleteStep", step_id=step_id, output=json.dumps(result).encode())
        return result

    def sleep(self, seconds):
        """Sleep without holding a worker."""
        step_id, self._sleeps = f"__sleep_{self._sleeps}", self._sleeps + 1
        if self.call("BeginStep", step_id=step_id).should_execute:
            self.call("ScheduleSleep", duration_seconds=seconds)
            raise Paused


class Worker:
    def __init__(self, address, key, queue, workflows, concurrency=4, namespace="default"):
        self._stub = services.WorkflowServiceStub(grpc.insecure_channel(address, options=SOON))
        self._key, self._concurrency = ("authorization", f"Bearer {key}"), concurrency
        self._workflows, self.where = workflows, {"task_queue": queue, "namespace_id": namespace}
        self._poll = {"supported_workflow_types": list(workflows), **self.where}
        self._slots, self.stopping = threading.Semaphore(concurrency), threading.Event()
        self._active, self._ended, self.last = set(), {"completed_delta": 0, "failed_delta": 0}, threading.local()

    def call(self, name, *metadata, timeout=10, **fields):
        """Call until it is answered: all calls are idempotent."""
        method, request = getattr(self._stub, name), getattr(pb, f"{name}Request")(**fields)
        while True:
            try:
                answer, call = method.with_call(request, timeout=timeout, metadata=(self._key, *metadata))
            except grpc.RpcError as error:
                if error.code() not in AGAIN:
                    raise
                time.sleep(0.2)
            else:
                self.last.metadata = dict(call.trailing_metadata())
                return answer

    def run(self):
        self._register()
        threading.Thread(target=self._send_heartbeats, daemon=True).start()
        with ThreadPoolExecutor(self._concurrency) as pool:
            while not self.stopping.is_set():
                if self._slots.acquire(timeout=0.2):
                    pool.submit(self._poll_and_execute).add_done_callback(lambda _: self._slots.release())
        self.call("DeregisterWorker", worker_id=self.id)

    def _register(self):
        here = {"hostname": os.uname().nodename, "pid": os.getpid(), "max_concurrent": self._concurrency}
        answer = self.call("RegisterWorker", workflow_types=list(self._workflows), **here, **self.where)
        self.id, self._every_s = answer.worker_id, answer.heartbeat_interval_secs

    def _send_heartbeats(self):
        """Until the process ends, also while it drains. Names the active runs, so that lost ones are released."""
        while True:
            time.sleep(self._every_s)
            ended, self._ended, runs = self._ended, dict.fromkeys(self._ended, 0), list(self._active)
            named, ended["active_count"] = ("x-windlass-active-runs", ",".join(runs)), len(runs)
            try:
                reply = self.call("WorkerHeartbeat", named, worker_id=self.id, **ended)
            except grpc.RpcError:
                reply = pb.WorkerHeartbeatResponse(accepted=False)
            if reply.should_drain:
                self.stopping.set()
            if not reply.accepted:
                self._register()  # the server has not received a heartbeat for too long, and dropped this worker

    def _poll_and_execute(self):
        try:
            polled = self.call("PollActivity", timeout=5, worker_id=self.id, **self._poll)
            if polled.run_id:
                self._execute(Run(self, polled, self.last.metadata["x-windlass-lease-token"]))
        except grpc.RpcError as error:
            print(f"{error.code().name}: {error.details()}")
            time.sleep(0.2)

    def _execute(self, run):
        self._active.add(run.id)
        try:
            run.input = json.loads(run.data or "null")
            run.call("CompleteWorkflow", output=json.dumps(self._workflows[run.kind](run)).encode())
            self._ended["completed_delta"] += 1
        except (Paused, grpc.RpcError):
            pass  # it sleeps, or another worker has it
        except Exception as error:
            run.call("FailWorkflow", error=pb.ErrorDetail(message=str(error)))
            self._ended["failed_delta"] += 1
        finally:
            self._active.discard(run.id)


def order(run):
    receipt = run.step("charge", lambda: f"receipt for {run.input}")
    run.sleep(2)
    return run.step("ship", lambda: f"shipped with {receipt}")


if __name__ == "__main__":
    server = os.environ.get("KAGZI_SERVER", "127.0.0.1:50051")
    worker = Worker(server, os.environ["WINDLASS_API_KEY"], "orders", {"order": order})
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stopping.set())
    worker.run()
