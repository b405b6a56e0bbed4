"""From a wake-up to the accepted report: what the wrapper does, in which order, when everything else fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from tests.contracts.lease.worker import operators
from tests.contracts.lease.worker.conftest import Bench
from tests.contracts.lease.worker.stand_in import DROP, Dispatcher
from tests.kit.work import soon, until

from windlass.contracts.lease.wakeups.carriers.port import CarrierUnavailable
from windlass.contracts.lease.worker.attempt import Attempt
from windlass.contracts.lease.worker.dispatcher import Claimed
from windlass.contracts.lease.worker.operator import Answer
from windlass.errors import LeaseLost

pytestmark = pytest.mark.slow

HERE = "tests.contracts.lease.worker.operators"


@pytest.fixture(autouse=True)
def fresh_operators() -> Iterator[None]:
    operators.reset()
    yield
    operators.goes_on.set()


@pytest.fixture(autouse=True)
def no_patience_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between two tries are there, and short."""
    monkeypatch.setattr("windlass.contracts.lease.worker.retry.PAUSE_S", 0.01)
    monkeypatch.setattr("windlass.contracts.lease.worker.retry.PAUSE_MAX_S", 0.02)


async def test_a_wake_up_is_claimed_run_reported_and_then_acknowledged(world: Bench) -> None:
    world.dispatcher.task = {"operator": "work", "config": {"n": 21}, "inputs": [{"from": "x"}]}
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"

    assert world.dispatcher.accepted == ["task-claim", "task-complete"]
    [claim] = world.dispatcher.requests_for("task-claim")
    assert claim.body["worker_id"] == "wrapper:test"
    report = world.report()
    assert {name: report[name] for name in ("status", "result", "error_message", "attempt")} == {
        "status": "Completed", "result": 42, "error_message": None, "attempt": 1,
    }  # fmt: skip


async def test_an_operator_gets_its_task_and_a_stable_producer_id_but_never_the_lease(world: Bench) -> None:
    world.start(function=f"{HERE}:double")
    task_id = uuid4()
    world.carrier.put(task_id)
    await world.does()

    [task] = operators.calls
    assert task["config"] == {"n": 1}
    assert task["producer_id"] == task["task_id"] == str(task_id)
    assert not [name for name in task if "lease" in name]


@pytest.mark.parametrize("reason", ["AlreadyRunning", "Completed", "Canceled", "NotFound"])
async def test_what_is_not_claimed_is_not_run_and_its_message_is_acknowledged(world: Bench, reason: str) -> None:
    world.dispatcher.will("task-claim", (200, {"status": "NotClaimed", "reason": reason}))
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert operators.calls == []
    assert world.dispatcher.accepted == ["task-claim"]


async def test_a_claim_is_repeated_while_the_dispatcher_is_away_and_the_message_is_held(world: Bench) -> None:
    world.dispatcher.will("task-claim", 503, DROP, 500, 429)
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert len(world.dispatcher.requests_for("task-claim")) == 5
    assert len(operators.calls) == 1


async def test_the_report_is_repeated_until_accepted_and_the_message_is_not_acknowledged_before(world: Bench) -> None:
    world.dispatcher.will("task-complete", 503, DROP, 500, 401, 403, 429)
    early: list[str] = []

    def look(what: str) -> None:
        if "task-complete" not in world.dispatcher.accepted:
            early.append(what)

    world.carrier.before = look
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert early == []
    assert len(world.dispatcher.requests_for("task-complete")) == 7
    assert len({str(heard.body) for heard in world.dispatcher.requests_for("task-complete")}) == 1
    assert len(operators.calls) == 1


async def test_a_report_that_comes_too_late_is_given_up_and_the_message_acknowledged(world: Bench) -> None:
    world.dispatcher.will("task-complete", (409, {"error": "stale_lease", "message": "attempt 2 has begun"}))
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert len(world.dispatcher.requests_for("task-complete")) == 1


async def test_events_and_batches_are_accepted_in_order_before_the_completion(world: Bench) -> None:
    world.dispatcher.will("events", 503, DROP)
    world.dispatcher.will("buffer-publish", 503)
    world.start(function=f"{HERE}:outputs")

    assert await world.runs_one() == "ack"

    order = [what for what in world.dispatcher.accepted if what != "task-fetch"]
    assert order[0] == "task-claim"
    assert order[-1] == "task-complete"
    assert order.index("buffer-publish") < len(order) - 1
    accepted = [heard for heard in world.dispatcher.requests_for("events") if heard.status == 200]
    assert [event["cursor"] for heard in accepted for event in heard.body["events"]] == [1, 2, 3, 4]
    [batch] = [heard for heard in world.dispatcher.requests_for("buffer-publish") if heard.status == 200]
    fence = {"task_id", "attempt", "lease_token"}
    assert batch.body.keys() - fence == {"dataset_uuid", "dataset_version", "batch_uri", "record_count"}
    assert all(heard.body.keys() >= fence for heard in [*accepted, batch])
    assert world.report()["events"] == [{"dataset_uuid": "a", "cursor": 5}]
    assert world.report()["outputs"] == [{"output_index": 0}]


async def test_an_event_that_is_refused_fails_the_task_and_stops_its_operator(world: Bench) -> None:
    world.dispatcher.will("events", (400, {"error": "invalid_argument", "message": "dataset_uuid: is missing"}))
    world.start(function=f"{HERE}:emits_nonsense")

    assert await world.runs_one() == "ack"
    assert world.report()["status"] == "Failed"
    assert "dataset_uuid: is missing" in world.report()["error_message"]


async def test_a_report_that_is_refused_for_what_it_says_becomes_a_failure_that_says_so(world: Bench) -> None:
    world.dispatcher.will("task-complete", (400, {"error": "invalid_argument", "message": "outputs.0: no dataset"}))
    world.start(function=f"{HERE}:outputs")

    assert await world.runs_one() == "ack"
    assert world.report()["status"] == "Failed"
    assert "outputs.0: no dataset" in world.report()["error_message"]


@pytest.mark.parametrize(
    ("function", "retryable"), [("fails", None), ("never_works", False), ("exits", None), ("exits_async", None)]
)
async def test_a_function_that_fails_is_reported_with_its_reason(
    world: Bench, function: str, retryable: bool | None
) -> None:
    world.start(function=f"{HERE}:{function}")

    assert await world.runs_one() == "ack"
    assert world.report()["status"] == "Failed"
    assert world.report()["error_message"]
    assert world.report().get("error", {}).get("retryable") is retryable


async def test_what_the_wrapper_itself_cannot_do_is_told_and_the_next_task_is_run(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.start(command=["true"])
    with monkeypatch.context() as patched:
        patched.setattr("windlass.contracts.lease.worker.child.tempfile.mkdtemp", _no_room)
        assert await world.runs_one() == "ack"
    assert "No space left" in world.report()["error_message"]
    world.carrier.put(uuid4())
    assert await world.does(2) == ["ack", "ack"]
    assert world.dispatcher.requests_for("task-complete")[-1].body["status"] == "Completed"


def _no_room(**_: object) -> str:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_lease_that_is_lost_before_the_operator_begins_runs_nothing() -> None:
    lost = asyncio.Event()

    class Losing:
        async def is_cancelled(self, task_id: UUID) -> bool:
            await lost.wait()
            return False

        async def heartbeat(self, claimed: Claimed) -> None:
            lost.set()
            raise LeaseLost("attempt 2 runs")

    async def operate(task: object, messages: object) -> Answer:
        raise AssertionError("it ran")

    claimed = Claimed(uuid4(), 1, "token", {}, lease_s=0.1, ours=False)
    assert await soon(Attempt(Losing(), claimed, operate).run()) == "lost"  # type: ignore[arg-type]


async def test_an_operator_that_nobody_knows_fails_with_its_name(world: Bench) -> None:
    world.dispatcher.task = {"operator": "other", "config": {}, "inputs": []}
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert world.report()["error_message"] == "this wrapper has no operator other"


async def test_a_cancel_that_is_fetched_before_the_operator_begins_is_reported_and_nothing_is_run(world: Bench) -> None:
    world.dispatcher.plain = world.dispatcher.cancelled = True
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert operators.calls == []
    assert world.report()["status"] == "Canceled"


@pytest.mark.parametrize(("function", "plain"), [("hangs", False), ("waits", False), ("hangs", True)])
async def test_a_cancel_that_is_fetched_while_it_runs_stops_the_operator_and_is_reported(
    world: Bench, function: str, plain: bool, monkeypatch: pytest.MonkeyPatch, pace: float
) -> None:
    monkeypatch.setattr(
        "windlass.contracts.lease.worker.dispatcher.LEASE_S", 1.2 * pace
    )  # of one that does not tell its time
    world.dispatcher.plain = plain
    world.dispatcher.lease_s = 1.2 * pace
    world.start(function=f"{HERE}:{function}")
    world.carrier.put(uuid4())
    await until(operators.begun.is_set)
    world.dispatcher.cancelled = True

    assert await world.does() == ["ack"]
    assert world.report()["status"] == "Canceled"


async def test_a_worker_that_lost_its_lease_stops_its_operator_and_says_nothing_more(world: Bench) -> None:
    world.dispatcher.lease_s = 1.2
    world.dispatcher.will("heartbeat", 200, (409, {"error": "stale_lease", "message": "attempt 2 runs"}))
    world.start(function=f"{HERE}:hangs")

    assert await world.runs_one() == "ack"
    assert operators.calls[-1] == {"stopped": True}
    assert world.dispatcher.requests_for("task-complete") == []


async def test_heartbeats_go_on_while_the_operator_runs_also_after_the_dispatcher_was_away(
    world: Bench, pace: float
) -> None:
    world.dispatcher.lease_s = 1.2 * pace
    world.dispatcher.will("heartbeat", 503, DROP, 500)
    world.start(function=f"{HERE}:waits")
    world.carrier.put(uuid4())
    await until(lambda: len([h for h in world.dispatcher.requests_for("heartbeat") if h.status == 200]) >= 2)
    operators.goes_on.set()

    assert await world.does() == ["ack"]
    assert world.report()["result"] == "went on"


async def test_a_message_is_kept_from_others_while_its_task_runs(world: Bench) -> None:
    world.carrier.visibility_s = 0.03
    world.start(function=f"{HERE}:waits")
    world.carrier.put(uuid4())
    await until(lambda: world.carrier.extended >= 3)
    operators.goes_on.set()

    assert await world.does() == ["ack"]


@pytest.mark.parametrize("body", [b"", b"not json", b"{}", b'{"task_id": 7}', b'{"task_id": "x"}', b"\xff\xfe", b"[]"])
async def test_a_message_that_is_no_wake_up_is_buried_with_the_reason(world: Bench, body: bytes) -> None:
    world.start(function=f"{HERE}:double")
    world.carrier.put(body)

    [done] = await world.does()
    assert done.startswith("bury: ")
    assert world.dispatcher.requests == []


async def test_a_message_that_was_delivered_too_often_is_buried(world: Bench) -> None:
    world.start(function=f"{HERE}:double")
    world.carrier.put(uuid4(), deliveries=4)

    [done] = await world.does()
    assert done == "bury: it was delivered 4 times, and its task was never reported"
    assert operators.calls == []


async def test_a_message_that_names_more_than_a_task_is_a_wake_up_all_the_same(world: Bench) -> None:
    world.start(function=f"{HERE}:double")
    world.carrier.put(b'{"kind": "task_wakeup", "task_id": "%s"}' % str(uuid4()).encode())

    assert await world.does() == ["ack"]
    assert len(operators.calls) == 1


@pytest.mark.parametrize("body", [None, b"poison"], ids=["ack", "bury"])
async def test_a_message_that_its_carrier_has_forgotten_is_let_go_in_the_end(world: Bench, body: bytes | None) -> None:
    """Else each would take the place of a task for ever, until the wrapper is deaf."""
    world.carrier.visibility_s = 0.05

    def away(_: str) -> None:
        raise CarrierUnavailable("there is no such consumer any more")

    world.carrier.before = away
    world.start(function=f"{HERE}:double", concurrency=1)
    for _ in range(3):
        world.carrier.put(body or uuid4())
    await until(lambda: world.carrier.receives == 4)
    await until(lambda: world.wrapper.active_count == 0)
    assert len([what for what in world.dispatcher.accepted if what == "task-complete"]) == (0 if body else 3)


async def test_draining_takes_nothing_more_and_finishes_what_runs(world: Bench) -> None:
    world.start(function=f"{HERE}:waits", concurrency=1)
    world.carrier.put(uuid4())
    await until(operators.begun.is_set)
    world.wrapper.stop()
    world.carrier.put(uuid4())
    operators.goes_on.set()

    await soon(world.running)
    assert [what for what, _ in world.carrier.done] == ["ack"]
    assert world.report()["result"] == "went on"
    assert world.carrier.waiting.qsize() == 1


async def test_what_comes_while_the_last_tasks_are_finished_is_given_back_at_once(world: Bench) -> None:
    """Its carrier had been asked before; others would not see it for as long as a message is kept from them."""
    world.start(function=f"{HERE}:waits", concurrency=2)
    first = world.carrier.put(uuid4())
    await until(operators.begun.is_set)
    await until(lambda: world.carrier.receives == 2)
    world.wrapper.stop()
    late = world.carrier.put(uuid4())
    await until(lambda: world.carrier.done == [("nack", late)])
    operators.goes_on.set()

    await soon(world.running)
    assert world.carrier.done == [("nack", late), ("ack", first)]
    assert len(operators.calls) == 1


async def test_stopping_at_once_stops_operators_and_gives_their_messages_back(world: Bench) -> None:
    world.start(function=f"{HERE}:hangs")
    world.carrier.put(uuid4())
    await until(operators.begun.is_set)
    world.wrapper.stop_now()

    await soon(world.running)
    assert [what for what, _ in world.carrier.done] == ["nack"]
    assert operators.calls[-1] == {"stopped": True}
    assert world.dispatcher.requests_for("task-complete") == []


async def test_no_more_run_side_by_side_than_were_asked_for(world: Bench) -> None:
    world.start(function=f"{HERE}:waits", concurrency=2)
    for _ in range(5):
        world.carrier.put(uuid4())
    await until(lambda: len(operators.calls) >= 2)
    await asyncio.sleep(0)
    assert len(operators.calls) == 2
    operators.goes_on.set()

    assert await world.does(5) == ["ack"] * 5


async def test_a_wrapper_that_is_full_takes_no_messages_from_others(world: Bench) -> None:
    world.start(function=f"{HERE}:waits", concurrency=1)
    world.carrier.put(uuid4())
    world.carrier.put(uuid4())
    await until(operators.begun.is_set)
    for _ in range(100):
        await asyncio.sleep(0)
    assert (world.carrier.receives, world.carrier.waiting.qsize()) == (1, 1)
    operators.goes_on.set()

    assert await world.does(2) == ["ack", "ack"]


async def test_a_function_that_takes_too_long_fails_its_task(world: Bench) -> None:
    from windlass.contracts.lease.worker.operator import Limits

    world.start(function=f"{HERE}:hangs", limits=Limits(timeout_s=0.05))

    assert await world.runs_one() == "ack"
    assert world.report()["error_message"] == "it ran longer than 0.05 s"


async def test_an_answer_that_cannot_be_read_is_no_claim(world: Bench, dispatcher: Dispatcher) -> None:
    dispatcher.will("task-claim", (200, {"status": "Claimed"}), (200, {"status": "Claimed", "task": 7}))
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert len(dispatcher.requests_for("task-claim")) == 3


async def test_a_claim_that_is_repeated_is_the_same_claim(world: Bench) -> None:
    world.dispatcher.will("task-claim", 503, DROP)
    world.start(function=f"{HERE}:double")
    world.carrier.put(uuid4())
    world.carrier.put(uuid4())
    await world.does(2)

    said: dict[str, set[str]] = {}
    for heard in world.dispatcher.requests_for("task-claim"):
        said.setdefault(heard.body["task_id"], set()).add(heard.body["claim_id"])
    assert [len(ids) for ids in said.values()] == [1, 1]
    assert len(set.union(*said.values())) == 2


@pytest.mark.parametrize(
    "error", [RuntimeError("of a library"), KeyError("MessageId"), CarrierUnavailable("nobody is there")]
)
async def test_whatever_goes_wrong_while_it_receives_a_wrapper_goes_on(world: Bench, error: Exception) -> None:
    world.carrier.failing = [error, error]
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"


async def test_a_carrier_that_does_not_wait_is_asked_with_pauses_and_one_that_does_is_told_that_nothing_came(
    world: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    def no_time(seconds: float) -> float:
        paused.append(seconds)
        return 0.0

    monkeypatch.setattr("windlass.net.backoff.jittered", no_time)
    world.carrier.empty = 5
    world.start(function=f"{HERE}:double")
    await until(lambda: world.carrier.receives == 6)
    assert paused == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert world.carrier.missed == 0

    monkeypatch.setattr("windlass.contracts.lease.worker.wrapper.AT_ONCE_S", -1.0)
    world.carrier.put(uuid4())
    world.carrier.empty = 3
    await until(lambda: world.carrier.missed == 3)
    assert await world.does() == ["ack"]


async def test_a_task_of_another_queue_is_not_run_as_one_of_this(world: Bench) -> None:
    """A message is a hint: it must not get a task run as trusted, or with secrets, that its queue does not give."""
    world.dispatcher.task = {"operator": "work", "config": {"n": 1}, "inputs": [], "namespace": "default", "queue": "b"}
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert operators.calls == []
    assert world.report()["status"] == "Failed"
    assert "a message of queue jobs named a task of queue b in default" in world.report()["error_message"]


async def test_a_task_says_of_which_queue_it_is(world: Bench) -> None:
    world.dispatcher.task = {**world.dispatcher.task, "namespace": "default", "queue": "jobs"}
    world.start(function=f"{HERE}:double")

    assert await world.runs_one() == "ack"
    assert world.report()["status"] == "Completed"


@pytest.mark.parametrize("function", ["returns_an_object", "emits_an_object", "emits_an_object_and_waits"])
async def test_what_is_no_json_fails_the_task_with_that_reason(world: Bench, function: str) -> None:
    world.start(function=f"{HERE}:{function}")

    assert await world.runs_one() == "ack"
    report = world.report()
    assert (report["status"], report["error"]) == ("Failed", {"retryable": False})
    assert "it is not JSON" in report["error_message"]


async def test_many_events_are_told_in_calls_that_are_not_too_long_and_none_is_no_call(world: Bench) -> None:
    world.start(function=f"{HERE}:emits_many")

    assert await world.runs_one() == "ack"
    accepted = [heard.body["events"] for heard in world.dispatcher.requests_for("events")]
    assert [event["cursor"] for events in accepted for event in events] == list(range(1234))
    assert max(len(events) for events in accepted) <= 500
    assert world.report()["status"] == "Completed"
