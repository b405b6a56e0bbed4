"""The cases of the registry contract. People quote their numbers, so add new cases at the end.

The worker under test has the six workflow types of docs/howto/check-a-worker.md.
"""

from __future__ import annotations

from itertools import pairwise

import grpc

from windlass.contracts.registry.conformance.stand_in import Call, Run, poll_names
from windlass.contracts.registry.conformance.trial import CONCURRENCY, KEY, KIT, NAMESPACE, QUEUE, TYPES, Trial
from windlass.contracts.registry.wire.service import LEASE_TOKEN
from windlass.testing.conformance.kit import Broken, expect

required, hardening = KIT.required, KIT.hardening

UNAVAILABLE, GONE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION
STALE = 3  # intervals without a heartbeat after which a worker counts as dead
LONG = 1.5  # heartbeat intervals
OUTAGE_S, POLLS_MAX = 1.5, 30  # how long the server is unavailable, and how many polls it may get meanwhile


# --------------------------------------------------------------------------------------------- the life of a worker


@required(
    "registers its queue and types before it polls",
    "Call RegisterWorker first, with the task queue, the namespace, all workflow types that have a handler, and "
    "max_concurrent.",
)
def registers(trial: Trial) -> None:
    request = trial.wait("RegisterWorker").request
    trial.wait("PollActivity")
    expect("the first call", "RegisterWorker", trial.server.calls[0].name)
    expect("task_queue", QUEUE, request.task_queue)
    expect("namespace_id", NAMESPACE, request.namespace_id)
    expect("max_concurrent", CONCURRENCY, request.max_concurrent)
    missing = {f"conformance.{name}" for name in TYPES} - set(request.workflow_types)
    expect("workflow types that are missing", set(), missing)


@required(
    "sends its hostname and pid",
    "Send hostname and pid with RegisterWorker. Together with the queue and the namespace, they identify a worker.",
)
def says_where(trial: Trial) -> None:
    request = trial.wait("RegisterWorker").request
    if not request.hostname or request.pid <= 0:
        raise Broken(f"hostname is {request.hostname!r}, pid is {request.pid}")


@required(
    "polls with its worker id and its types",
    "Send the worker_id from RegisterWorkerResponse, the task queue, the namespace and supported_workflow_types with "
    "every PollActivity. The server selects work by them.",
)
def polls(trial: Trial) -> None:
    trial.wait("PollActivity", 3)
    expect("times that it registered", 1, len(trial.server.registered))
    for poll in trial.server.made("PollActivity"):
        expect("worker and queue of a poll", {*trial.server.registered, QUEUE}, set(poll_names(poll.request)))
        expect("namespace_id of a poll", NAMESPACE, poll.request.namespace_id)
        missing = {f"conformance.{name}" for name in TYPES} - set(poll.request.supported_workflow_types)
        expect("workflow types that are missing in a poll", set(), missing)


@required(
    "sends heartbeats at the requested interval",
    "Call WorkerHeartbeat every heartbeat_interval_secs of RegisterWorkerResponse, whether runs are active or not.",
)
def heartbeats(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat", 3)
    heartbeats = trial.server.made("WorkerHeartbeat")
    _check_gaps(trial, heartbeats[:3], "")
    least_s = min(after.at_s - before.at_s for before, after in pairwise(heartbeats[:3]))
    if least_s < trial.heartbeat_s / 4:
        raise Broken(f"two heartbeats came within {least_s:.2f} s; the interval is {trial.heartbeat_s} s")


def _check_gaps(trial: Trial, heartbeats: list[Call], when: str) -> None:
    widest_s = max((after.at_s - before.at_s for before, after in pairwise(heartbeats)), default=0.0)
    if widest_s > STALE * trial.heartbeat_s:
        raise Broken(f"no heartbeat came for {widest_s:.2f} s{when}; the interval is {trial.heartbeat_s} s")


@required(
    "counts active runs",
    "Send active_count with every heartbeat: the number of runs that the worker executes now.",
)
def counts_active(trial: Trial) -> None:
    runs = [trial.start("work", trial.work(4 * LONG)) for _ in range(CONCURRENCY)]
    if not trial.until(lambda: all(run.running for run in runs)):
        raise Broken(f"it did not take {CONCURRENCY} runs")
    before = len(trial.server.made("WorkerHeartbeat"))
    heartbeats = [trial.wait("WorkerHeartbeat", before + number).request for number in (1, 2)]
    expect("active_count while it runs two", CONCURRENCY, heartbeats[-1].active_count)


@required(
    "counts ended runs",
    "Send completed_delta and failed_delta with every heartbeat: the number of runs that completed and failed since "
    "the last one.",
)
def counts_ended(trial: Trial) -> None:
    for run in [trial.start("echo", number) for number in range(2)]:
        trial.completes(run)
    failed = trial.start("fail", {"message": "counted"})
    trial.wait("FailWorkflow", run=failed)

    def counted() -> tuple[int, int]:
        requests = [call.request for call in trial.server.made("WorkerHeartbeat")]
        return sum(h.completed_delta for h in requests), sum(h.failed_delta for h in requests)

    trial.server.until(lambda: counted() == (2, 1), STALE * trial.heartbeat_s + 1)
    expect("completed and failed, summed over heartbeats", (2, 1), counted())


@required(
    "stops when the server asks it to drain",
    "When a heartbeat is answered with should_drain, stop polling, finish all runs, call DeregisterWorker, and exit.",
)
def drains(trial: Trial) -> None:
    run = trial.start("work", trial.work(2 * LONG))
    trial.executes(run)
    trial.server.drain = True
    _leaves(trial, run)


@required(
    "finishes active runs at SIGTERM",
    "At SIGTERM, stop polling, finish active runs, call DeregisterWorker, and exit with code 0.",
)
def stops(trial: Trial) -> None:
    run = trial.start("work", trial.work(LONG))
    trial.executes(run)
    trial.stop()
    _leaves(trial, run)


def _leaves(trial: Trial, run: Run) -> None:
    trial.leaves()
    if not trial.server.made("CompleteWorkflow", run):
        raise Broken("it deregistered before its active run had ended")
    trial.ends()
    trial.completes(run)


@required(
    "does not poll while it stops",
    "After SIGTERM, make no new PollActivity call. Its run would have to wait until the worker has stopped.",
)
def takes_nothing_more(trial: Trial) -> None:
    run = trial.start("work", trial.work(2 * LONG))
    trial.executes(run)
    trial.stop()
    trial.pause(0.5)  # for a poll that is on its way
    before = len(trial.server.made("PollActivity"))
    trial.leaves()
    expect("polls that began while it stopped", 0, len(trial.server.made("PollActivity")) - before)


# --------------------------------------------------------------------------------------------- runs


@required(
    "completes a run with its result",
    "Call CompleteWorkflow once, with the return value of the workflow as JSON.",
)
def completes(trial: Trial) -> None:
    given = {"text": 'äöü € " \\ \n', "list": [1, None, True], "number": 1.5}
    run = trial.start("echo", given)
    expect("the output", given, trial.completes(run))
    trial.quiet(run, 1)


@required(
    "fails a run with the reason",
    "When a workflow raises an error, call FailWorkflow with the text of the error in error.message.",
)
def fails(trial: Trial) -> None:
    run = trial.start("fail", {"message": "no good"})
    error = trial.wait("FailWorkflow", run=run).request.error
    if "no good" not in error.message:
        raise Broken(f"error.message is {error.message[:200]!r}")
    trial.quiet(run, 1)
    trial.lives()


@required(
    "runs up to max_concurrent, and no more",
    "Execute up to max_concurrent runs in parallel. Poll only when a slot is free.",
)
def concurrency(trial: Trial) -> None:
    runs = [trial.start("work", trial.work(LONG / 2)) for _ in range(CONCURRENCY + 2)]
    for run in runs:
        trial.completes(run)
    expect("runs at the same time", CONCURRENCY, trial.server.most_held)


@required(
    "records each step, in order",
    "Call BeginStep before a step and CompleteStep with its result as JSON. Begin the next step only after that.",
)
def steps(trial: Trial) -> None:
    run = trial.start("steps", {"count": 3})
    expect("the output", [1, 2, 3], trial.completes(run))
    calls = [(call.name, getattr(call.request, "step_id", "")) for call in trial.server.about(run)]
    wanted = [(name, f"step-{number}") for number in (1, 2, 3) for name in ("BeginStep", "CompleteStep")]
    expect("the calls", [*wanted, ("CompleteWorkflow", "")], calls)


@required(
    "does not repeat a completed step",
    "When BeginStep is answered with should_execute false, do not execute the step. Use cached_result as its result.",
)
def cached(trial: Trial) -> None:
    run = trial.start("steps", {"count": 3})
    run.steps["step-1"] = b'"done before"'
    expect("the output", ["done before", 2, 3], trial.completes(run))
    again = [call.request.step_id for call in trial.server.made("CompleteStep", run)]
    expect("steps that were completed", ["step-2", "step-3"], again)


@required(
    "records a failed step",
    "When a step raises an error, call FailStep with the text of the error in error.message.",
)
def step_fails(trial: Trial) -> None:
    run = trial.start("step_fails", {"message": "bad step"})
    request = trial.wait("FailStep", run=run).request
    expect("step_id", "doomed", request.step_id)
    if "bad step" not in request.error.message:
        raise Broken(f"error.message is {request.error.message[:200]!r}")


@required(
    "releases a sleeping run",
    "To sleep, call ScheduleSleep with duration_seconds, and make no further calls about the run: neither complete "
    "nor fail it. The server returns it to a poll when the sleep is over.",
)
def sleeps(trial: Trial) -> None:
    run = trial.start("sleep", {"seconds": 3600})
    sleep = trial.wait("ScheduleSleep", run=run)
    expect("duration_seconds", 3600, sleep.request.duration_seconds)
    trial.pause(0.5)
    calls = trial.server.about(run)
    later = [call for call in calls[calls.index(sleep) + 1 :] if not _ends_sleep(call, run)]
    if later:
        raise Broken(f"it continued with {later[0].name} for a run that sleeps")
    trial.lives()


def _ends_sleep(call: Call, run: Run) -> bool:
    """A client may complete the step that it started for the sleep, which is already recorded."""
    return call.name == "CompleteStep" and call.request.step_id == run.begun


@required(
    "continues after a sleep",
    "When a poll returns a run after its sleep, execute it from the beginning. Do not repeat completed steps or "
    "finished sleeps.",
)
def goes_on(trial: Trial) -> None:
    run = trial.start("sleep", {"seconds": 3600})
    trial.wait("ScheduleSleep", run=run)
    trial.pause(0.2)
    trial.server.wake(run)
    expect("the output", ["before", "after"], trial.completes(run))
    expect("times that it slept", 1, len(trial.server.made("ScheduleSleep", run)))
    done = [call.request.step_id for call in trial.server.made("CompleteStep", run)]
    expect("times that `before` was executed", 1, done.count("before"))


# --------------------------------------------------------------------------------------------- servers that go away


@hardening(
    "sends heartbeats until its last run has ended",
    "Keep calling WorkerHeartbeat while draining. Without heartbeats, the server gives active runs to another worker.",
)
def heartbeats_while_it_drains(trial: Trial) -> None:
    run = trial.start("work", trial.work(4 * LONG))
    trial.executes(run)
    trial.stop()
    end = trial.wait("CompleteWorkflow", run=run)
    heartbeats = [trial.wait("RegisterWorker"), *trial.server.made("WorkerHeartbeat"), end]
    _check_gaps(trial, heartbeats, " before its run had ended")


@hardening(
    "waits for an unavailable server",
    "When RegisterWorker is answered with UNAVAILABLE, retry with growing pauses. Workers may start before servers.",
)
def waits_for_server(trial: Trial) -> None:
    trial.server.refuse("RegisterWorker", UNAVAILABLE, 2)
    trial.wait("RegisterWorker", 3)
    trial.lives()


@hardening(
    "repeats a result whose answer was lost",
    "When CompleteWorkflow gets no answer, repeat the request until it is answered. The server records it once.",
)
def repeats_result(trial: Trial) -> None:
    trial.server.lose_answer("CompleteWorkflow", 2)
    run = trial.start("echo", "kept")
    trial.wait("CompleteWorkflow", 3, run)
    outputs = {call.request.output for call in trial.server.made("CompleteWorkflow", run)}
    if len(outputs) > 1:
        raise Broken("it repeated CompleteWorkflow with another output")
    trial.quiet(run, 3)


@hardening(
    "repeats a step whose answer was lost",
    "When CompleteStep gets no answer, send the same request again, and continue when it is answered.",
)
def repeats_step(trial: Trial) -> None:
    trial.server.lose_answer("CompleteStep", 1)
    run = trial.start("steps", {"count": 2})
    expect("the output", [1, 2], trial.completes(run))
    completed = [call.request.step_id for call in trial.server.made("CompleteStep", run)]
    expect("steps that were completed", ["step-1", "step-1", "step-2"], completed)


@hardening(
    "polls with pauses while the server is unavailable",
    "When PollActivity is answered with UNAVAILABLE, poll again with growing pauses until the server is back.",
)
def polls_patiently(trial: Trial) -> None:
    trial.wait("PollActivity", 2)
    before = len(trial.server.made("PollActivity"))
    trial.server.refuse("PollActivity", UNAVAILABLE, 1_000_000)
    trial.pause(OUTAGE_S)
    polls = len(trial.server.made("PollActivity")) - before
    trial.server.refuse("PollActivity", UNAVAILABLE, 0)
    if polls > POLLS_MAX:
        raise Broken(f"it polled {polls} times in {OUTAGE_S:g} s while the server was away")
    trial.lives()


@hardening(
    "survives failed heartbeats",
    "When a heartbeat is answered with UNAVAILABLE, continue and send the next one. The worker still owns its runs.",
)
def survives_heartbeats(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat")
    trial.server.refuse("WorkerHeartbeat", UNAVAILABLE, 2)
    run = trial.start("work", trial.work(LONG))
    trial.completes(run)
    answered = len(trial.server.made("WorkerHeartbeat"))
    trial.wait("WorkerHeartbeat", max(answered + 1, 4))
    trial.lives()


@hardening(
    "registers again when the server does not know it",
    "When a heartbeat or a poll is refused because the worker is unknown (NOT_FOUND, FAILED_PRECONDITION), call "
    "RegisterWorker again and continue with the new id. The server was restarted, or it treated the worker as lost.",
)
def registers_again(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat")
    trial.server.forget_workers()
    trial.wait("RegisterWorker", 2)
    trial.lives()


@hardening(
    "registers again when a heartbeat is not accepted",
    "When a heartbeat is answered with accepted false, call RegisterWorker again.",
)
def not_accepted(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat")
    trial.server.accepts = False
    trial.wait("RegisterWorker", 2)
    trial.server.accepts = True
    trial.lives()


# --------------------------------------------------------------------------------------------- runs that are lost


@hardening(
    "stops a cancelled run",
    "When a call about a run is refused with FAILED_PRECONDITION, the run was cancelled or belongs to another "
    "worker. Stop executing it, and make no further calls about it: neither complete nor fail it.",
)
def cancelled(trial: Trial) -> None:
    run = trial.start("steps", {"count": 50, "work_ms": 100})
    trial.wait("CompleteStep", run=run)
    trial.server.cancel(run)
    if not trial.until(lambda: any(call.code == GONE.name for call in trial.server.about(run))):
        raise Broken("it made no further call about the run, so it cannot know that the run was cancelled")
    trial.quiet(run, len(trial.server.about(run)))
    trial.lives()


@hardening(
    "accepts that a result is refused",
    "When CompleteWorkflow is refused with FAILED_PRECONDITION, do not send it again, and do not fail the run.",
)
def refused_result(trial: Trial) -> None:
    run = trial.start("work", {"work_ms": 300})
    trial.until(lambda: run.running)
    trial.server.cancel(run)
    trial.wait("CompleteWorkflow", run=run)
    trial.quiet(run, 1)
    trial.lives()


@hardening(
    "stops after a step that will be retried",
    "After FailStep, call GetWorkflowRun with the namespace. If the run is SLEEPING, the server retries the step "
    "later: make no further calls about the run. A later poll returns it.",
)
def step_is_tried_again(trial: Trial) -> None:
    run = trial.start("step_fails", {"message": "bad step", "times": 1})
    trial.wait("FailStep", run=run)
    trial.quiet(run, 2)
    run.steps["doomed"] = b'"recovered"'
    trial.server.wake(run)
    expect("the output", "recovered", trial.completes(run))


@hardening(
    "sends its lease token in every call about a run",
    "Send the x-windlass-lease-token from the poll's trailing metadata with every call about that run. It stops a "
    "worker that lost the run from writing to it.",
)
def sends_token(trial: Trial) -> None:
    runs = [trial.start("steps", {"count": 3, "work_ms": 50}) for _ in range(CONCURRENCY)]
    for run in runs:
        expect("the output", [1, 2, 3], trial.completes(run))
    for run in runs:
        for call in trial.server.about(run):
            expect(f"{LEASE_TOKEN} of {call.name}", run.token, call.metadata.get(LEASE_TOKEN))


@hardening("sends its key", "Send `authorization: Bearer` with the key from WINDLASS_API_KEY with every call.")
def shows_key(trial: Trial) -> None:
    trial.completes(trial.start("steps", {"count": 1}))
    for call in list(trial.server.calls):
        expect(f"authorization of {call.name}", f"Bearer {KEY}", call.metadata.get("authorization"))


@hardening(
    "fails a run whose input it cannot read",
    "When the workflow cannot read workflow_input, call FailWorkflow and continue. One bad input must not stop the "
    "worker or block a slot.",
)
def bad_input(trial: Trial) -> None:
    for payload in (b"{", b"\xff\xfe", b""):
        run = trial.start("steps", payload)
        trial.wait("FailWorkflow", run=run)
    trial.lives()


@hardening(
    "sends null for a workflow that returns nothing",
    "Send the bytes `null` as the output of a workflow or step without a result. The server refuses an empty output.",
)
def sends_null(trial: Trial) -> None:
    run = trial.start("echo", None)
    expect("the output", None, trial.completes(run))


@hardening(
    "keeps two attempts at one run apart",
    "A run that the server reassigned may return to the same worker while it still executes the old attempt. Each "
    "execution sends its own x-windlass-lease-token. The older one stops at FAILED_PRECONDITION and makes no further "
    "calls.",
)
def two_attempts(trial: Trial) -> None:
    run = trial.start("work", trial.work(LONG))
    trial.until(lambda: run.running)
    first = run.token
    trial.server.wake(run)
    if not trial.until(lambda: run.running and run.token != first):
        raise Broken("it did not take the run a second time")
    second = run.token
    trial.until(lambda: run.output)
    trial.pause(trial.heartbeat_s)  # for the other execution
    ends = [(call.metadata.get(LEASE_TOKEN), call.code) for call in trial.server.made("CompleteWorkflow", run)]
    expect("tokens of results that were accepted", [second], [token for token, code in ends if code == "OK"])
    refused = [token for token, code in ends if code != "OK" and token != first]
    expect("tokens of results that were refused", [], refused)
    trial.quiet(run, len(trial.server.about(run)))
