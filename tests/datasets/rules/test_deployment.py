"""The states of a deployment: every pair of states and actor, and what a cutover changes."""

from __future__ import annotations

from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.datasets.rules.deployment import (
    LIVE,
    MOVES,
    Actor,
    Built,
    Consumer,
    Deployment,
    DeploymentState,
    build_state,
    check_move,
    cutover,
    deployment_id,
    ending,
    may_move,
)
from windlass.errors import Conflict, InvalidState

S = DeploymentState
A = Actor
STATES = [None, *S]

# The table of the specification, written out once more.
ALLOWED = {
    (None, S.BUILDING, A.DEPLOY),
    (S.BUILDING, S.READY, A.LOOP),
    (S.BUILDING, S.FAILED, A.LOOP),
    (S.FAILED, S.BUILDING, A.PERSON),
    (S.BUILDING, S.ABANDONED, A.PERSON),
    (S.READY, S.ABANDONED, A.PERSON),
    (S.FAILED, S.ABANDONED, A.PERSON),
    (S.READY, S.ACTIVE, A.LOOP),
    (S.READY, S.ACTIVE, A.PERSON),
    (S.ABANDONED, S.BUILDING, A.DEPLOY),
    (S.SUPERSEDED, S.BUILDING, A.DEPLOY),
    (S.ROLLED_BACK, S.BUILDING, A.DEPLOY),
    (S.SUPERSEDED, S.ACTIVE, A.PERSON),
    (S.ROLLED_BACK, S.ACTIVE, A.PERSON),
    (S.ACTIVE, S.SUPERSEDED, A.CUTOVER),
    (S.ACTIVE, S.ROLLED_BACK, A.CUTOVER),
}


@pytest.mark.parametrize("before", STATES)
def test_every_move_is_in_the_table_or_refused(before: DeploymentState | None) -> None:
    for after, by in product(S, A):
        allowed = (before, after, by) in ALLOWED
        assert may_move(before, after, by) is allowed, (before, after, by)
        if allowed:
            check_move(before, after, by)
        else:
            with pytest.raises(InvalidState, match=f"cannot become {after}"):
                check_move(before, after, by)


def test_the_table_has_every_pair_once_and_says_when() -> None:
    pairs = [(move.before, move.after) for move in MOVES]

    assert len(pairs) == len(set(pairs))
    assert all(move.when and move.by for move in MOVES)


def test_every_state_is_reached_and_none_is_the_end() -> None:
    assert {move.after for move in MOVES} == set(S)
    assert {move.before for move in MOVES} == {None, *S}
    assert {"active", "building", "ready"} == LIVE


def test_the_same_file_has_the_same_deployment() -> None:
    known = deployment_id("n", "d", "00", {})

    assert known == deployment_id("n", "d", "00", {}) == UUID("a9ba2ed4-2ea0-5008-a0f4-5b4e3efd6a70")
    others = {deployment_id(*each) for each in [("m", "d", "00", {}), ("n", "e", "00", {}), ("n", "d", "01", {})]}
    assert len({known, *others, deployment_id("n", "d", "00", {"a": "1"})}) == 5


# --------------------------------------------------------------------------------------------- cutover


def deployment(number: int, state: DeploymentState, **jobs: str) -> Deployment:
    return Deployment(UUID(int=number), number, state, jobs)


OLD = deployment(1, S.ACTIVE, a="1", b="1", c="1")
NEW = deployment(2, S.READY, a="1", b="2", d="1")


def test_a_cutover_supersedes_and_leaves_unchanged_consumers_alone() -> None:
    made = cutover(NEW, OLD, by=A.LOOP)

    assert (made.active, made.previous) == (NEW.id, OLD.id)
    assert made.changes == ((OLD.id, S.SUPERSEDED), (NEW.id, S.ACTIVE))
    assert made.cancelled == {Consumer("b", "1"), Consumer("c", "1")}
    assert made.untouched == {Consumer("a", "1")}


def test_a_rollback_is_a_cutover_to_a_lower_number() -> None:
    old, new = deployment(1, S.SUPERSEDED, a="1"), deployment(2, S.ACTIVE, a="2")
    made = cutover(old, new, by=A.PERSON, previous=old.id)

    assert (made.active, made.previous) == (old.id, new.id)
    assert made.changes == ((new.id, S.ROLLED_BACK), (old.id, S.ACTIVE))


def test_the_first_deployment_has_no_previous_one() -> None:
    made = cutover(deployment(1, S.READY, a="1"), None, by=A.LOOP)

    assert (made.previous, made.changes, made.cancelled) == (None, ((UUID(int=1), S.ACTIVE),), frozenset())


def test_a_cutover_to_the_active_deployment_changes_nothing() -> None:
    made = cutover(OLD, OLD, by=A.PERSON, previous=UUID(int=9))

    assert (made.active, made.previous, made.changes, made.cancelled) == (OLD.id, UUID(int=9), (), frozenset())


def test_a_consumer_that_another_live_deployment_builds_with_keeps_its_tasks() -> None:
    building = deployment(3, S.BUILDING, b="1")

    assert cutover(NEW, OLD, by=A.LOOP, live=[NEW, building]).cancelled == {Consumer("c", "1")}


def test_the_active_deployment_does_not_keep_its_own_tasks() -> None:
    assert cutover(NEW, OLD, by=A.LOOP, live=[OLD, NEW]).cancelled == {Consumer("b", "1"), Consumer("c", "1")}
    assert ending(NEW, [OLD, NEW]) == {Consumer("b", "2"), Consumer("d", "1")}


@pytest.mark.parametrize("state", [S.BUILDING, S.FAILED, S.ABANDONED])
def test_only_what_is_built_becomes_active(state: DeploymentState) -> None:
    with pytest.raises(InvalidState, match=f"the version is {state}"):
        cutover(deployment(2, state), OLD, by=A.PERSON)


def test_the_loop_does_not_bring_back_what_went() -> None:
    with pytest.raises(InvalidState):
        cutover(deployment(2, S.SUPERSEDED), OLD, by=A.LOOP)


@pytest.mark.parametrize("active", [OLD, None])
def test_a_cutover_from_another_deployment_than_expected_is_a_conflict(active: Deployment | None) -> None:
    with pytest.raises(Conflict, match="is active, not"):
        cutover(NEW, active, by=A.PERSON, expect_active=UUID(int=5))


def test_a_conflict_comes_before_a_wrong_state() -> None:
    with pytest.raises(Conflict):
        cutover(deployment(2, S.FAILED), OLD, by=A.PERSON, expect_active=UUID(int=5))
    assert cutover(NEW, OLD, by=A.PERSON, expect_active=OLD.id).active == NEW.id


fingerprints = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"))


@given(fingerprints, fingerprints, st.lists(fingerprints, max_size=2), st.booleans())
def test_each_consumer_is_cancelled_or_untouched(
    before: dict[str, str], after: dict[str, str], others: list[dict[str, str]], down: bool
) -> None:
    old = deployment(2, S.ACTIVE, **before)
    new = deployment(1 if down else 3, S.SUPERSEDED if down else S.READY, **after)
    live = [deployment(number, S.BUILDING, **jobs) for number, jobs in enumerate(others, 10)]
    made = cutover(new, old, by=A.PERSON, live=live)
    staying = {consumer for each in (new, *live) for consumer in each.consumers}

    assert made.cancelled | made.untouched == old.consumers
    assert made.cancelled.isdisjoint(staying)
    assert made.untouched <= staying
    assert may_move(old.state, dict(made.changes)[old.id], A.CUTOVER)


# --------------------------------------------------------------------------------------------- building


@pytest.mark.parametrize(
    ("built", "state", "reason"),
    [
        ({}, S.READY, ""),
        ({"a": Built(done=5)}, S.READY, ""),
        ({"a": Built(owed=1, done=5)}, S.BUILDING, ""),
        ({"a": Built(unfinished=1, done=5)}, S.BUILDING, ""),
        ({"a": Built(done=5), "b": Built(owed=1)}, S.BUILDING, ""),
        ({"a": Built(owed=3, unfinished=1), "b": Built(failed=1, reason="refused")}, S.FAILED, "a task of b: refused"),
        ({"a": Built(failed=1)}, S.FAILED, "a task of a"),
    ],
)
def test_a_build_is_ready_when_nothing_is_owed_and_nothing_is_open(
    built: dict[str, Built], state: DeploymentState, reason: str
) -> None:
    assert build_state(built) == (state, reason)
    assert state is S.BUILDING or may_move(S.BUILDING, state, A.LOOP)
