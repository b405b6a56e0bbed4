"""Attempts that are sent out: the engine begins them itself, before anybody is known who will run them.

The rules of a task are those of `task`; here is what sending adds. An attempt that nobody has taken up has no worker
(`task.worker is None`), and its lease has a token of chance, which is on its row and is told to nobody but the worker
that needs it. It lives by signs of life of its own, kept in a row beside the task, and by the effect that carries it
until it has arrived.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from windlass.core import task as rules
from windlass.core.dataset import BUFFER, ROUTE
from windlass.core.delivery import OUTGOING_EFFECTS, Wakeup, type_of
from windlass.core.id import derived_id
from windlass.core.task import Task
from windlass.core.token import delivery_of
from windlass.core.transition import Effect, Entry, Instant, State, Transition, Verb, move

WAKEUP = type_of(Wakeup)


def send(task: Task, effect: str, token: UUID) -> Transition:
    """An attempt that has begun is sent, by this effect, to whoever is there. Until one answers it has no worker."""
    assert task.state is State.RUNNING, (task.id, task.state)
    after = replace(task, lease_id=token, worker=None)
    carried = Effect(effect_of(task, effect), effect, task.namespace, task.id, task.attempt, {"queue": task.queue})
    return move(Verb.NOTE, task, after, effects=(carried,))


def effect_of(task: Task, effect: str) -> UUID:
    """The effect that carries the current attempt of a task."""
    return derived_id(effect, task.id, task.attempt)


def runs(task: Task, attempt: int) -> bool:
    """Whether this attempt goes on. Attempts are never shared: what was sent out is not claimed as well."""
    return task.state is State.RUNNING and task.attempt == attempt


def needs(task: Task, effect: Effect) -> bool:
    """Whether an attempt cannot go on without this effect. What was sent out and taken up has arrived all the same;
    what an attempt has told of is no longer its own."""
    if effect.kind in (ROUTE, BUFFER):
        return False
    return runs(task, effect.attempt) and (task.worker is None or effect.kind not in OUTGOING_EFFECTS)


def silent(task: Task, now: Instant, jitter: float, *, as_failure: bool = False) -> Transition:
    """Nothing was heard for too long: of a worker it is a zombie then, and without one nobody took the task up. Whoever
    claimed it by its id has lost its lease, which counts like a failed attempt; so does a call with one, if the
    delivery says so (`as_failure`)."""
    if as_failure or delivery_of(task.lease_id) == WAKEUP:
        return rules.expire(task, now, jitter, as_failure=True)
    if task.worker is None:
        return rules.expire(task, now, jitter, "DISPATCH_TIMEOUT")
    lost = rules.expire(task, now, jitter, "HEARTBEAT_TIMEOUT")
    zombie = Entry(task.id, now, task.attempt, "zombie", task.worker, None)
    return replace(lost, history=(zombie, *lost.history))
