"""The outbox loop: carries out effects that were written with the change that decided them, at least once each.

An effect is taken for a while, carried out without a transaction, then removed. One that fails comes back later, up to
a cap; one that is given up is buried, and its task is told of the loss in the same transaction, so that no task waits
for ever for something that cannot happen.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from windlass.core import task as rules
from windlass.core.check import clean_text
from windlass.core.retry import capped_power
from windlass.core.transition import Effect, State
from windlass.engine.chance import Chance
from windlass.store.store import Store

log = logging.getLogger("windlass.outbox")

EffectHandler = Callable[[Effect], Awaitable[None]]

BATCH = 100
HOLD_S = 60.0
TRIES_MAX = 12
DELAY_S, DELAY_FACTOR, DELAY_MAX_S = 1.0, 2.0, 300.0


class Undeliverable(Exception):
    """Raised by a handler: trying again will not help."""


async def carry_out_effects(store: Store, chance: Chance, handlers: Mapping[str, EffectHandler]) -> int:
    """One round: take what is due and can be handled here, carry it out, write down how it went."""
    if not handlers:
        return 0
    async with store.begin() as tx:
        taken = await tx.outbox.take_effects(sorted(handlers), BATCH, HOLD_S)
    for effect, tries in taken:
        await _carry_out(store, chance, handlers[effect.kind], effect, tries)
    return len(taken)


async def _carry_out(store: Store, chance: Chance, handler: EffectHandler, effect: Effect, tries: int) -> None:
    try:
        await handler(effect)
    except Exception as error:
        problem = clean_text("error", f"{type(error).__name__}: {error}")
        if tries >= TRIES_MAX or isinstance(error, Undeliverable):
            log.exception("gave up on %s of task %s after %d tries: %s", effect.kind, effect.task_id, tries, problem)
            await _bury(store, chance, effect, problem)
        else:
            delay_s = capped_power(DELAY_S, DELAY_FACTOR, tries - 1, DELAY_MAX_S) * (1 + 0.2 * chance.jitter())
            async with store.begin() as tx:
                await tx.outbox.delay_effect(effect.id, delay_s, problem)
        return
    async with store.begin() as tx:
        await tx.outbox.delete_effects([effect.id])


async def _bury(store: Store, chance: Chance, effect: Effect, problem: str) -> None:
    """The attempt that depends on this effect cannot go on: its loss is decided like any other."""
    async with store.begin() as tx:
        await tx.outbox.bury_effect(effect.id, problem)
        task = (await tx.tasks.load_tasks_patiently([effect.task_id])).get(effect.task_id)
        if task is not None and task.state is State.RUNNING and task.attempt == effect.attempt:
            await tx.apply([rules.expire(task, await tx.now(), chance.jitter(), "EFFECT_UNDELIVERABLE")])
