"""The rules of schedules: what is made up for after an outage, a pause or a jump of the clock; none fires twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from windlass.core import schedule as rules
from windlass.core.cron import parse_cron
from windlass.core.cron_times import first_fires
from windlass.core.retry import Policy
from windlass.core.schedule import Fire, OpenTask, Outage, Overlap, Schedule, Scheduler, ScheduleSpec
from windlass.errors import Invalid, InvalidState

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ID = UUID(int=7)
IDS = [UUID(int=n) for n in range(100, 200)]


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)


def made(**fields: Any) -> Schedule:
    return rules.create(ScheduleSpec(**{"kind": "job", "cron": "* * * * *", **fields}), ID, "default", UTC, NOW)


def due(schedule: Schedule, at: datetime, *outages: Outage, most: int = 1000) -> list[datetime]:
    return rules.due_fires(schedule, UTC, at, outages, most)[0]


def test_the_key_of_a_fire_is_the_same_wherever_it_is_made() -> None:
    rome = datetime(2026, 3, 1, 13, 0, tzinfo=ZoneInfo("Europe/Rome"))
    assert rules.fire_key(ID, NOW) == rules.fire_key(ID, rome) == f"schedule:{ID}:2026-03-01T12:00:00+00:00"


def test_the_first_fire_is_the_first_after_its_creation_and_is_not_lost() -> None:
    schedule = made()
    assert schedule.next_fire_at == NOW + minutes(1)
    assert due(schedule, NOW + minutes(0.99)) == []
    assert due(schedule, NOW + minutes(1)) == [NOW + minutes(1)]


def test_what_is_late_while_servers_tick_is_never_left_out() -> None:
    schedule = made(max_catchup=1)
    assert due(schedule, NOW + minutes(50)) == [NOW + minutes(n) for n in range(1, 51)]


def test_after_an_outage_the_newest_are_made_up_for() -> None:
    schedule = made(max_catchup=3)
    outage = Outage(NOW + minutes(2), NOW + minutes(60))
    expected = [1, 2, 58, 59, 60, 61]
    assert due(schedule, NOW + minutes(61), outage) == [NOW + minutes(n) for n in expected]
    assert due(made(max_catchup=0), NOW + minutes(61), outage) == [NOW + minutes(n) for n in (1, 2, 61)]


def test_two_outages_are_each_bounded() -> None:
    schedule = made(max_catchup=2)
    outages = Outage(NOW + minutes(1), NOW + minutes(10)), Outage(NOW + minutes(12), NOW + minutes(20))
    assert due(schedule, NOW + minutes(21), *outages) == [NOW + minutes(n) for n in (1, 9, 10, 11, 12, 19, 20, 21)]


@settings(max_examples=200, deadline=None)
@given(
    catchup=st.integers(0, 5),
    most=st.integers(1, 7),
    bounds=st.lists(st.integers(0, 90), min_size=4, max_size=4, unique=True).map(sorted),
    end=st.integers(90, 120),
    extra=st.none() | st.integers(0, 180),
)
def test_settled_in_portions_the_fires_are_the_same(
    catchup: int, most: int, bounds: list[int], end: int, extra: int | None
) -> None:
    schedule, at = made(max_catchup=catchup), NOW + minutes(end)
    if extra is not None:
        schedule = rules.fire_next_at(schedule, NOW + minutes(extra / 2), NOW)
    first, second, third, fourth = (NOW + minutes(bound) for bound in bounds)
    outages = Outage(first, second), Outage(third, fourth)
    whole = due(schedule, at, *outages)
    portions: list[datetime] = []
    while schedule.next_fire_at is not None and schedule.next_fire_at <= at:
        fires, settled_at = rules.due_fires(schedule, UTC, at, outages, most)
        assert len(fires) <= most
        portions += fires
        schedule = rules.settle(schedule, UTC, rules.plan_fires(schedule, fires, [], IDS[: len(fires)]), settled_at)
    assert portions == whole == sorted(set(whole))
    assert schedule.fired == len(whole)


def test_resuming_makes_up_for_the_newest_of_what_was_missed() -> None:
    paused = rules.pause(made(max_catchup=2), NOW + minutes(0.5))
    resumed = rules.resume(paused, UTC, NOW + minutes(10))
    assert resumed.next_fire_at == NOW + minutes(9)
    assert due(resumed, NOW + minutes(11)) == [NOW + minutes(n) for n in (9, 10, 11)]
    few = rules.resume(rules.pause(made(max_catchup=50), NOW), UTC, NOW + minutes(3))
    assert due(few, NOW + minutes(3)) == [NOW + minutes(n) for n in (1, 2, 3)]
    none = rules.resume(rules.pause(made(max_catchup=0), NOW), UTC, NOW + minutes(3))
    assert due(none, NOW + minutes(4)) == [NOW + minutes(4)]


def test_pausing_and_resuming_what_is_so_already_changes_nothing() -> None:
    schedule = made()
    paused = rules.pause(schedule, NOW)
    assert rules.resume(schedule, UTC, NOW + minutes(9)) is schedule
    assert rules.pause(paused, NOW + minutes(9)) is paused


def test_another_cron_begins_now_and_an_unchanged_one_goes_on() -> None:
    late = NOW + minutes(7)
    changed = rules.change(made(), {"cron": "*/5 * * * *", "timezone": "UTC"}, UTC, late)
    assert due(changed, NOW + minutes(15)) == [NOW + minutes(10), NOW + minutes(15)]
    renamed = rules.change(made(), {"name": "other", "max_catchup": 7}, UTC, late)
    assert (renamed.name, renamed.max_catchup, renamed.next_fire_at) == ("other", 7, NOW + minutes(1))
    paused = rules.change(made(), {"paused": True, "cron": "0 * * * *"}, UTC, late)
    assert (paused.paused, paused.next_fire_at) == (True, NOW + minutes(60))


def settled(schedule: Schedule, at: datetime, *outages: Outage) -> Schedule:
    fires, settled_at = rules.due_fires(schedule, UTC, at, outages, 1000)
    return rules.settle(schedule, UTC, rules.plan_fires(schedule, fires, [], IDS[: len(fires)]), settled_at)


def test_the_next_fire_is_where_a_person_sets_it_and_then_the_cron_goes_on() -> None:
    between = NOW + minutes(5.5)
    schedule = rules.fire_next_at(made(), between, NOW)
    assert schedule.next_fire_at == between
    assert due(schedule, NOW + minutes(5)) == []
    assert due(schedule, NOW + minutes(7)) == [between, NOW + minutes(6), NOW + minutes(7)]
    after = settled(schedule, between)
    assert (after.next_fire_at, after.last_fire_at) == (NOW + minutes(6), between)


def test_a_next_fire_in_the_past_is_due_now_and_nothing_of_the_cron_comes_twice() -> None:
    schedule = settled(made(), NOW + minutes(3))
    back = rules.fire_next_at(schedule, NOW + minutes(1.5), NOW + minutes(3.5))
    assert back.next_fire_at == NOW + minutes(1.5)
    assert due(back, NOW + minutes(4)) == [NOW + minutes(1.5), NOW + minutes(4)]
    sooner = rules.fire_next_at(rules.fire_next_at(made(), NOW + minutes(9), NOW), NOW + minutes(2.5), NOW)
    assert sooner.next_fire_at == NOW + minutes(2.5)


def test_a_next_fire_that_was_missed_counts_like_any_other() -> None:
    outage = Outage(NOW + minutes(1), NOW + minutes(4.5))
    at = NOW + minutes(1.5)
    schedule = rules.fire_next_at(made(max_catchup=4), at, NOW)
    assert due(schedule, NOW + minutes(5), outage) == [at, *(NOW + minutes(n) for n in (2, 3, 4, 5))]
    schedule = rules.fire_next_at(made(max_catchup=2), at, NOW)
    assert due(schedule, NOW + minutes(5), outage) == [NOW + minutes(n) for n in (3, 4, 5)]
    assert settled(schedule, NOW + minutes(5), outage).extra_fire_at is None
    paused = rules.pause(rules.fire_next_at(made(max_catchup=2), at, NOW), NOW)
    assert due(rules.resume(paused, UTC, NOW + minutes(2)), NOW + minutes(2)) == [at, NOW + minutes(2)]
    assert due(rules.resume(paused, UTC, NOW + minutes(9)), NOW + minutes(9)) == [NOW + minutes(8), NOW + minutes(9)]
    early = rules.resume(paused, UTC, NOW + minutes(1))
    assert early.next_fire_at == at
    assert rules.change(paused, {"cron": "*/5 * * * *"}, UTC, NOW + minutes(1)).next_fire_at == NOW + minutes(5)


def test_a_clock_that_is_put_back_fires_nothing_twice() -> None:
    schedule = made()
    fires, settled_at = rules.due_fires(schedule, UTC, NOW + minutes(3), (), 10)
    after = rules.settle(schedule, UTC, rules.plan_fires(schedule, fires, [], IDS[:3]), settled_at)
    assert due(after, NOW + minutes(1)) == []
    assert rules.change(after, {"cron": "*/1 * * * *"}, UTC, NOW + minutes(1)).next_fire_at == NOW + minutes(4)
    known = Scheduler(NOW)
    assert rules.give_sign(known, NOW - minutes(60), minutes(1)) is known


def test_silence_of_all_servers_is_an_outage() -> None:
    known = rules.give_sign(Scheduler(NOW), NOW + minutes(0.5), minutes(1))
    assert known == Scheduler(NOW + minutes(0.5))
    silent = rules.give_sign(known, NOW + minutes(10), minutes(1))
    assert silent == Scheduler(NOW + minutes(10), (Outage(NOW + minutes(0.5), NOW + minutes(10)),))
    alive = rules.give_sign(known, NOW + minutes(10), minutes(1), NOW + minutes(9.5))
    assert alive == Scheduler(NOW + minutes(10))
    for hour in range(1, 100):
        silent = rules.give_sign(silent, NOW + timedelta(hours=hour), minutes(1))
    assert len(silent.outages) == rules.OUTAGES_KEPT


# --------------------------------------------------------------------------------------------- overlap


@pytest.mark.parametrize(
    ("overlap", "unended", "expected"),
    [
        (Overlap.ALLOW, IDS[:1], [(IDS[10], ()), (IDS[11], ())]),
        (Overlap.SKIP, IDS[:1], [(None, ()), (None, ())]),
        (Overlap.SKIP, [], [(IDS[10], ()), (None, ())]),
        (Overlap.QUEUE, IDS[:2], [(IDS[10], (*IDS[:2],)), (IDS[11], (*IDS[:2], IDS[10]))]),
        (Overlap.CANCEL, IDS[:1], [(None, ()), (IDS[11], (IDS[0],))]),
        (Overlap.CANCEL, [], [(None, ()), (IDS[11], ())]),
    ],
)
def test_what_a_fire_does_beside_tasks_that_have_not_ended(
    overlap: Overlap, unended: list[UUID], expected: list[tuple[UUID | None, tuple[UUID, ...]]]
) -> None:
    schedule, fires = made(overlap=overlap), [NOW + minutes(1), NOW + minutes(2)]
    plan = rules.plan_fires(schedule, fires, [OpenTask(id_) for id_ in unended], IDS[10:12])
    assert plan == [Fire(at, task_id, after) for at, (task_id, after) in zip(fires, expected, strict=True)]
    after = rules.settle(schedule, UTC, plan, NOW + minutes(2))
    assert after.fired + after.skipped == 2
    assert after.fired == sum(fire.task_id is not None for fire in plan)


def test_what_is_in_no_run_cannot_be_waited_for() -> None:
    unended = [OpenTask(IDS[0], grouped=False), OpenTask(IDS[1])]
    [fire] = rules.plan_fires(made(overlap=Overlap.QUEUE), [NOW + minutes(1)], unended, IDS[10:11])
    assert fire.after == (IDS[1],)
    [fire] = rules.plan_fires(made(overlap=Overlap.SKIP), [NOW + minutes(1)], unended[:1], IDS[10:11])
    assert fire.task_id is None


def test_the_task_of_a_fire_is_what_the_schedule_says() -> None:
    schedule = made(queue="mail", payload=b"[1]", priority=3, policy=Policy(max_attempts=2), wire=b"{}")
    submission = rules.submission(replace(schedule, overlap=Overlap.QUEUE), IDS[0], "key", (IDS[1],))
    assert (submission.kind, submission.queue, submission.payload, submission.priority) == ("job", "mail", b"[1]", 3)
    assert (submission.id, submission.idempotency_key, submission.schedule_id) == (IDS[0], "key", ID)
    assert (submission.run_id, submission.after, submission.after_any_outcome) == (ID, (IDS[1],), True)
    assert submission.policy.max_attempts == 2
    assert rules.submission(made(), IDS[0], "key").run_id is None


# --------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"kind": ""}, "kind"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 0 1 1 ? 2025"}, "cron"),
        ({"name": "\x00"}, "name"),
        ({"queue": ""}, "queue"),
        ({"timezone": 7}, "timezone"),
        ({"payload": b"{"}, "payload"),
        ({"payload": "{}"}, "payload"),
        ({"priority": 101}, "priority"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"max_catchup": -1}, "max_catchup"),
        ({"max_catchup": 10_001}, "max_catchup"),
        ({"paused": 1}, "paused"),
        ({"wire": b"[]"}, "wire"),
        ({"policy": Policy(max_attempts=0)}, "policy.max_attempts"),
        ({"concurrency_key": "x" * 501}, "concurrency_key"),
    ],
)
def test_what_cannot_be_a_schedule_is_refused_by_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(**fields)
    assert refused.value.field == field
    with pytest.raises(Invalid) as refused:
        rules.change(made(), fields, UTC, NOW)
    assert refused.value.field == field


def test_a_change_of_something_else_is_refused() -> None:
    with pytest.raises(Invalid, match="settled_at"):
        rules.change(made(), {"settled_at": NOW}, UTC, NOW)


def test_what_code_declares_is_changed_in_code_while_a_worker_declares_it() -> None:
    declared = replace(made(), app="shop", declared_at=NOW)
    with pytest.raises(InvalidState, match="shop"):
        rules.check_free(declared, NOW + minutes(4), minutes(5))
    rules.check_free(declared, NOW + minutes(6), minutes(5))
    rules.check_free(made(), NOW, minutes(5))


def test_a_schedule_that_cannot_be_read_is_set_aside_and_loses_nothing() -> None:
    broken = rules.set_aside(made(), "there is no such zone", NOW + minutes(1))
    assert (broken.problem, broken.settled_at) == ("there is no such zone", NOW)
    assert broken.next_fire_at == NOW + minutes(2)
    fires, settled_at = rules.due_fires(broken, UTC, NOW + minutes(2), (), 10)
    assert fires == first_fires(parse_cron("* * * * *"), UTC, NOW, 2)
    assert rules.settle(broken, UTC, [], settled_at).problem is None
