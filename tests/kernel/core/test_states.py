"""The table of moves, and that the rules make each of them and no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.kernel.core.given import (
    CRASH,
    FATAL,
    LEASE,
    MISMATCH,
    NOW,
    TASK_ID,
    at,
    blocked,
    cancelling,
    lost,
    parked,
    queued,
    running,
    sleeping,
    told,
)

from windlass.core import run
from windlass.core import task as rules
from windlass.core.ids import derived_id
from windlass.core.retry import Policy
from windlass.core.states import TABLE, TERMINAL, Entry, State, Transition, Verb, move

ONE_TRY = Policy(max_attempts=1, max_losses=1)
TIMED = Policy(timeout_s=10)


def edge(state: State) -> run.Edge:
    return run.Edge(TASK_ID, derived_id("upstream"), state)


# verb, from, to, how it comes about
MOVES: list[tuple[Verb, str, str, Callable[[], Transition]]] = [
    (Verb.UNBLOCK, "blocked", "queued", lambda: run.settle(blocked(), [edge(State.SUCCEEDED)], 0, NOW)),
    (Verb.SKIP, "blocked", "skipped", lambda: run.settle(blocked(), [edge(State.FAILED)], 0, NOW)),
    (Verb.CLAIM, "queued", "running", lambda: rules.claim(queued(), LEASE, "ada", NOW)),
    (Verb.COMPLETE, "running", "succeeded", lambda: rules.complete(running(), 1, LEASE, b"1", NOW)),
    (Verb.COMPLETE, "queued", "succeeded", lambda: rules.complete(lost(), 1, LEASE, b"1", NOW)),
    (Verb.FAIL, "running", "failed", lambda: rules.fail(running(), 1, LEASE, FATAL, NOW, 0)),
    (Verb.FAIL, "queued", "failed", lambda: rules.fail(lost(), 1, LEASE, FATAL, NOW, 0)),
    (Verb.RETRY, "running", "queued", lambda: rules.fail(running(), 1, LEASE, CRASH, NOW, 0)),
    (Verb.RETRY, "queued", "queued", lambda: rules.fail(lost(), 1, LEASE, CRASH, NOW, 0)),
    (Verb.RELEASE, "running", "queued", lambda: rules.release(running(), 1, LEASE, NOW)),
    (Verb.SLEEP, "running", "sleeping", lambda: rules.sleep(running(), 1, LEASE, at(9), NOW)),
    (Verb.SLEEP, "queued", "sleeping", lambda: rules.sleep(lost(), 1, LEASE, at(9), NOW)),
    (Verb.SLEEP, "running", "queued", lambda: rules.sleep(running(), 1, LEASE, None, NOW, come=True)),
    (Verb.SLEEP, "queued", "queued", lambda: rules.sleep(lost(), 1, LEASE, None, NOW, come=True)),
    (Verb.WAKE, "sleeping", "queued", lambda: rules.wake(sleeping(), NOW)),
    (Verb.PARK, "running", "parked", lambda: rules.park(running(), 1, LEASE, MISMATCH, NOW)),
    (Verb.PARK, "queued", "parked", lambda: rules.park(lost(), 1, LEASE, MISMATCH, NOW)),
    (Verb.RESUME, "parked", "queued", lambda: rules.resume(parked(), NOW)),
    (Verb.EXPIRE, "running", "queued", lambda: rules.expire(running(), NOW, 0)),
    (Verb.EXPIRE, "running", "failed", lambda: rules.expire(running(ONE_TRY), NOW, 0)),
    (Verb.EXPIRE, "running", "cancelled", lambda: rules.expire(cancelling(), NOW, 0)),
    (Verb.CANCEL, "blocked", "cancelled", lambda: rules.cancel(blocked(), "", NOW)),
    (Verb.CANCEL, "queued", "cancelled", lambda: rules.cancel(queued(), "", NOW)),
    (Verb.CANCEL, "sleeping", "cancelled", lambda: rules.cancel(sleeping(), "", NOW)),
    (Verb.CANCEL, "parked", "cancelled", lambda: rules.cancel(parked(), "", NOW)),
    (Verb.CANCEL, "running", "cancelled", lambda: rules.report_cancelled(told(), 1, LEASE, "", NOW)),
    (Verb.TIME_OUT, "running", "queued", lambda: rules.elapse(running(TIMED), at(10), 0)),
    (Verb.TIME_OUT, "running", "failed", lambda: rules.elapse(told(), at(30), 0)),
    (Verb.TIME_OUT, "running", "cancelled", lambda: rules.elapse(cancelling(TIMED), at(10), 0)),
    (Verb.TIME_OUT, "queued", "failed", lambda: rules.elapse(queued(deadline_at=at(5)), at(5), 0)),
    (Verb.TIME_OUT, "blocked", "failed", lambda: rules.elapse(blocked(deadline_at=at(5)), at(5), 0)),
    (Verb.TIME_OUT, "sleeping", "failed", lambda: rules.elapse(sleeping(deadline_at=at(5)), at(5), 0)),
    (Verb.TIME_OUT, "parked", "failed", lambda: rules.elapse(parked(deadline_at=at(5)), at(5), 0)),
]


@pytest.mark.parametrize(
    ("verb", "source", "target", "happen"),
    MOVES,
    ids=[f"{verb}-{source}-{target}" for verb, source, target, _ in MOVES],
)
def test_a_rule_makes_this_move(verb: Verb, source: str, target: str, happen: Callable[[], Transition]) -> None:
    made = happen()

    assert (made.verb, made.before.state, made.after.state) == (verb, source, target)
    assert made.changed
    assert made.refusal is None


def test_every_move_in_the_table_is_made_by_a_rule_above() -> None:
    made = {(verb, State(source), State(target)) for verb, source, target, _ in MOVES}

    assert made == {(verb, *pair) for verb, pairs in TABLE.items() for pair in pairs if verb is not Verb.NOTE}


def test_every_verb_has_its_moves() -> None:
    assert set(TABLE) == set(Verb)
    assert all(TABLE.values())


def test_no_move_leaves_a_terminal_state() -> None:
    leaving = {(verb, pair) for verb, pairs in TABLE.items() for pair in pairs if pair[0] in TERMINAL}

    assert {verb for verb, _ in leaving} == {Verb.NOTE}
    assert all(source is target for _, (source, target) in leaving)


def test_a_note_never_moves_a_task() -> None:
    assert TABLE[Verb.NOTE] == {(state, state) for state in State}


@pytest.mark.parametrize("state", [s for s in State if s not in TERMINAL])
def test_every_state_that_is_not_terminal_has_a_way_to_a_terminal_one(state: State) -> None:
    assert reachable_from(state) & TERMINAL


def test_every_state_can_be_reached_from_a_submit() -> None:
    assert reachable_from(State.BLOCKED) == set(State)


def reachable_from(state: State) -> set[State]:
    seen, pairs = {state}, {pair for moves in TABLE.values() for pair in moves}
    while more := {target for source, target in pairs if source in seen} - seen:
        seen |= more
    return seen


@pytest.mark.parametrize("verb", list(Verb))
def test_a_move_that_is_not_in_the_table_cannot_be_built(verb: Verb) -> None:
    for source in State:
        for target in State:
            before = queued(state=source)
            after = replace(before, state=target)
            if (source, target) in TABLE[verb]:
                assert move(verb, before, after).after is after
            else:
                with pytest.raises(AssertionError, match=verb):
                    move(verb, before, after)


def test_a_transition_that_keeps_the_record_did_not_change_it() -> None:
    task = queued()

    assert not Transition(Verb.NOTE, task, task).changed
    assert move(Verb.NOTE, task, replace(task, awaited=True)).changed


def test_a_transition_carries_history_and_effects_as_they_were_given() -> None:
    task = queued()
    entry = Entry(TASK_ID, NOW, 0, "noted")

    made = move(Verb.NOTE, task, replace(task, awaited=True), (entry,))

    assert (made.history, made.effects, made.refusal) == ((entry,), (), None)
