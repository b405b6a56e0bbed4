"""The cases of the registry contract. Numbers are part of what people quote: new ones are added at the end.

The worker under test has the six workflow types that docs/howto/check-a-worker.md lays out.
"""

from __future__ import annotations

from itertools import pairwise

import grpc

from windlass.testing.conformance import Broken, expect
from windlass.testing.registry.stand_in import TOKEN, Call, Run, poll_names
from windlass.testing.registry.trial import (
    CONCURRENCY,
    KEY,
    KIT,
    NAMESPACE,
    QUEUE,
    TYPES,
    Trial,
)

required, hardening = KIT.required, KIT.hardening

AWAY, GONE = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION
STALE = 3  # intervals without a heartbeat, after which a worker is taken for dead
LONG = 1.5  # heartbeats
AWAY_S, POLLS_MAX = 1.5, 30  # how long a server is away, and how often it may be asked meanwhile


# --------------------------------------------------------------------------------------------- the life of a worker


@required(
    "registers before it polls, with what it can do",
    "Call RegisterWorker first, with the task queue, the namespace, all workflow types that have a handler, and "
    "max_concurrent.",
)
def registers(trial: Trial) -> None:
    asked = trial.wait("RegisterWorker").request
    trial.wait("PollActivity")
    expect("the first call", "RegisterWorker", trial.server.calls[0].name)
    expect("task_queue", QUEUE, asked.task_queue)
    expect("namespace_id", NAMESPACE, asked.namespace_id)
    expect("max_concurrent", CONCURRENCY, asked.max_concurrent)
    missing = {f"conformance.{name}" for name in TYPES} - set(asked.workflow_types)
    expect("workflow types that are missing", set(), missing)


@required(
    "says where it runs",
    "Send hostname and pid with RegisterWorker: with the queue and the namespace they tell one worker from another.",
)
def says_where(trial: Trial) -> None:
    asked = trial.wait("RegisterWorker").request
    if not asked.hostname or asked.pid <= 0:
        raise Broken(f"hostname is {asked.hostname!r}, pid is {asked.pid}")


@required(
    "polls with the id that it was given and its types",
    "Send the worker_id of RegisterWorkerResponse, the task queue, the namespace and supported_workflow_types with "
    "every PollActivity: the server finds work by them.",
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
    "heartbeats as often as it is told",
    "Call WorkerHeartbeat every heartbeat_interval_secs of RegisterWorkerResponse, whether there is work or not.",
)
def heartbeats(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat", 3)
    beats = trial.server.made("WorkerHeartbeat")
    _check_gaps(trial, beats[:3], "")
    least_s = min(after.at_s - before.at_s for before, after in pairwise(beats[:3]))
    if least_s < trial.beat_s / 4:
        raise Broken(f"two heartbeats came within {least_s:.2f} s; the interval is {trial.beat_s} s")


def _check_gaps(trial: Trial, beats: list[Call], when: str) -> None:
    widest_s = max((after.at_s - before.at_s for before, after in pairwise(beats)), default=0.0)
    if widest_s > STALE * trial.beat_s:
        raise Broken(f"no heartbeat came for {widest_s:.2f} s{when}; the interval is {trial.beat_s} s")


@required(
    "counts what it runs",
    "Send active_count with every heartbeat: how many runs are being executed at this moment.",
)
def counts_active(trial: Trial) -> None:
    runs = [trial.start("work", trial.work(4 * LONG)) for _ in range(CONCURRENCY)]
    if not trial.until(lambda: all(run.running for run in runs)):
        raise Broken(f"it did not take {CONCURRENCY} runs")
    before = len(trial.server.made("WorkerHeartbeat"))
    beats = [trial.wait("WorkerHeartbeat", before + number).request for number in (1, 2)]
    expect("active_count while it runs two", CONCURRENCY, beats[-1].active_count)


@required(
    "counts what has ended",
    "Send completed_delta and failed_delta with every heartbeat: how many runs have ended so since the last one.",
)
def counts_ended(trial: Trial) -> None:
    for run in [trial.start("echo", number) for number in range(2)]:
        trial.completes(run)
    failed = trial.start("fail", {"message": "counted"})
    trial.wait("FailWorkflow", run=failed)

    def counted() -> tuple[int, int]:
        told = [beat.request for beat in trial.server.made("WorkerHeartbeat")]
        return sum(one.completed_delta for one in told), sum(one.failed_delta for one in told)

    trial.server.until(lambda: counted() == (2, 1), STALE * trial.beat_s + 1)
    expect("completed and failed, summed over heartbeats", (2, 1), counted())


@required(
    "stops when the server asks it to drain",
    "When a heartbeat is answered with should_drain, poll no more, finish what runs, call DeregisterWorker, and end.",
)
def drains(trial: Trial) -> None:
    run = trial.start("work", trial.work(2 * LONG))
    trial.executes(run)
    trial.server.drain = True
    _leaves(trial, run)


@required(
    "finishes what runs at SIGTERM",
    "At SIGTERM poll no more, finish what runs, call DeregisterWorker, and end with exit code 0.",
)
def stops(trial: Trial) -> None:
    run = trial.start("work", trial.work(LONG))
    trial.executes(run)
    trial.stop()
    _leaves(trial, run)


def _leaves(trial: Trial, run: Run) -> None:
    trial.leaves()
    if not trial.server.made("CompleteWorkflow", run):
        raise Broken("it left before the run that it was executing had ended")
    trial.ends()
    trial.completes(run)


@required(
    "takes nothing more while it stops",
    "After SIGTERM, make no new PollActivity: what it brings would wait until you have ended.",
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
    "completes a run with what it gave",
    "Call CompleteWorkflow once, with what the workflow returned as JSON.",
)
def completes(trial: Trial) -> None:
    given = {"text": 'äöü € " \\ \n', "list": [1, None, True], "number": 1.5}
    run = trial.start("echo", given)
    expect("the output", given, trial.completes(run))
    trial.quiet(run, 1)


@required(
    "fails a run with the reason",
    "When a workflow raises an error, call FailWorkflow with its text in error.message.",
)
def fails(trial: Trial) -> None:
    run = trial.start("fail", {"message": "no good"})
    error = trial.wait("FailWorkflow", run=run).request.error
    if "no good" not in error.message:
        raise Broken(f"error.message is {error.message[:200]!r}")
    trial.quiet(run, 1)
    trial.lives()


@required(
    "runs as many at once as it registered, and no more",
    "Execute up to max_concurrent runs side by side. Poll only when there is room for one more.",
)
def concurrency(trial: Trial) -> None:
    runs = [trial.start("work", trial.work(LONG / 2)) for _ in range(CONCURRENCY + 2)]
    for run in runs:
        trial.completes(run)
    expect("runs at the same time", CONCURRENCY, trial.server.most_held)


@required(
    "records each step, in order",
    "Call BeginStep before a step, CompleteStep with what it gave as JSON, and only then begin the next one.",
)
def steps(trial: Trial) -> None:
    run = trial.start("steps", {"count": 3})
    expect("the output", [1, 2, 3], trial.completes(run))
    told = [(call.name, getattr(call.request, "step_id", "")) for call in trial.server.about(run)]
    wanted = [(name, f"step-{number}") for number in (1, 2, 3) for name in ("BeginStep", "CompleteStep")]
    expect("what was said", [*wanted, ("CompleteWorkflow", "")], told)


@required(
    "does not repeat a step that was done",
    "When BeginStep is answered with should_execute false, do not execute the step: go on with cached_result.",
)
def cached(trial: Trial) -> None:
    run = trial.start("steps", {"count": 3})
    run.steps["step-1"] = b'"done before"'
    expect("the output", ["done before", 2, 3], trial.completes(run))
    again = [call.request.step_id for call in trial.server.made("CompleteStep", run)]
    expect("steps that were completed", ["step-2", "step-3"], again)


@required(
    "records a step that fails",
    "When a step raises an error, call FailStep with its text in error.message.",
)
def step_fails(trial: Trial) -> None:
    run = trial.start("step_fails", {"message": "bad step"})
    request = trial.wait("FailStep", run=run).request
    expect("step_id", "doomed", request.step_id)
    if "bad step" not in request.error.message:
        raise Broken(f"error.message is {request.error.message[:200]!r}")


@required(
    "gives a sleeping run back",
    "To sleep, call ScheduleSleep with duration_seconds, and say no more of the run: neither complete nor fail it. It "
    "is polled again when its time has come.",
)
def sleeps(trial: Trial) -> None:
    run = trial.start("sleep", {"seconds": 3600})
    asked = trial.wait("ScheduleSleep", run=run)
    expect("duration_seconds", 3600, asked.request.duration_seconds)
    trial.pause(0.5)
    told = trial.server.about(run)
    later = [call for call in told[told.index(asked) + 1 :] if not _ends_sleep(call, run)]
    if later:
        raise Broken(f"it went on with {later[0].name}, of a run that sleeps")
    trial.lives()


def _ends_sleep(call: Call, run: Run) -> bool:
    """A client may complete the step that it began for the sleep: it is recorded already."""
    return call.name == "CompleteStep" and call.request.step_id == run.begun


@required(
    "goes on after a sleep",
    "When a run is polled again after its sleep, execute it from the beginning: steps that were done are not repeated, "
    "and what was slept is not slept again.",
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
    "heartbeats until its last run has ended",
    "Go on with WorkerHeartbeat while you drain: without it the server gives what you still run to somebody else.",
)
def beats_while_it_drains(trial: Trial) -> None:
    run = trial.start("work", trial.work(4 * LONG))
    trial.executes(run)
    trial.stop()
    end = trial.wait("CompleteWorkflow", run=run)
    beats = [trial.wait("RegisterWorker"), *trial.server.made("WorkerHeartbeat"), end]
    _check_gaps(trial, beats, " before its run had ended")


@hardening(
    "waits for a server that is away",
    "When RegisterWorker is answered with UNAVAILABLE, try again with a growing pause: workers start before servers.",
)
def waits_for_server(trial: Trial) -> None:
    trial.server.refuse("RegisterWorker", AWAY, 2)
    trial.wait("RegisterWorker", 3)
    trial.lives()


@hardening(
    "repeats a result whose answer was lost",
    "When CompleteWorkflow gets no answer, send the same again until it is answered: it is taken once.",
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
    "When CompleteStep gets no answer, send the same again, and go on when it was answered.",
)
def repeats_step(trial: Trial) -> None:
    trial.server.lose_answer("CompleteStep", 1)
    run = trial.start("steps", {"count": 2})
    expect("the output", [1, 2], trial.completes(run))
    told = [call.request.step_id for call in trial.server.made("CompleteStep", run)]
    expect("steps that were completed", ["step-1", "step-1", "step-2"], told)


@hardening(
    "polls with pauses while the server is away",
    "When PollActivity is answered with UNAVAILABLE, poll again after a pause that grows, and go on when it is back.",
)
def polls_patiently(trial: Trial) -> None:
    trial.wait("PollActivity", 2)
    before = len(trial.server.made("PollActivity"))
    trial.server.refuse("PollActivity", AWAY, 1_000_000)
    trial.pause(AWAY_S)
    polls = len(trial.server.made("PollActivity")) - before
    trial.server.refuse("PollActivity", AWAY, 0)
    if polls > POLLS_MAX:
        raise Broken(f"it polled {polls} times in {AWAY_S:g} s while the server was away")
    trial.lives()


@hardening(
    "lives through heartbeats that fail",
    "When a heartbeat is answered with UNAVAILABLE, go on and try the next one: what runs is still yours.",
)
def survives_heartbeats(trial: Trial) -> None:
    trial.wait("WorkerHeartbeat")
    trial.server.refuse("WorkerHeartbeat", AWAY, 2)
    run = trial.start("work", trial.work(LONG))
    trial.completes(run)
    answered = len(trial.server.made("WorkerHeartbeat"))
    trial.wait("WorkerHeartbeat", max(answered + 1, 4))
    trial.lives()


@hardening(
    "registers again when the server does not know it",
    "When a heartbeat or a poll is refused because the worker is unknown (NOT_FOUND, FAILED_PRECONDITION), call "
    "RegisterWorker again and go on with the new id: the server was restarted, or took you for dead.",
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
    "leaves a run alone that was cancelled",
    "When a call about a run is refused with FAILED_PRECONDITION, the run was cancelled or is somebody else's: stop "
    "executing it and say no more of it, neither complete nor fail.",
)
def cancelled(trial: Trial) -> None:
    run = trial.start("steps", {"count": 50, "work_ms": 100})
    trial.wait("CompleteStep", run=run)
    trial.server.cancel(run)
    if not trial.until(lambda: any(call.code == GONE.name for call in trial.server.about(run))):
        raise Broken("it said nothing more of the run, and so does not know that it was cancelled")
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
    "stops after a step that will be tried again",
    "After FailStep ask GetWorkflowRun, with the namespace: if the run is SLEEPING, its step is tried again later. Say "
    "no more of the run; it is polled again.",
)
def step_is_tried_again(trial: Trial) -> None:
    run = trial.start("step_fails", {"message": "bad step", "times": 1})
    trial.wait("FailStep", run=run)
    trial.quiet(run, 2)
    run.steps["doomed"] = b'"recovered"'
    trial.server.wake(run)
    expect("the output", "recovered", trial.completes(run))


@hardening(
    "names its attempt in all that it says of a run",
    "Send the x-windlass-lease-token of a poll's trailing metadata with every call about that run: a worker that was "
    "taken for dead can write nothing then.",
)
def sends_token(trial: Trial) -> None:
    runs = [trial.start("steps", {"count": 3, "work_ms": 50}) for _ in range(CONCURRENCY)]
    for run in runs:
        expect("the output", [1, 2, 3], trial.completes(run))
    for run in runs:
        for call in trial.server.about(run):
            expect(f"{TOKEN} of {call.name}", run.token, call.metadata.get(TOKEN))


@hardening("shows its key", "Send `authorization: Bearer` with the key in WINDLASS_API_KEY with every call.")
def shows_key(trial: Trial) -> None:
    trial.completes(trial.start("steps", {"count": 1}))
    for call in list(trial.server.calls):
        expect(f"authorization of {call.name}", f"Bearer {KEY}", call.metadata.get("authorization"))


@hardening(
    "fails a run whose input it cannot read",
    "When workflow_input is not what the workflow expects, call FailWorkflow and live on: one bad input must not take "
    "the worker or its place down.",
)
def bad_input(trial: Trial) -> None:
    for payload in (b"{", b"\xff\xfe", b""):
        run = trial.start("steps", payload)
        trial.wait("FailWorkflow", run=run)
    trial.lives()


@hardening(
    "sends null for a workflow that returns nothing",
    "Send the four bytes `null` as output of a workflow or step without a result: an empty output is refused.",
)
def sends_null(trial: Trial) -> None:
    run = trial.start("echo", None)
    expect("the output", None, trial.completes(run))


@hardening(
    "keeps two attempts at one run apart",
    "A run that the server took from you may come again while you still execute it. Each execution sends its own "
    "x-windlass-lease-token; the older one stops at FAILED_PRECONDITION and says no more.",
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
    trial.pause(trial.beat_s)  # for the other one
    ends = [(call.metadata.get(TOKEN), call.code) for call in trial.server.made("CompleteWorkflow", run)]
    expect("tokens of results that were accepted", [second], [token for token, code in ends if code == "OK"])
    expect(
        "tokens of results that were refused", [], [token for token, code in ends if code != "OK" and token != first]
    )
    trial.quiet(run, len(trial.server.about(run)))
