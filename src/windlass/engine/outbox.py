"""The outbox loop: carries out effects that were written with the change that decided them, at least once each.

An effect is taken for a while, carried out without a transaction, then removed. One that fails comes back later, up to
a cap; one that is given up is buried, and its task is told of the loss in the same transaction, so that no task waits
for ever for something that cannot happen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from windlass.core import sent
from windlass.core import task as rules
from windlass.core.error import Unavailable
from windlass.core.retry import capped_power
from windlass.core.text import clean, line_of, words_of
from windlass.core.transition import Effect
from windlass.core.wakeup import WAKEUP
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer
from windlass.store.store import Store

log = logging.getLogger("windlass.outbox")

EffectHandler = Callable[[Effect], Awaitable[None]]

BATCH, AT_ONCE = 100, 256
HOLD_S = 60.0
# Who dies with an effect keeps it from all others for so long. What does no harm when it is done twice at a time need
# not wait until it is certain that nobody does it any more.
HARMLESS, HARMLESS_HOLD_S = (WAKEUP,), 15.0
TRIES_MAX, BUSY_MAX_S = 12, 3600.0
DELAY_S, DELAY_FACTOR, DELAY_MAX_S = 1.0, 2.0, 300.0


class Undeliverable(Exception):
    """Raised by a handler: trying again will not help."""


class NotNow(Exception):
    """Raised by a handler: who should get it is busy. That is no try, but it does not go on for ever either."""

    def __init__(self, message: str, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class Outbox:
    """Carries out the effects that this engine has handlers for. By hand (`tick`) to the end of a batch; in a loop
    (`flow`) as many at once as there is room for, so that one that takes long holds nobody up."""

    def __init__(self, store: Store, chance: Chance, handlers: Callable[[], Mapping[str, EffectHandler]]) -> None:
        self._store, self._chance, self._handlers = store, chance, handlers
        self._busy: set[asyncio.Task[None]] = set()
        self._done: Committer[UUID, None] = Committer(self._forget, patience_s=0.0)

    async def tick(self) -> int:
        """One round: take what is due and can be handled here, carry it out, write down how it went."""
        begun = await self._begin(BATCH)
        await asyncio.gather(*begun)
        return len(begun)

    async def flow(self) -> int:
        """Begin what is due and there is room for, without waiting for its end."""
        if len(self._busy) >= AT_ONCE:
            await asyncio.wait(self._busy, return_when=asyncio.FIRST_COMPLETED)
        return len(await self._begin(min(BATCH, AT_ONCE - len(self._busy))))

    async def close(self) -> None:
        """What is under way is given up; it comes back when its time is over."""
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        await self._done.close()

    async def _forget(self, ids: list[UUID]) -> list[None]:
        """Many that were carried out at the same time share a transaction."""
        async with self._store.begin() as tx:
            await tx.outbox.delete_effects(ids)
        return [None] * len(ids)

    async def _begin(self, limit: int) -> list[asyncio.Task[None]]:
        handlers = self._handlers()
        if not handlers or limit <= 0:
            return []
        async with self._store.begin() as tx:
            taken = await tx.outbox.take_effects(sorted(handlers), limit, HOLD_S, HARMLESS, HARMLESS_HOLD_S)
            chosen = [(handlers[effect.kind], effect, tries) for effect, tries in taken if effect.kind in handlers]
            if len(chosen) < len(taken):  # a handler left while its effects were taken: another server has one
                await tx.outbox.delay_effects([effect.id for effect, _ in taken if effect.kind not in handlers], 0.0)
        begun = [asyncio.create_task(self._one(*one)) for one in chosen]
        for task in begun:
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
        return begun

    async def _one(self, handler: EffectHandler, effect: Effect, tries: int) -> None:
        try:
            if await _carry_out(self._store, self._chance, handler, effect, tries):
                await self._done.call(effect.id)
        except Unavailable as error:
            log.warning("how %s of task %s went is not written down: %s", effect.kind, effect.task_id, error)
        except Exception:
            log.exception("%s of task %s was not carried out", effect.kind, effect.task_id)


async def _carry_out(store: Store, chance: Chance, handler: EffectHandler, effect: Effect, tries: int) -> bool:
    """Whether that is done with. If not, it was written down when again, or that it was given up."""
    try:
        await handler(effect)
    except NotNow as error:
        await _put_off(store, chance, effect, error)
        return False
    except Exception as error:
        problem = line_of(error)
        if tries >= TRIES_MAX or isinstance(error, Undeliverable):
            log.exception("gave up on %s of task %s after %d tries: %s", effect.kind, effect.task_id, tries, problem)
            await _bury(store, chance, effect, problem)
        else:
            delay_s = capped_power(DELAY_S, DELAY_FACTOR, tries - 1, DELAY_MAX_S) * (1 + 0.2 * chance.jitter())
            log.warning("%s of task %s, again in %.1f s: %s", effect.kind, effect.task_id, delay_s, problem)
            async with store.begin() as tx:
                await tx.outbox.delay_effect(effect.id, delay_s, problem)
        return False
    return True


async def _put_off(store: Store, chance: Chance, effect: Effect, busy: NotNow) -> None:
    async with store.begin() as tx:
        too_long = await tx.outbox.put_off_effect(effect.id, busy.delay_s, clean(words_of(busy)), BUSY_MAX_S)
    if too_long:
        log.error("gave up on %s of task %s: busy for too long", effect.kind, effect.task_id)
        await _bury(store, chance, effect, f"busy for too long: {busy}")


async def _bury(store: Store, chance: Chance, effect: Effect, problem: str) -> None:
    """The attempt that depends on this effect cannot go on: its loss is decided like any other."""
    async with store.begin() as tx:
        await tx.outbox.bury_effect(effect.id, problem)
        task = (await tx.tasks.load_tasks_patiently([effect.task_id])).get(effect.task_id)
        if task is not None and sent.needs(task, effect):
            await tx.apply([rules.expire(task, await tx.now(), chance.jitter(), "EFFECT_UNDELIVERABLE")])
