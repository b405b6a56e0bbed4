"""The states of a deployment, as one table, and what a cutover changes.

`MOVES` lists every change of a state, who makes it, and when. A diagram can be drawn from it. A cutover is decided here
and written in one transaction. Deployments share consumers: a job with the same fingerprint goes over untouched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from windlass.core.ids import derived_id
from windlass.datasets.rules.canonical import digest
from windlass.errors import Conflict, InvalidState


class DeploymentState(StrEnum):
    """The state of a deployment."""

    BUILDING = "building"
    READY = "ready"
    ACTIVE = "active"
    FAILED = "failed"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"
    ROLLED_BACK = "rolled_back"


class Actor(StrEnum):
    """Who moves a deployment."""

    DEPLOY = "deploy"
    LOOP = "deploy loop"
    PERSON = "person"
    CUTOVER = "cutover"


class Move(NamedTuple):
    """A change of a deployment's state. `before` is None for a new deployment."""

    before: DeploymentState | None
    after: DeploymentState
    by: frozenset[Actor]
    when: str


_S = DeploymentState
LIVE = frozenset({_S.ACTIVE, _S.BUILDING, _S.READY})  # routing feeds them


def _moves(
    before: tuple[DeploymentState | None, ...], after: DeploymentState, by: tuple[Actor, ...], when: str
) -> list[Move]:
    return [Move(each, after, frozenset(by), when) for each in before]


MOVES: tuple[Move, ...] = (
    *_moves((None,), _S.BUILDING, (Actor.DEPLOY,), "the file is valid, and the hash of the plan fits"),
    *_moves(
        (_S.BUILDING,), _S.READY, (Actor.LOOP,),
        "nothing is owed to its new consumers, and none of their tasks is open",
    ),
    *_moves((_S.BUILDING,), _S.FAILED, (Actor.LOOP,), "a build task failed for good; the reason names it"),
    *_moves((_S.FAILED,), _S.BUILDING, (Actor.PERSON,), "the failed task is retried"),
    *_moves((_S.BUILDING, _S.READY, _S.FAILED), _S.ABANDONED, (Actor.PERSON,), "its own tasks are cancelled"),
    *_moves((_S.READY,), _S.ACTIVE, (Actor.LOOP, Actor.PERSON), "cutover, in one transaction"),
    # A file has one deployment: without these moves, an abandoned file could never be deployed again.
    *_moves((_S.ABANDONED,), _S.BUILDING, (Actor.DEPLOY,), "the same file is deployed again"),
    *_moves(
        (_S.SUPERSEDED, _S.ROLLED_BACK), _S.BUILDING, (Actor.DEPLOY,),
        "the same file is deployed again: what is owed since is caught up first",
    ),
    *_moves(
        (_S.SUPERSEDED, _S.ROLLED_BACK), _S.ACTIVE, (Actor.PERSON,),
        "at once; what is owed since is caught up after",
    ),
    *_moves((_S.ACTIVE,), _S.SUPERSEDED, (Actor.CUTOVER,), "another deployment with a higher number becomes active"),
    *_moves((_S.ACTIVE,), _S.ROLLED_BACK, (Actor.CUTOVER,), "another deployment with a lower number becomes active"),
)  # fmt: skip
_TABLE = {(move.before, move.after): move for move in MOVES}


def may_move(before: DeploymentState | None, after: DeploymentState, by: Actor) -> bool:
    move = _TABLE.get((before, after))
    return move is not None and by in move.by


def check_move(before: DeploymentState | None, after: DeploymentState, by: Actor) -> None:
    """Raise InvalidState unless the table has this move."""
    if not may_move(before, after, by):
        raise InvalidState(f"the version is {before or 'new'}, and cannot become {after}", state=before)


def deployment_id(namespace: str, dag: str, yaml_sha256: str, rebuild: Mapping[str, str]) -> UUID:
    """The id of the deployment of a file with these nonces. It is known before the deploy, so that a plan has the
    fingerprints of jobs with `reset_outputs`, and the same file finds its deployment again."""
    return derived_id("deployment", namespace, dag, yaml_sha256, digest(dict(rebuild)))


# --------------------------------------------------------------------------------------------- cutover


class Consumer(NamedTuple):
    """A job with a fingerprint: what cursors and consumptions belong to."""

    job: str
    fingerprint: str


class Deployment(msgspec.Struct, frozen=True):
    """A deployment, as far as a cutover needs it."""

    id: UUID
    number: int
    state: DeploymentState
    jobs: Mapping[str, str]  # with the fingerprint of each

    @property
    def consumers(self) -> frozenset[Consumer]:
        return frozenset(Consumer(job, fingerprint) for job, fingerprint in self.jobs.items())


class Cutover(msgspec.Struct, frozen=True):
    """What a cutover writes: the active and the previous deployment, new states, whose open tasks are cancelled, and
    whose go on untouched. `changes` is empty if the deployment was active already."""

    active: UUID
    previous: UUID | None
    changes: tuple[tuple[UUID, DeploymentState], ...] = ()
    cancelled: frozenset[Consumer] = frozenset()
    untouched: frozenset[Consumer] = frozenset()


def cutover(
    target: Deployment,
    active: Deployment | None,
    *,
    by: Actor,
    previous: UUID | None = None,
    live: Iterable[Deployment] = (),
    expect_active: UUID | None = None,
) -> Cutover:
    """Make a deployment the active one, also an earlier one. `previous` is the previous deployment as stored, and
    `live` are those that are building or ready: consumers that they share with the one that goes keep their tasks.
    Raises Conflict if another deployment is active than the caller expects, and InvalidState if the target cannot
    become active."""
    active_id = active.id if active else None
    if expect_active is not None and expect_active != active_id:
        raise Conflict(f"deployment {active_id} is active, not {expect_active}: look again", active_version=active_id)
    if active is not None and target.id == active.id:
        return Cutover(target.id, previous)
    check_move(target.state, _S.ACTIVE, by)
    if active is None:
        return Cutover(target.id, None, ((target.id, _S.ACTIVE),))
    gone = _S.SUPERSEDED if target.number > active.number else _S.ROLLED_BACK
    check_move(active.state, gone, Actor.CUTOVER)
    cancelled = ending(active, [target, *live])
    return Cutover(
        target.id, active.id, ((active.id, gone), (target.id, _S.ACTIVE)), cancelled, active.consumers - cancelled
    )


def ending(gone: Deployment, staying: Iterable[Deployment]) -> frozenset[Consumer]:
    """The consumers that end with a deployment, since no other that stays has them. Their open tasks are cancelled."""
    kept = frozenset(consumer for each in staying if each.id != gone.id for consumer in each.consumers)
    return gone.consumers - kept


# --------------------------------------------------------------------------------------------- building


class Built(msgspec.Struct, frozen=True):
    """How far a consumer is that the active deployment does not have: partitions and windows that are still owed, its
    tasks that wait or run, those that are done, and those that failed for good, with the reason of one."""

    owed: int = 0
    unfinished: int = 0
    done: int = 0
    failed: int = 0
    reason: str = ""


def build_state(built: Mapping[str, Built]) -> tuple[DeploymentState, str]:
    """The state of a deployment that builds, by the evidence for each of its new jobs, and why it failed."""
    failed = [f"{job}: {each.reason}" if each.reason else job for job, each in built.items() if each.failed]
    if failed:
        return _S.FAILED, f"a task of {failed[0]}"
    busy = any(each.owed or each.unfinished for each in built.values())
    return (_S.BUILDING if busy else _S.READY), ""
