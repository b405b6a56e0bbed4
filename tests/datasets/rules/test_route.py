"""The table of routing, the keys of tasks, and triggers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules import owed as keys
from windlass.datasets.rules.owed import Given, Owed, Partition, Trigger, merged
from windlass.datasets.rules.partition import Range, Run, Span
from windlass.datasets.rules.route import Candidate, Edge, Event, Routing, route, wakes

EVENT, DATASET, OTHER, NEW, OLD, ACTIVE, BUILT = (UUID(int=number) for number in range(1, 8))
JOB_A, JOB_B, JOB_C = (UUID(int=number) for number in range(11, 14))
CURSOR = f"cursor:{DATASET}:{NEW}:7"
PARTITION = f"partition:{DATASET}:{NEW}:0-999:3"


def event(**changes: Any) -> Event:
    values: dict[str, Any] = {"id": EVENT, "dataset_uuid": DATASET, "dataset_version": NEW, "cursor": 7} | changes
    return Event(**values)


def partition(**changes: Any) -> Event:
    return event(**{"cursor": None, "partition_key": "0-999", "span": Span(0, 999), "revision": 3} | changes)


def edge(job_id: UUID = JOB_A, **changes: Any) -> Edge:
    values: dict[str, Any] = {
        "job_id": job_id, "deployment_id": ACTIVE, "input_index": 0, "dataset_uuid": DATASET, "dataset_version": NEW,
    } | changes  # fmt: skip
    return Edge(**values)


LIVE = {NEW}


@pytest.mark.parametrize(
    ("happened", "edges", "live", "held", "woken", "routing"),
    [
        (event(declared=False), [edge()], LIVE, set(), [], "undeclared"),
        (event(in_lake=True, committed=False), [edge()], LIVE, set(), [], "uncommitted"),
        (event(declared=False, in_lake=True, committed=False), [edge()], LIVE, set(), [], "undeclared"),
        (event(in_lake=True), [edge()], LIVE, set(), [JOB_A], "routed"),
        (event(committed=False), [edge()], LIVE, set(), [JOB_A], "routed"),  # outside of the lake
        (event(dataset_version=OLD), [edge(dataset_version=OLD)], LIVE, set(), [], "old_version"),
        (event(), [edge()], set(), set(), [], "old_version"),
        (event(), [edge()], {OLD}, set(), [], "old_version"),
        (event(), [], LIVE, set(), [], "no_consumer"),
        (event(), [edge(trigger=False)], LIVE, set(), [], "no_consumer"),
        (event(), [edge(dataset_uuid=OTHER)], LIVE, set(), [], "no_consumer"),
        (event(), [edge(dataset_version=OLD)], LIVE, set(), [], "no_consumer"),
        (event(), [edge(by_partition=True)], LIVE, set(), [], "no_consumer"),
        (partition(), [edge(by_partition=False)], LIVE, set(), [], "no_consumer"),
        (partition(), [edge(by_partition=True)], LIVE, set(), [JOB_A], "routed"),
        (event(), [edge(JOB_A), edge(JOB_B)], LIVE, set(), [JOB_A, JOB_B], "routed"),
        (event(), [edge(JOB_A), edge(JOB_B)], LIVE, {JOB_A}, [JOB_B], "held"),
        (event(), [edge(JOB_A), edge(JOB_B)], LIVE, {JOB_A, JOB_B}, [], "held"),
        (event(), [edge(JOB_A)], LIVE, {JOB_B}, [JOB_A], "routed"),
        (event(late=True), [edge()], LIVE, set(), [], "duplicate"),
        (event(late=True), [], LIVE, set(), [], "no_consumer"),
        (event(late=True, dataset_version=OLD), [edge()], LIVE, set(), [], "old_version"),
        (event(), [edge(deployment_id=BUILT, active=False)], LIVE, set(), [JOB_A], "routed"),
        (event(), [edge(dataset_version=None)], LIVE, set(), [], "no_consumer"),  # its producer is not active
    ],
)
def test_the_table_of_routing(
    happened: Event, edges: list[Edge], live: set[UUID], held: set[UUID], woken: list[UUID], routing: str
) -> None:
    found = route(happened, edges, live, held)

    assert [owed.job_id for owed in found.owed] == woken
    assert found.routing({one.key for one in found.owed}) == routing
    assert found.blocked == held & {each.job_id for each in edges}


def test_an_event_whose_tasks_all_exist_is_a_duplicate_unless_a_job_is_held() -> None:
    edges = [edge(JOB_A), edge(JOB_B)]

    assert route(event(), edges, LIVE).routing(()) is Routing.DUPLICATE
    assert route(event(), edges, LIVE).routing({(JOB_B, CURSOR)}) is Routing.ROUTED
    assert route(event(), edges, LIVE).routing({(JOB_C, CURSOR)}) is Routing.DUPLICATE
    assert route(event(), edges, LIVE, {JOB_A}).routing(()) is Routing.HELD


@pytest.mark.parametrize(("happened", "by", "key"), [(event(), False, CURSOR), (partition(), True, PARTITION)])
def test_a_task_has_a_key_and_names_its_event(happened: Event, by: bool, key: str) -> None:
    (owed,) = route(happened, [edge(by_partition=by)], LIVE).owed

    assert owed.dedupe_key == key
    assert owed.trigger == Trigger("event", event_id=EVENT)


def test_a_job_that_reads_a_dataset_twice_gets_one_task() -> None:
    (owed,) = route(event(), [edge(input_index=2), edge(input_index=0), edge(input_index=1, trigger=False)], LIVE).owed

    assert owed.given == (Given(0, NEW, 7), Given(2, NEW, 7))


def test_a_job_in_two_deployments_gets_one_task_for_the_active_one() -> None:
    (owed,) = route(event(), [edge(deployment_id=BUILT, active=False), edge()], LIVE).owed

    assert (owed.deployment_id, owed.given) == (ACTIVE, (Given(0, NEW, 7),))


def test_a_partition_is_given_with_its_revision_and_its_trace() -> None:
    (owed,) = route(partition(trace="00-1-2-01"), [edge(by_partition=True)], LIVE).owed

    assert (owed.given, owed.trace) == ((Given(0, NEW, partition=Partition("0-999", 0, 999, 3)),), "00-1-2-01")


def test_a_job_is_owed_one_task_for_what_two_inputs_give_it() -> None:
    first, second = (Owed(JOB_A, ACTIVE, CURSOR, Trigger("build"), (Given(index, NEW, 7),)) for index in (0, 2))
    other = Owed(JOB_B, ACTIVE, CURSOR, Trigger("build"), (Given(0, NEW, 7),))

    found = merged([first, second, first, other])

    assert [one.given for one in found.values()] == [(*first.given, *second.given), other.given]


@pytest.mark.parametrize(
    ("changes", "happened", "partitions"),
    [
        ({"scheme": Range(1000)}, partition(), None),
        ({}, partition(), None),
        ({"needs_all": True}, partition(), "0-999"),
        ({"needs_all": True, "scheme": Range(1000)}, partition(), Run(Range(1000), Span(0, 999))),
        ({"scheme": Range(10_000)}, partition(), Run(Range(10_000), Span(0, 9999))),
        ({"scheme": Range(400)}, partition(), Run(Range(400), Span(0, 1199))),
    ],
)
def test_a_partition_that_needs_more_than_the_event_is_only_a_candidate(
    changes: dict[str, Any], happened: Event, partitions: str | Run | None
) -> None:
    found = route(happened, [edge(by_partition=True, **changes)], LIVE)
    candidates = () if partitions is None else (Candidate(JOB_A, ACTIVE, partitions),)

    assert found.candidates == candidates
    assert len(found.owed) == 1 - len(candidates)
    assert found.routing({one.key for one in found.owed}) is Routing.ROUTED


def test_a_partition_before_the_first_of_a_job_is_neither_owed_nor_a_candidate() -> None:
    for happened in (partition(), partition(partition_key="eu", span=None)):
        found = route(happened, [edge(by_partition=True, scheme=Range(1000, 5000))], LIVE)

        assert (found.owed, found.candidates, found.routing(())) == ((), (), Routing.ROUTED)


def test_a_held_job_is_no_candidate() -> None:
    found = route(partition(), [edge(by_partition=True, needs_all=True)], LIVE, {JOB_A})

    assert (found.candidates, found.blocked) == ((), {JOB_A})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (keys.partition_task(DATASET, NEW, "0-999", 3), f"partition:{DATASET}:{NEW}:0-999:3"),
        (keys.cursor_task(DATASET, NEW, -7), f"cursor:{DATASET}:{NEW}:-7"),
        (keys.invalidation_task(EVENT), f"invalidation:{EVENT}"),
        (keys.backfill_task(EVENT, "0-999"), f"backfill:{EVENT}:0-999"),
        (keys.fire_task(datetime(2026, 1, 31, 5, tzinfo=UTC)), "fire:2026-01-31T05:00:00Z"),
        (keys.fire_task(datetime(2026, 1, 31, 6, tzinfo=timezone(timedelta(hours=1)))), "fire:2026-01-31T05:00:00Z"),
        (keys.webhook_task("msg_1"), "webhook:msg_1"),
        (keys.emit_task(EVENT), f"emit:{EVENT}"),
    ],
)
def test_the_keys_of_tasks_are_fixed(key: str, expected: str) -> None:
    assert key == expected


def test_a_trigger_has_only_what_it_says() -> None:
    assert msgspec.to_builtins(Trigger("build")) == {"kind": "build"}
    assert msgspec.to_builtins(Trigger("source", source="webhook", webhook={"id": "x"}, payload=[1])) == {
        "kind": "source", "source": "webhook", "webhook": {"id": "x"}, "payload": [1],
    }  # fmt: skip
    assert msgspec.to_builtins(Trigger("backfill", backfill_id=EVENT)) == {
        "kind": "backfill",
        "backfill_id": str(EVENT),
    }


EDGES = st.lists(
    st.builds(
        edge,
        st.sampled_from([JOB_A, JOB_B, JOB_C]),
        dataset_version=st.sampled_from([NEW, OLD, None]),
        trigger=st.booleans(),
        by_partition=st.booleans(),
        needs_all=st.booleans(),
        deployment_id=st.sampled_from([ACTIVE, BUILT]),
        input_index=st.integers(0, 3),
    ),
    max_size=6,
)


@given(
    edges=EDGES, held=st.sets(st.sampled_from([JOB_A, JOB_B, JOB_C])), happened=st.sampled_from([event(), partition()])
)
@settings(deadline=None)
def test_each_job_is_woken_held_or_left_alone(edges: list[Edge], held: set[UUID], happened: Event) -> None:
    found = route(happened, edges, LIVE, held)
    owed = [each.job_id for each in found.owed]
    candidates = [each.job_id for each in found.candidates]
    reading = {each.job_id for each in edges if wakes(each, happened)}

    assert len(owed) + len(candidates) == len({*owed, *candidates})
    assert {*owed, *candidates, *found.blocked} == reading
    assert not {*owed, *candidates} & held
    assert (found.ended is not None) == (not reading)
