"""The outbox loop: carries out effects, at least once each. An effect is written with the change that decided it.

A server takes an effect for a while, carries it out outside any transaction, then deletes it. A failed effect is tried
again later, up to a number of tries, then becomes a dead effect. The same transaction decides the loss of the attempt
that needs it, so that no task waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from uuid import UUID

from windlass.core import outgoing
from windlass.core import task as rules
from windlass.core.effects import repeatable_effects
from windlass.core.retry import capped_power
from windlass.core.states import Effect
from windlass.core.text import clean, line_of, words_of
from windlass.engine.commit.committer import Committer
from windlass.engine.randomness import Randomness
from windlass.errors import Unavailable
from windlass.store.store import Store

log = logging.getLogger("windlass.outbox")

EffectHandler = Callable[[Effect], Awaitable[None]]

BATCH, AT_ONCE = 100, 256
HOLD_S = 60.0
# How long other servers do not take an effect whose server may have died. A repeatable effect need not wait until no
# other server can still be carrying it out.
REPEATABLE_HOLD_S = 15.0
TRIES_MAX, BUSY_MAX_S = 12, 3600.0
DELAY_S, DELAY_FACTOR, DELAY_MAX_S = 1.0, 2.0, 300.0


class Undeliverable(Exception):
    """Raised by a handler if another try cannot help."""


class NotNow(Exception):
    """Raised by a handler if the receiver is busy. That does not count as a try, up to a time limit."""

    def __init__(self, message: str, delay_s: float) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class Outbox:
    """Carries out the effects that this engine has handlers for. `tick` carries out one batch to its end; `flow`, for
    the loop, keeps as many under way as there is room for, so that a slow one holds up no other."""

    def __init__(
        self, store: Store, randomness: Randomness, handlers: Callable[[], Mapping[str, EffectHandler]]
    ) -> None:
        self._store, self._randomness, self._handlers = store, randomness, handlers
        self._busy: set[asyncio.Task[None]] = set()
        self._done: Committer[UUID, None] = Committer(self._forget, retry_for_s=0.0)

    async def tick(self) -> int:
        """Take the due effects that can be handled here, carry them out, and write the results."""
        begun = await self._begin(BATCH)
        await asyncio.gather(*begun)
        return len(begun)

    async def flow(self) -> int:
        """Begin as many due effects as there is room for, without waiting for their end."""
        if len(self._busy) >= AT_ONCE:
            await asyncio.wait(self._busy, return_when=asyncio.FIRST_COMPLETED)
        return len(await self._begin(min(BATCH, AT_ONCE - len(self._busy))))

    async def close(self) -> None:
        """Cancel what is under way; it is taken again when its hold has expired."""
        for task in list(self._busy):
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)
        await self._done.close()

    async def _forget(self, ids: list[UUID]) -> list[None]:
        """Effects that were carried out at the same time share a transaction."""
        async with self._store.begin() as tx:
            await tx.outbox.delete_effects(ids)
        return [None] * len(ids)

    async def _begin(self, limit: int) -> list[asyncio.Task[None]]:
        handlers = self._handlers()
        if not handlers or limit <= 0:
            return []
        async with self._store.begin() as tx:
            taken = await tx.outbox.take_effects(
                sorted(handlers), limit, HOLD_S, sorted(repeatable_effects()), REPEATABLE_HOLD_S
            )
            chosen = [(handlers[effect.kind], effect, tries) for effect, tries in taken if effect.kind in handlers]
            if len(chosen) < len(taken):  # a handler was removed meanwhile: leave its effects to other servers
                await tx.outbox.delay_effects([effect.id for effect, _ in taken if effect.kind not in handlers], 0.0)
        begun = [asyncio.create_task(self._one(*one)) for one in chosen]
        for task in begun:
            self._busy.add(task)
            task.add_done_callback(self._busy.discard)
        return begun

    async def _one(self, handler: EffectHandler, effect: Effect, tries: int) -> None:
        try:
            if await _carry_out(self._store, self._randomness, handler, effect, tries):
                await self._done.call(effect.id)
        except Unavailable as error:
            log.warning("the result of %s of task %s was not written: %s", effect.kind, effect.task_id, error)
        except Exception:
            log.exception("%s of task %s was not carried out", effect.kind, effect.task_id)


async def _carry_out(store: Store, randomness: Randomness, handler: EffectHandler, effect: Effect, tries: int) -> bool:
    """Whether the effect was carried out. If not, it was put off or given up."""
    try:
        await handler(effect)
    except NotNow as busy:
        async with store.begin() as tx:
            too_long = await tx.outbox.put_off_effect(effect.id, busy.delay_s, clean(words_of(busy)), BUSY_MAX_S)
        if too_long:
            log.error("gave up on %s of task %s: busy for too long", effect.kind, effect.task_id)  # noqa: TRY400
            await _give_up(store, randomness, effect, f"busy for too long: {busy}")
        return False
    except Exception as error:
        problem = line_of(error)
        if tries >= TRIES_MAX or isinstance(error, Undeliverable):
            log.exception("gave up on %s of task %s after %d tries: %s", effect.kind, effect.task_id, tries, problem)
            await _give_up(store, randomness, effect, problem)
        else:
            delay_s = capped_power(DELAY_S, DELAY_FACTOR, tries - 1, DELAY_MAX_S) * (1 + 0.2 * randomness.jitter())
            log.warning("%s of task %s, again in %.1f s: %s", effect.kind, effect.task_id, delay_s, problem)
            async with store.begin() as tx:
                await tx.outbox.delay_effect(effect.id, delay_s, problem)
        return False
    return True


async def _give_up(store: Store, randomness: Randomness, effect: Effect, problem: str) -> None:
    """Make the effect a dead one. The attempt that needs it cannot go on: its loss is decided like any other."""
    async with store.begin() as tx:
        await tx.outbox.dead_letter_effect(effect.id, problem)
        task = (await tx.tasks.lock_tasks([effect.task_id])).get(effect.task_id)
        if task is not None and outgoing.needs(task, effect):
            await tx.apply([rules.expire(task, await tx.now(), randomness.jitter(), "EFFECT_UNDELIVERABLE")])
