"""The outbox: effects that wait to be carried out, and dead ones, which were given up."""

from __future__ import annotations

from windlass.core.access import Role
from windlass.engine.repair import EffectView
from windlass.http import cursor
from windlass.http.form import Listed, Nothing, Paged
from windlass.http.route import Call, Table

table = Table("outbox")


class OutboxFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """`dead` true: only what was given up; false: only what waits."""

    dead: bool | None = None


@table.add("GET", "/api/v1/outbox", Role.VIEWER)
async def list_outbox(call: Call[OutboxFilter, None]) -> Listed[EffectView]:
    """Effects that wait or were given up, newest first."""
    query = call.query
    found = await call.engine.repair.effects(
        call.namespace(query.namespace), dead=query.dead, after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda effect: (effect.created_at, effect.id))
    return Listed(page, more)


@table.add("POST", "/api/v1/outbox/{effect_id}/retry", Role.OPERATOR)
async def retry_effect(call: Call[None, Nothing]) -> EffectView:
    """Try a dead effect again, as if it were new."""
    return await call.engine.repair.revive(await _seen(call))


@table.add("DELETE", "/api/v1/outbox/{effect_id}", Role.OPERATOR)
async def discard_effect(call: Call[None, None]) -> EffectView:
    """Throw a dead effect away."""
    return await call.engine.repair.discard(await _seen(call))


async def _seen(call: Call[None, Nothing] | Call[None, None]) -> EffectView:
    effect = await call.engine.repair.effect(call.id("effect_id"))
    call.reach(effect.namespace)
    return effect
