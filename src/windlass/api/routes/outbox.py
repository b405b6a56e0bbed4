"""The outbox: effects that wait to be carried out, and dead effects, which are no longer tried."""

from __future__ import annotations

from windlass.api.framework import cursor
from windlass.api.framework.forms import Listed, Nothing, Paged
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role
from windlass.engine.manage.retry_replay import EffectView

table = Table("outbox")


class OutboxFilter(Paged, frozen=True, forbid_unknown_fields=True):
    """`dead` true: only dead effects; false: only waiting ones."""

    dead: bool | None = None


@table.add("GET", "/api/v1/outbox", Role.VIEWER)
async def list_outbox(call: Call[OutboxFilter, None]) -> Listed[EffectView]:
    """List waiting and dead effects, newest first."""
    query = call.query
    found = await call.engine.parts.repair.effects(
        call.namespace(query.namespace), dead=query.dead, after=cursor.to_position(query.after), limit=query.limit + 1
    )
    page, more = cursor.page_of(found, query.limit, lambda effect: (effect.created_at, effect.id))
    return Listed(page, more)


@table.add("POST", "/api/v1/outbox/{effect_id}/retry", Role.OPERATOR)
async def retry_effect(call: Call[None, Nothing]) -> EffectView:
    """Retry a dead effect. Its attempts are counted from zero."""
    return await call.engine.parts.repair.revive(await _find(call))


@table.add("DELETE", "/api/v1/outbox/{effect_id}", Role.OPERATOR)
async def discard_effect(call: Call[None, None]) -> EffectView:
    """Discard a dead effect."""
    return await call.engine.parts.repair.discard(await _find(call))


async def _find(call: Call[None, Nothing] | Call[None, None]) -> EffectView:
    effect = await call.engine.parts.repair.effect(call.id("effect_id"))
    call.reach(effect.namespace)
    return effect
