"""The cases of the lease contract. People quote their numbers, so add new cases at the end.

The worker under test has one operator, `conformance`: see docs/howto/check-a-worker.md.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from uuid import uuid4

from windlass.contracts.lease.conformance.stand_in import FENCED, STALE, Call, Task
from windlass.contracts.lease.conformance.trial import CONCURRENCY, KIT, NAMESPACE, QUEUE, Trial
from windlass.testing.conformance.kit import Broken, expect
from windlass.testing.conformance.listener import Reply

required, hardening = KIT.required, KIT.hardening

UNAVAILABLE = Reply(503, {"error": "unavailable", "message": "the dispatcher is away"})
CONFLICT = Reply(409, {"error": "conflict", "message": "it has ended otherwise"})
STOP_S, QUIET_S = 5.0, 1.0  # how soon an operator must stop, and how long it must be silent then
LONG = 1.5  # leases
WITH_EVENTS = ("events", "task-complete")  # calls that carry events


def events(count: int) -> list[dict[str, Any]]:
    dataset, version = str(uuid4()), str(uuid4())
    return [{"dataset_uuid": dataset, "dataset_version": version, "cursor": number} for number in range(count)]


# --------------------------------------------------------------------------------------------- one task


@required(
    "presents its certificate",
    "Call /internal/* over TLS 1.3 with the client certificate. The server answers no call without it.",
)
def shows_certificate(trial: Trial) -> None:
    trial.wait("wakeups/receive")
    body = trial.server.made("wakeups/receive")[0].body
    expect("queue and namespace", (QUEUE, NAMESPACE), (body.get("queue"), body.get("namespace")))


@required(
    "claims a task before it runs it",
    "On a wake-up, POST /internal/task-claim with task_id and worker_id. Run the operator with the config from the "
    "answer.",
)
def claims(trial: Trial) -> None:
    task, _ = trial.submit()
    claim = trial.wait("task-claim", task=task)
    if not isinstance(claim.body.get("worker_id"), str) or not claim.body["worker_id"]:
        raise Broken("the claim has no worker_id")
    trial.ends(task, "Completed")
    expect("the first call", "task-claim", trial.server.about(task)[0].name)


@required(
    "completes a task once",
    "When the operator has ended, POST /internal/task-complete with status Completed. After it is accepted, make no "
    "further calls about the task.",
)
def completes_once(trial: Trial) -> None:
    task, _ = trial.submit()
    trial.ends(task, "Completed")
    trial.quiet(task, len(trial.server.about(task)))


@required(
    "reports a failure with its reason",
    "When the operator fails, POST /internal/task-complete with status Failed and the reason in error_message.",
)
def reports_failure(trial: Trial) -> None:
    task, _ = trial.submit(outcome="Failed")
    report = trial.ends(task, "Failed")
    if "asked to fail" not in str(report.body.get("error_message")):
        raise Broken(f"error_message is {report.body.get('error_message')!r:.200}")
    trial.lives()


@required(
    "sends the fence in every call",
    "Send task_id, attempt and lease_token from the claim with every heartbeat, every event and the report.",
)
def repeats_fence(trial: Trial) -> None:
    task = trial.task(LONG, events=events(1))
    task.attempt = 6
    trial.wake(task)
    trial.ends(task, "Completed")
    for call in trial.server.about(task):
        if call.name in FENCED:
            expect(f"attempt of {call.name}", 7, call.body.get("attempt"))
            expect(f"lease_token of {call.name}", task.token, call.body.get("lease_token"))


@required(
    "keeps its lease while it works",
    "POST /internal/heartbeat well before lease_expires_at, and repeat it until the report. A third of the lease is "
    "a good interval.",
)
def heartbeats(trial: Trial) -> None:
    task, _ = trial.submit(3)
    trial.ends(task, "Completed")
    calls = [call for call in trial.server.about(task) if call.status == 200]
    gap_s = max(after.at_s - before.at_s for before, after in pairwise(calls))
    if gap_s > trial.lease_s:
        raise Broken(f"nothing kept the lease for {gap_s:.2f} s; it lasts {trial.lease_s:g} s")


@required(
    "sends events before it completes",
    "The server must accept every event of the operator before the task completes. Send events to /internal/events, "
    "or as final events of the report.",
)
def passes_events(trial: Trial) -> None:
    given = events(3)
    task, _ = trial.submit(LONG / 2, events=given)
    trial.ends(task, "Completed")
    calls = [call for call in trial.server.about(task) if call.name in WITH_EVENTS]
    expect("the last call", "task-complete", calls[-1].name)
    expect("events", [0, 1, 2], _cursors(calls))


def _cursors(calls: list[Call]) -> list[Any]:
    """Of all events of these calls, in order."""
    events = [event for call in calls for event in call.body.get("events") or ()]
    return [event.get("cursor") if isinstance(event, dict) else event for event in events]


@required("reports outputs", "Send the outputs of the operator in the report, unchanged.")
def hands_outputs_in(trial: Trial) -> None:
    given = [{**events(1)[0], "output_index": n, "location": f"s3://x/{n}", "row_count": 7} for n in range(2)]
    task, _ = trial.submit(outputs=given)
    expect("outputs", given, trial.ends(task, "Completed").body.get("outputs"))


@required(
    "runs nothing that it could not claim",
    "When the claim is answered with NotClaimed, do not run the operator, make no further calls about the task, and "
    "ack the message.",
)
def not_claimed(trial: Trial) -> None:
    assert trial.program
    for status in ("Running", "Completed", "Canceled"):
        task = trial.server.submit({}, status)
        wakeup = trial.wake(task)
        trial.acks(wakeup)
        expect(f"calls about a task that is {status}", ["task-claim"], [call.name for call in trial.server.about(task)])
    trial.acks(trial.wake(Task({})))
    trial.lives()


@required(
    "acks a message after its task is reported",
    "Ack the message after the report is accepted, not before. Until then, the message is what delivers the task "
    "again if the worker stops.",
)
def acks_after_report(trial: Trial) -> None:
    task, wakeup = trial.submit(LONG / 2)
    trial.acks(wakeup)
    trial.ends(task, "Completed")
    names = [call.name for call in trial.server.calls]
    if names.index("wakeups/ack") < names.index("task-complete"):
        raise Broken("the message was acked before the report")


@required(
    "reports a cancel",
    "When a heartbeat or /internal/task-fetch answers Canceled, stop the operator and report with status Canceled.",
)
def reports_cancel(trial: Trial) -> None:
    task, wakeup = trial.submit(20)
    trial.wait("heartbeat", task=task)
    task.cancelled = True
    if not trial.until(lambda: bool(trial.server.made("task-complete", task))):
        raise Broken(f"it did not report within {trial.timeout_s:g} s after its task was cancelled")
    trial.ends(task, "Canceled")
    trial.acks(wakeup)


@required(
    "makes no further calls when its lease is lost",
    "When a heartbeat is answered with 409 stale_lease, the task belongs to another worker. Send no event, no report "
    "and no further heartbeat.",
)
def lost(trial: Trial) -> None:
    task, _ = trial.submit(2)
    trial.wait("heartbeat", task=task)
    task.lost = True
    if not trial.until(lambda: any(call.status == STALE.status for call in trial.server.about(task))):
        raise Broken("it made no further heartbeat, and so does not know that it has lost its lease")
    trial.quiet(task, len(trial.server.about(task)), 2.5 * trial.lease_s)
    trial.lives()


# --------------------------------------------------------------------------------------------- operators that stop


@hardening(
    "stops its operator when its task is cancelled",
    "Stop the operator itself, then report. An operator that continues wastes its work and keeps a slot.",
)
def stops_cancelled(trial: Trial) -> None:
    task, _ = trial.submit(20, probe=True)
    task.probe.wait(trial.timeout_s)
    task.cancelled = True
    trial.wait("heartbeat", len(trial.server.made("heartbeat", task)) + 1, task)
    task.probe.stops("its task was cancelled", quiet_s=QUIET_S, limit_s=STOP_S)


@hardening(
    "stops its operator when its lease is lost",
    "Stop the operator at 409 stale_lease. Another worker may already run the task.",
)
def stops_lost(trial: Trial) -> None:
    task, _ = trial.submit(20, probe=True)
    task.probe.wait(trial.timeout_s)
    task.lost = True
    trial.wait("heartbeat", len(trial.server.made("heartbeat", task)) + 1, task)
    task.probe.stops("its lease was lost", quiet_s=QUIET_S, limit_s=STOP_S)


# --------------------------------------------------------------------------------------------- a dispatcher away


@hardening(
    "repeats a report whose answer was lost",
    "When /internal/task-complete gets a 5xx answer or no answer, send the same report again with growing pauses "
    "until it is accepted. Then ack the message.",
)
def repeats_report(trial: Trial) -> None:
    trial.server.lose_answer("task-complete", 2)
    task, wakeup = trial.submit()
    trial.wait("task-complete", 3, task)
    reports = [call.body for call in trial.server.made("task-complete", task)]
    if any(before != after for before, after in pairwise(reports)):
        raise Broken("the repeated report differs from the first")
    trial.acks(wakeup)


@hardening(
    "accepts that its report is refused",
    "When /internal/task-complete is answered with 409, do not repeat the report, send no other report, and ack the "
    "message.",
)
def accepts_refusal(trial: Trial) -> None:
    trial.server.answer_with("task-complete", CONFLICT, 100)
    task, wakeup = trial.submit()
    trial.wait("task-complete", task=task)
    trial.quiet(task, len(trial.server.about(task)))
    trial.acks(wakeup)


@hardening(
    "claims again when the server is unavailable",
    "When /internal/task-claim gets a 503 answer or no answer, try again with growing pauses, and keep the message.",
)
def claims_again(trial: Trial) -> None:
    trial.server.answer_with("task-claim", UNAVAILABLE, 2)
    task, wakeup = trial.submit()
    trial.ends(task, "Completed")
    trial.acks(wakeup)


@hardening(
    "continues while heartbeats fail",
    "Do not stop when a heartbeat gets a 503 answer or no answer. The server may still accept a late report, so send "
    "it.",
)
def survives_heartbeats(trial: Trial) -> None:
    trial.server.answer_with("heartbeat", UNAVAILABLE, 1000)
    task, wakeup = trial.submit(LONG)
    trial.wait("heartbeat", 2, task)
    trial.ends(task, "Completed")
    trial.acks(wakeup)


@hardening(
    "repeats events until they are accepted",
    "When /internal/events is answered with 503, send the same events again. Report only after all events are "
    "accepted.",
)
def repeats_events(trial: Trial) -> None:
    trial.server.answer_with("events", UNAVAILABLE, 2)
    task, _ = trial.submit(LONG / 2, events=events(1))
    trial.ends(task, "Completed")
    calls = [call for call in trial.server.about(task) if call.name in WITH_EVENTS and call.status == 200]
    expect("events that were accepted", [0], _cursors(calls))


# --------------------------------------------------------------------------------------------- messages


@hardening(
    "extends a message while it works",
    "While the task runs, extend the message before its visibility timeout ends. Otherwise it is delivered again.",
)
def extends(trial: Trial) -> None:
    task, wakeup = trial.submit(3)
    trial.ends(task, "Completed")
    expect("times that the message was delivered", 1, wakeup.deliveries)
    trial.acks(wakeup)


@hardening(
    "runs a task that is announced twice only once",
    "A message may arrive more than once. Claim each time, and run only what was claimed. The second claim is "
    "answered with NotClaimed.",
)
def announced_twice(trial: Trial) -> None:
    task, first = trial.submit(LONG)
    trial.until(lambda: task.held)
    trial.acks(trial.wake(task))
    trial.ends(task, "Completed")
    trial.acks(first)
    expect("reports", 1, len(trial.server.made("task-complete", task)))


@hardening(
    "discards a malformed wake-up",
    "Dead-letter or ack a message that names no task, and continue. No worker can ever process it.",
)
def no_wakeup(trial: Trial) -> None:
    assert trial.program
    for body in ("", "{", "[]", '{"task_id": 7}', '{"task_id": "none"}', "\ufffd"):
        trial.settles(trial.server.wake(body))
    trial.lives()


@hardening(
    "ignores unknown fields",
    "Ignore unknown fields in messages and answers. Workers and servers are not upgraded at the same time.",
)
def ignores_unknown(trial: Trial) -> None:
    trial.server.extra = {"future": {"a": [1]}}
    assert trial.program
    task = trial.server.submit({"work_ms": 0, "outcome": "Completed", "future": 1})
    wakeup = trial.wake(task, kind="task_wakeup", future=[2])
    trial.ends(task, "Completed")
    trial.acks(wakeup)


# --------------------------------------------------------------------------------------------- the worker itself


@hardening(
    "runs up to its limit of tasks, and no more",
    "Run up to LEASE_CONCURRENCY tasks in parallel, and claim no more than that. Leave waiting tasks to other workers.",
)
def concurrency(trial: Trial) -> None:
    many = [trial.submit(LONG / 2) for _ in range(CONCURRENCY + 2)]
    for task, _ in many:
        trial.ends(task, "Completed")
    expect("tasks at the same time", CONCURRENCY, trial.server.most_held)


@hardening(
    "finishes running tasks at SIGTERM",
    "At SIGTERM, claim nothing more. Keep the leases of running tasks, report them, ack their messages, and exit "
    "with code 0.",
)
def finishes(trial: Trial) -> None:
    task, wakeup = trial.submit(LONG)
    trial.until(lambda: task.held)
    trial.pause(0.3)  # for the answer to the claim
    trial.stop()
    trial.pause(0.3)
    late, _ = trial.submit()
    trial.ends(task, "Completed")
    trial.acks(wakeup)
    expect("the exit code", 0, trial.program.wait(trial.timeout_s))
    expect("claims after SIGTERM", 0, len(trial.server.made("task-claim", late)))


@hardening(
    "does not talk to an untrusted server",
    "Verify the server's certificate against the authority in LEASE_CA. Send nothing to a server with another "
    "certificate.",
)
def knows_server(trial: Trial) -> None:
    if trial.trusts_impostor(3.0):
        raise Broken("it called a server whose certificate is of another authority")


@hardening(
    "keeps two attempts at one task apart",
    "A task whose lease was lost may be delivered again while its operator still runs. Each attempt sends its own "
    "fence. The older one makes no further calls after 409.",
)
def two_attempts(trial: Trial) -> None:
    task, _ = trial.submit(2 * LONG)
    trial.wait("heartbeat", 2, task)
    trial.server.take_back(task)
    trial.wake(task)
    if not trial.until(lambda: task.attempt == 2):
        raise Broken("it did not claim the task a second time")
    work_s = 2 * LONG * trial.lease_s
    if not trial.server.until(lambda: task.status == "Completed", trial.timeout_s + work_s):
        raise Broken(f"the second attempt was not reported; {trial.server.names()}")
    report = next(call for call in trial.server.made("task-complete", task) if call.status == 200)
    expect("the attempt whose report was accepted", 2, report.body.get("attempt"))
    took_s = report.at_s - trial.wait("task-claim", 2, task).at_s
    if took_s < 0.9 * work_s:
        raise Broken(f"the second attempt was reported {took_s:.1f} s after its claim, and its work takes {work_s:g} s")
