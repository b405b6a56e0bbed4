"""A fake server of `kagzi.WorkflowService` for one worker: keeps runs in memory and records every call.

It answers as a server does. A case can make it refuse calls, or carry them out and drop the answer.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from uuid import uuid4

import grpc
import msgspec

from windlass.contracts.registry.wire import kagzi_pb2 as pb
from windlass.contracts.registry.wire.service import LEASE_TOKEN, METHODS, SERVICE, Method
from windlass.testing.conformance.kit import Broken
from windlass.testing.conformance.plan import Plan, Plans
from windlass.testing.conformance.watch import Watch

THREADS = 24
POLL_S = 0.5  # how long an empty poll waits


class Call(msgspec.Struct):
    """One call of the worker. `code` is how it was answered; a lost answer is UNAVAILABLE."""

    name: str
    request: Any
    metadata: dict[str, Any]
    at_s: float
    code: str = "OK"


class Refused(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Run:
    """One run, as a server keeps it."""

    def __init__(self, kind: str, payload: bytes) -> None:
        self.id, self.kind, self.input, self.token = str(uuid4()), kind, payload, ""
        self.status = pb.WORKFLOW_STATUS_PENDING
        self.steps: dict[str, bytes] = {}
        self.begun = ""  # the last step that started
        self.output = b""
        self.error = ""

    @property
    def running(self) -> bool:
        return self.status == pb.WORKFLOW_STATUS_RUNNING

    def check_running(self) -> None:
        if not self.running:
            name = pb.WorkflowStatus.Name(self.status).removeprefix("WORKFLOW_STATUS_")
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"the run is {name}, not RUNNING")


class StandIn(Watch):
    """The server. It listens on loopback within its `with` block."""

    def __init__(self, *, namespace: str, heartbeat_s: int, timeout_s: float) -> None:
        super().__init__()
        self._namespace = namespace
        self.heartbeat_s, self.timeout_s = heartbeat_s, timeout_s
        self.calls: list[Call] = []
        self.runs: dict[str, Run] = {}
        self.registered: dict[str, Any] = {}  # requests by worker id
        self.drain = False
        self.accepts = True
        self.most_held = 0
        self._plans = Plans[grpc.StatusCode]()
        self._server = grpc.server(ThreadPoolExecutor(THREADS))
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> StandIn:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0)

    # ----------------------------------------------------------------------------------------- for cases

    def start(self, kind: str, payload: object) -> Run:
        """Adds a run for the next poll; its input as JSON, or as these bytes."""
        run = Run(kind, payload if isinstance(payload, bytes) else json.dumps(payload).encode())
        with self.lock:
            self.runs[run.id] = run
            self.news.notify_all()
        return run

    def wake(self, run: Run) -> None:
        """Ends the sleep of a run."""
        with self.lock:
            run.status = pb.WORKFLOW_STATUS_PENDING
            self.news.notify_all()

    def cancel(self, run: Run) -> None:
        with self.lock:
            run.status = pb.WORKFLOW_STATUS_CANCELLED

    def refuse(self, name: str, code: grpc.StatusCode, times: int) -> None:
        with self.lock:
            self._plans.put(name, Plan(code, times))

    def lose_answer(self, name: str, times: int = 1) -> None:
        """Carries out the call and drops its answer."""
        with self.lock:
            self._plans.put(name, Plan(grpc.StatusCode.UNAVAILABLE, times, lose=True))

    def forget_workers(self) -> None:
        with self.lock:
            self.registered.clear()

    def made(self, name: str, run: Run | None = None) -> list[Call]:
        """The calls of this name so far, about this run."""
        with self.lock:
            return [call for call in self.calls if call.name == name and (run is None or call.request.run_id == run.id)]

    def about(self, run: Run) -> list[Call]:
        """All calls about a run, in order, without reads and heartbeats."""
        with self.lock:
            calls = [call for call in self.calls if getattr(call.request, "run_id", "") == run.id]
            return [call for call in calls if call.name not in ("GetWorkflowRun", "RecordHeartbeat")]

    def names(self) -> str:
        with self.lock:
            names = [call.name for call in self.calls if call.name != "PollActivity"][-12:]
        return f"its last calls: {', '.join(names)}" if names else "it made no calls but polls"

    # ----------------------------------------------------------------------------------------- answers

    def _handlers(self) -> Any:
        def handler(name: str, method: Method) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                partial(self._answer, name), method.request.FromString, method.response.SerializeToString
            )

        return grpc.method_handlers_generic_handler(SERVICE, {name: handler(name, METHODS[name]) for name in METHODS})

    def _answer(self, name: str, request: Any, context: Any) -> Any:
        call = Call(name, request, dict(context.invocation_metadata()), time.monotonic())
        try:
            with self.lock:
                self.calls.append(call)
                return self._carry_out(name, request, context)
        except Refused as refused:
            call.code = refused.code.name
            context.abort(refused.code, refused.message)
        finally:
            with self.lock:
                self.news.notify_all()

    def _carry_out(self, name: str, request: Any, context: Any) -> Any:
        plan = self._plans.next(name)
        if plan is not None and not plan.lose:
            raise Refused(plan.answer, "the stand-in refuses this call")
        run = self.runs.get(getattr(request, "run_id", ""))
        token = dict(context.invocation_metadata()).get(LEASE_TOKEN)
        if run is not None and token and token != run.token:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "a newer attempt has this run")
        handle = getattr(self, f"_on_{METHODS[name].function}", None)
        if handle is None:
            raise Refused(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not served here")
        answer = handle(request, context)
        if plan is not None:
            raise Refused(plan.answer, "the answer is lost")
        return answer

    def _on_register_worker(self, request: Any, _context: Any) -> Any:
        worker_id = str(uuid4())
        self.registered[worker_id] = request
        return pb.RegisterWorkerResponse(worker_id=worker_id, heartbeat_interval_secs=self.heartbeat_s)

    def _on_worker_heartbeat(self, request: Any, _context: Any) -> Any:
        self._check_known(request.worker_id, grpc.StatusCode.NOT_FOUND)
        return pb.WorkerHeartbeatResponse(accepted=self.accepts, should_drain=self.drain)

    def _on_deregister_worker(self, request: Any, _context: Any) -> Any:
        self._check_known(request.worker_id, grpc.StatusCode.NOT_FOUND)
        if not request.drain:
            del self.registered[request.worker_id]
        return pb.Empty()

    def _on_poll_activity(self, request: Any, context: Any) -> Any:
        worker_id = next((one for one in poll_names(request) if one in self.registered), "")
        self._check_known(worker_id, grpc.StatusCode.FAILED_PRECONDITION)

        def waiting() -> Run | None:
            kinds = set(request.supported_workflow_types)
            queued = (run for run in self.runs.values() if run.status == pb.WORKFLOW_STATUS_PENDING)
            return next((run for run in queued if run.kind in kinds), None)

        self.news.wait_for(lambda: waiting() or not context.is_active(), POLL_S)
        run = waiting()
        if run is None or self.drain or not context.is_active():
            return pb.PollActivityResponse()
        run.status, run.token = pb.WORKFLOW_STATUS_RUNNING, str(uuid4())
        self.most_held = max(self.most_held, sum(one.running for one in self.runs.values()))
        context.set_trailing_metadata(((LEASE_TOKEN, run.token),))
        return pb.PollActivityResponse(run_id=run.id, workflow_type=run.kind, workflow_input=run.input)

    def _on_get_workflow_run(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        if request.namespace_id != self._namespace:  # an empty one is `default`
            raise Refused(grpc.StatusCode.NOT_FOUND, "there is no such run in this namespace")
        return pb.GetWorkflowRunResponse(
            workflow_run=pb.WorkflowRun(run_id=run.id, workflow_type=run.kind, status=run.status, input=run.input)
        )

    def _on_record_heartbeat(self, request: Any, _context: Any) -> Any:
        self._run(request).check_running()
        return pb.Empty()

    def _on_begin_step(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        run.check_running()
        if request.step_id in run.steps:
            return pb.BeginStepResponse(should_execute=False, cached_result=run.steps[request.step_id])
        run.begun = request.step_id
        return pb.BeginStepResponse(should_execute=True)

    def _on_complete_step(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        if request.step_id in run.steps:  # recorded with a sleep, or repeated
            return pb.Empty()
        run.check_running()
        _check_json(request.output)
        run.steps[request.step_id] = request.output
        return pb.Empty()

    def _on_fail_step(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        run.check_running()
        if not request.error.non_retryable:
            run.status = pb.WORKFLOW_STATUS_SLEEPING
        return pb.Empty()

    def _on_schedule_sleep(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        run.check_running()
        run.status = pb.WORKFLOW_STATUS_SLEEPING
        if run.begun:
            run.steps[run.begun] = b"null"
        return pb.Empty()

    def _on_complete_workflow(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        if run.status == pb.WORKFLOW_STATUS_COMPLETED and run.output == request.output:
            return pb.Empty()
        run.check_running()
        _check_json(request.output)
        run.status, run.output = pb.WORKFLOW_STATUS_COMPLETED, request.output
        return pb.Empty()

    def _on_fail_workflow(self, request: Any, _context: Any) -> Any:
        run = self._run(request)
        if run.status == pb.WORKFLOW_STATUS_FAILED and run.error == request.error.message:
            return pb.Empty()
        run.check_running()
        run.status, run.error = pb.WORKFLOW_STATUS_FAILED, request.error.message
        return pb.Empty()

    def _on_health_check(self, _request: Any, _context: Any) -> Any:
        return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVING)

    def _check_known(self, worker_id: str, code: grpc.StatusCode) -> None:
        if worker_id not in self.registered:
            raise Refused(code, "no such worker is registered")

    def _run(self, request: Any) -> Run:
        run = self.runs.get(request.run_id)
        if run is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, "there is no such run")
        return run


def poll_names(request: Any) -> tuple[str, str]:
    """Fields 1 and 2 of a poll: queue and worker in either order, since two descriptions of this wire differ."""
    return request.worker_id, request.task_queue


def _check_json(output: bytes) -> None:
    try:
        json.loads(output)
    except ValueError:
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "output must be JSON") from None


def read_json(what: str, data: bytes) -> Any:
    """Raises Broken if the data is not JSON."""
    try:
        return json.loads(data)
    except ValueError:
        raise Broken(f"{what} is not JSON: {data[:100]!r}") from None
