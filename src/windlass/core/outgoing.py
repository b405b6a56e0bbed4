"""Outgoing attempts: the engine begins them itself, before it is known which worker will run them.

They follow the rules of `task`. An attempt that no worker has started has none (`task.worker is None`). Its lease is a
random token of its own, which only its worker receives. Its heartbeats keep it alive, in a row beside the task; until
it has arrived, the effect that carries it does.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.delivery import DELIVERIES, outgoing_effects
from windlass.core.effects import detached_effects
from windlass.core.ids import derived_id
from windlass.core.lease_token import delivery_of
from windlass.core.states import Effect, Entry, Instant, State, Transition
from windlass.core.task import Task


def dispatch(task: Task, effect: str, token: UUID, now: Instant) -> Transition:
    """A new attempt begins under this token, and this effect carries it to a worker."""
    begun = rules.claim(task, token, None, now)
    id_, attempt = effect_of(begun.after, effect), begun.after.attempt
    return replace(begun, effects=(Effect(id_, effect, task.namespace, task.id, attempt, {"queue": task.queue}),))


def effect_of(task: Task, effect: str) -> UUID:
    """The effect that carries the current attempt of a task."""
    return derived_id(effect, task.id, task.attempt)


def runs(task: Task, attempt: int) -> bool:
    """Whether this attempt is the current one and runs."""
    return task.state is State.RUNNING and task.attempt == attempt


def needs(task: Task, effect: Effect) -> bool:
    """Whether an attempt cannot go on without this effect. An attempt that a worker has started no longer needs the
    effect that carried it."""
    if effect.kind in detached_effects():
        return False
    return runs(task, effect.attempt) and (task.worker is None or effect.kind not in outgoing_effects())


def silent(task: Task, now: Instant, jitter: float, *, as_failure: bool = False) -> Transition:
    """An attempt was silent for too long: its worker is a zombie, or no worker has started it. The loss counts as a
    failed attempt if `loss_is_failure` is set for the delivery of the attempt, or of the queue (`as_failure`)."""
    began = DELIVERIES.get(delivery_of(task.lease_id) or "")
    if as_failure or (began is not None and began.loss_is_failure):
        return rules.expire(task, now, jitter, as_failure=True)
    if task.worker is None:
        return rules.expire(task, now, jitter, "DISPATCH_TIMEOUT")
    lost = rules.expire(task, now, jitter, "HEARTBEAT_TIMEOUT")
    zombie = Entry(task.id, now, task.attempt, "zombie", task.worker, None)
    return replace(lost, history=(zombie, *lost.history))
