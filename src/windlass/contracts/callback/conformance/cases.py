"""The cases of the callback contract. Numbers are part of what people quote: new ones are added at the end.

The worker under test has one handler, `conformance`. It works for `work_ms` in small pieces, stops on request, and ends
with `outcome`. If its payload has a `probe_url`, it sends an empty POST there in each piece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from windlass.contracts.callback.conformance.case import KIT, LONG, Trial
from windlass.contracts.callback.conformance.stand_in import Callback, Pushed, Script, delivery_id
from windlass.net.signature import signed_headers
from windlass.testing.conformance.kit import Broken
from windlass.testing.conformance.listener import Reply

required, hardening = KIT.required, KIT.hardening

OTHER_SECRET = "whsec_" + "b3RoZXIgc2VjcmV0IG9mIG5vYm9keSBhdCBhbGwhISE="
TERMINAL = {"error": "task_already_terminal", "state": "CANCELLED", "message": "the task is over"}
EXPIRED = {"error": "task_expired", "message": "the task exceeded its heartbeat timeout"}
SUPERSEDED = {"error": "attempt_mismatch", "expectedAttempt": 2, "receivedAttempt": 1, "message": "a newer one runs"}
CANCEL = Reply(200, {"acknowledged": True, "shouldCancel": True, "cancelReason": "user_requested"})
SLACK_S = 1.0  # for busy machines


def answer(to: str, reply: Reply, times: int = 1_000_000, begin: int = 0) -> Script:
    """This reply to the first few callbacks of one kind; all else is accepted."""

    def script(what: str, before: int) -> Reply | None:
        return reply if what == to and begin <= before < begin + times else None

    return script


def fail_twice(to: str) -> Script:
    """A 500 to the first callback of one kind, no answer to the second; all else is accepted."""
    return lambda what, before: (Reply(500), Reply(0))[before] if what == to and before < 2 else None


def outcome(pushed: Pushed, wanted: str) -> Callback:
    callback = pushed.wait("completed")
    if callback.body["outcome"] != wanted:
        error = json.dumps(callback.body.get("error"))
        raise Broken(f"completed has the outcome {callback.body['outcome']}, not {wanted}: {error}")
    return callback


# --------------------------------------------------------------------------------------------- the push and its answer


@hardening(
    "answers the push at once",
    "Answer the push with 202 (or any 2xx) as soon as the worker has checked and accepted it, and run the task "
    "afterwards. If the answer takes too long, the engine treats the delivery as lost and sends it again.",
)
def answers_at_once(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(LONG))
    pushed.wait("completed")
    if not pushed.answered.wait(trial.engine.timeout_s) or pushed.callbacks_when_answered >= len(pushed.callbacks):
        raise Broken("the push was answered when the work was over")


@required("calls started first", "Call …/started before the work begins and before any other callback.")
def started_first(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(2))
    outcome(pushed, "SUCCEEDED")
    if pushed.callbacks[0].what != "started":
        raise Broken(f"the first callback was {pushed.callbacks[0].what}")


@required(
    "completes with its result, once",
    "Call …/completed once, with the outcome and the output of the work. After it is accepted, make no further "
    "callbacks: no second completed, no heartbeat.",
)
def completes_once(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(3))
    trial.quiet(pushed, outcome(pushed, "SUCCEEDED"))


@required(
    "reports a failure with its category",
    "When the work fails, call …/completed with outcome FAILED and an error that has a category and a message.",
)
def reports_failure(trial: Trial) -> None:
    outcome(trial.push(trial.envelope(1, "FAILED")), "FAILED")


@required(
    "sends its attempt in every callback",
    "Send the attempt from the envelope in every body. It separates an old attempt from a new one.",
)
def sends_attempt(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(3, attempt=7))
    outcome(pushed, "SUCCEEDED")
    pushed.check()


@required(
    "sends the token of its attempt",
    "Send `Authorization: Bearer` with the taskToken from the envelope in every callback. Each attempt has its own "
    "token.",
)
def sends_token(trial: Trial) -> None:
    first = trial.push(trial.envelope(LONG, taskToken="eyJhbGciOi.first-_~+/=." + "x" * 1500))
    second = trial.push(trial.envelope(2))
    outcome(second, "SUCCEEDED")
    outcome(first, "SUCCEEDED")


@hardening(
    "ignores unknown fields",
    "Ignore unknown fields in envelopes and answers. Workers and engines are not upgraded at the same time.",
)
def ignores_unknown(trial: Trial) -> None:
    extra = Reply(200, {"acknowledged": True, "shouldCancel": False, "future": {"a": [1]}})
    pushed = trial.push(trial.envelope(4, future={"b": [2]}, futureText="c"), answer("heartbeat", extra))
    outcome(pushed, "SUCCEEDED")


@hardening(
    "survives a malformed push",
    "Answer a signed body that is not an envelope with 400, and continue. One bad push must not stop the worker.",
)
def survives_garbage(trial: Trial) -> None:
    for body in (b"", b"{", b"[]", b"null", b'{"taskId": 7}', b"\xff\xfe"):
        status = trial.engine.send(body, message_id="garbage")
        if not 400 <= status < 500:
            raise Broken(f"the body {body!r} was answered with {status}")
    outcome(trial.push(trial.envelope()), "SUCCEEDED")


# --------------------------------------------------------------------------------------------- signatures


@hardening(
    "refuses a push with a wrong signature",
    "Verify `webhook-signature`: HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}` with the queue's secret, "
    "compared in constant time. If it does not match, answer 401 and run nothing.",
)
def refuses_wrong_signature(trial: Trial) -> None:
    _refuses(trial, "a push that was signed with another secret", secret=OTHER_SECRET)


@hardening(
    "refuses a push without a signature",
    "Answer 401 to a push without the three `webhook-` headers, and run nothing.",
)
def refuses_unsigned(trial: Trial) -> None:
    _refuses(trial, "a push without a signature", headers={})


@hardening(
    "refuses a body that was changed after signing",
    "Verify the signature over the bytes of the body as received, before parsing them.",
)
def refuses_changed_body(trial: Trial) -> None:
    _refuses(trial, "a push whose body was changed", tail=b" ")


@hardening(
    "refuses an old push",
    "Refuse a push whose `webhook-timestamp` differs from the current time by more than five minutes. It may be a "
    "replayed copy.",
)
def refuses_old(trial: Trial) -> None:
    _refuses(trial, "a push that was signed an hour ago", age_s=3600)


def _refuses(
    trial: Trial,
    why: str,
    *,
    secret: str = "",
    headers: dict[str, str] | None = None,
    tail: bytes = b"",
    age_s: int = 0,
) -> None:
    envelope = trial.envelope()
    watched = Pushed(trial.engine, envelope, lambda *_: None)
    trial.engine.expect(watched)
    body = json.dumps(envelope).encode()
    if headers is None:
        at_s = trial.engine.now_s() - age_s
        headers = signed_headers([secret or trial.engine.secret], delivery_id(envelope), at_s, body)
    status = trial.engine.send(body + tail, message_id=delivery_id(envelope), headers=headers)
    if status not in (401, 403):
        raise Broken(f"{why} was answered with {status}")
    trial.quiet(watched, None, 2)


# --------------------------------------------------------------------------------------------- heartbeats


@required(
    "sends heartbeats while it works",
    "Call …/heartbeat every heartbeatIntervalMs of the envelope, from started to completed, even during long "
    "computations. After heartbeatTimeoutMs without a heartbeat, the engine treats the attempt as lost and gives the "
    "task to another worker.",
)
def heartbeats(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(LONG))
    pushed.wait("heartbeat", 3, unless="completed")
    outcome(pushed, "SUCCEEDED")
    times = [callback.at_s for callback in pushed.callbacks]
    gap_s = max(after - before for before, after in pairwise(times))
    if gap_s > 3 * trial.interval_s + SLACK_S:
        raise Broken(f"it sent no callback for {gap_s:.2f} s; its timeout is {3 * trial.interval_s:.2f} s")


@required(
    "continues when a heartbeat fails",
    "Do not stop when a heartbeat gets a 5xx answer or no answer. Keep working and try again.",
)
def survives_lost_heartbeat(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(2 * LONG), fail_twice("heartbeat"))
    pushed.wait("heartbeat", 3, unless="completed")
    outcome(pushed, "SUCCEEDED")


@hardening(
    "uses a renewed token",
    "When the answer to a heartbeat has a taskToken, use that token from then on. The first one expires.",
)
def uses_renewed_token(trial: Trial) -> None:
    renewed = Reply(200, {"acknowledged": True, "shouldCancel": False, "taskToken": "token.renewed"})
    pushed = trial.push(trial.envelope(LONG), answer("heartbeat", renewed, times=1))
    pushed.wait("heartbeat", 3, unless="completed")
    outcome(pushed, "SUCCEEDED")
    if {pushed.of_kind("completed")[0].token, pushed.of_kind("heartbeat")[2].token} != {"token.renewed"}:
        raise Broken("it went on with the token that had been replaced")


# --------------------------------------------------------------------------------------------- cancel and abort


@required(
    "obeys a cancel",
    "When a heartbeat is answered with shouldCancel, stop the work within cancelGracePeriodMs, clean up, and call "
    "…/completed with outcome CANCELLED.",
)
def stops_at_cancel(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(10 * LONG), answer("heartbeat", CANCEL))
    pushed.wait("heartbeat", unless="completed")
    grace_s = 20 * trial.interval_s + SLACK_S
    completed = pushed.wait("completed", timeout_s=grace_s)
    if completed.body["outcome"] != "CANCELLED":
        raise Broken(f"it got shouldCancel and completed with {completed.body['outcome']}")
    trial.quiet(pushed, completed)


@required(
    "does not run a task that is refused at the start",
    "When …/started is answered with 409, the task has ended or belongs to another worker. Do not run it, and make "
    "no further callbacks.",
)
def gives_up_at_start(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(2), answer("started", Reply(409, TERMINAL)))
    trial.quiet(pushed, pushed.wait("started"), 8)


@required(
    "stops at once when its attempt has expired",
    "When a heartbeat is answered with 410, abort the work at once and make no further callbacks: no heartbeat, no "
    "completed.",
)
def stops_at_410(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(5), answer("heartbeat", Reply(410, EXPIRED)))
    trial.quiet(pushed, pushed.wait("heartbeat", unless="completed"), LONG)


@hardening(
    "stops when a newer attempt has taken over",
    "When a heartbeat is answered with 409 attempt_mismatch, abort the work and make no further callbacks.",
)
def stops_at_409(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(5), answer("heartbeat", Reply(409, SUPERSEDED)))
    trial.quiet(pushed, pushed.wait("heartbeat", unless="completed"), LONG)


@hardening(
    "accepts that its result is refused",
    "When …/completed is answered with 409, the engine no longer needs the result. Do not send it again.",
)
def accepts_refusal(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(1), answer("completed", Reply(409, SUPERSEDED)))
    trial.quiet(pushed, pushed.wait("completed"), 8)


# --------------------------------------------------------------------------------------------- retries


@hardening(
    "repeats started until it is answered",
    "When …/started gets a 5xx answer or no answer, send it again with a growing delay. Begin the work only after it "
    "is accepted.",
)
def repeats_started(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(2), fail_twice("started"))
    pushed.wait("started", 3, unless="completed")
    outcome(pushed, "SUCCEEDED")


@hardening(
    "repeats completed after a 503 and honours Retry-After",
    "When …/completed is answered with 503 or 429, send the same request again after Retry-After has passed. A "
    "result that is not delivered is lost.",
)
def repeats_completed(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(1), answer("completed", Reply(503, headers={"Retry-After": "1"}), times=1))
    first, second = pushed.wait("completed"), pushed.wait("completed", 2)
    _same(first.body, second.body)
    if second.at_s - first.at_s < 0.9:
        raise Broken(f"it was asked to wait 1 s and came back after {second.at_s - first.at_s:.2f} s")
    trial.quiet(pushed, second)


@hardening(
    "repeats completed when the answer is lost",
    "When the connection breaks before …/completed is answered, send the same request again. The engine answers a "
    "repeat like the first request.",
)
def repeats_lost_answer(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(1), answer("completed", Reply(0), times=1))
    second = pushed.wait("completed", 2)
    _same(pushed.wait("completed").body, second.body)
    trial.quiet(pushed, second)


def _same(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    for field in ("outcome", "output", "error"):
        if first.get(field) != second.get(field):
            raise Broken(f"the repeated completed has another {field}")


# --------------------------------------------------------------------------------------------- duplicates, neighbours


@hardening(
    "runs a push that arrives twice only once",
    "A push may be delivered more than once. While its task and attempt still run here, answer the second push with "
    "409 (or 503) and do not run it again.",
)
def runs_once(trial: Trial) -> None:
    pushed = trial.push(trial.envelope(LONG))
    pushed.wait("started")
    status = trial.engine.deliver(pushed)
    if not (200 <= status < 300 or status in (409, 429, 503)):
        raise Broken(f"the second delivery was answered with {status}")
    trial.quiet(pushed, outcome(pushed, "SUCCEEDED"), LONG)
    for what in ("started", "completed"):
        if len(pushed.of_kind(what)) > 1:
            raise Broken(f"{what} came {len(pushed.of_kind(what))} times: the task ran twice")


@hardening(
    "does not complete an ended task again",
    "When a push arrives again after its task has ended, do not run it, or stop when …/started is answered with 409.",
)
def does_not_repeat(trial: Trial) -> None:
    over = {**TERMINAL, "state": "SUCCEEDED"}
    pushed = trial.push(trial.envelope(1), answer("started", Reply(409, over), begin=1))
    completed = outcome(pushed, "SUCCEEDED")
    trial.quiet(pushed, completed, 2)
    trial.engine.deliver(pushed)
    with trial.engine.lock:
        trial.engine.news.wait_for(lambda: len(pushed.of_kind("started")) > 1, 2 * trial.interval_s)
        last = pushed.callbacks[-1]
    if last is not completed and last.what != "started":
        raise Broken(f"it ran an ended task again: {last.what}")
    trial.quiet(pushed, last, 6)


@hardening(
    "lets a newer attempt take over",
    "The next attempt may be pushed to the worker that still runs the last one. Run the new attempt with its own "
    "number and token. After its 409, the old attempt makes no further callbacks.",
)
def newer_attempt(trial: Trial) -> None:
    old = trial.push(trial.envelope(2 * LONG))
    old.wait("heartbeat", unless="completed")
    old.script = lambda *_: Reply(409, SUPERSEDED)
    changes = {"attempt": 2, "taskToken": "token.second", "payload": {"work_ms": 50, "outcome": "SUCCEEDED"}}
    new = trial.push({**old.envelope, **changes})
    outcome(new, "SUCCEEDED")
    refused = [callback for callback in old.callbacks if callback.status == 409]
    if len(refused) > 1:
        raise Broken("the old attempt went on after it was refused with 409")


@required("keeps tasks apart", "Run several tasks in parallel, each with its own token, attempt and heartbeats.")
def keeps_apart(trial: Trial) -> None:
    many = [trial.push(trial.envelope(LONG, attempt=number)) for number in (1, 2, 3)]
    for pushed in many:
        pushed.wait("heartbeat", 2, unless="completed")
    for pushed in many:
        outcome(pushed, "SUCCEEDED")


# --------------------------------------------------------------------------------------------- handlers


@required(
    "stops its handler when its attempt has expired",
    "When a heartbeat is answered with 410, stop the handler itself, not only its callbacks. Another worker may "
    "already run the task. A handler that cannot be interrupted must check regularly whether to stop.",
)
def stops_handler_at_410(trial: Trial) -> None:
    pushed = _watched(trial, answer("heartbeat", Reply(410, EXPIRED)))
    pushed.wait("heartbeat", unless="completed")
    _stops(trial, pushed, "its attempt had expired")


@required(
    "stops its handler on a cancel",
    "When a heartbeat is answered with shouldCancel, stop the handler before you call …/completed with CANCELLED. A "
    "handler that continues wastes its work and keeps a slot.",
)
def stops_handler_at_cancel(trial: Trial) -> None:
    pushed = _watched(trial, answer("heartbeat", CANCEL))
    pushed.wait("heartbeat", unless="completed")
    _stops(trial, pushed, "it got shouldCancel")


def _watched(trial: Trial, script: Script) -> Pushed:
    """A long task whose handler was seen to work."""
    envelope = trial.envelope(20 * LONG)
    envelope["payload"]["probe_url"] = trial.engine.probe_url(envelope["taskId"])
    pushed = trial.push(envelope, script)
    pushed.probe.wait(trial.engine.timeout_s)
    return pushed


def _stops(trial: Trial, pushed: Pushed, since: str) -> None:
    pushed.probe.stops(since, quiet_s=max(4 * trial.interval_s, SLACK_S), limit_s=20 * trial.interval_s)
