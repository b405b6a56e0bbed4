"""Queues: delivery to workers, retry and timeout defaults, limits, pause and drain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from windlass.api.framework import cursor
from windlass.api.framework.forms import Count, In, Listed, Name, Nothing, Paged, Timeout
from windlass.api.framework.route import Call, Table
from windlass.core.access import Role, check_role
from windlass.core.delivery import PULL, Delivery, RetryForm, any_delivery, retry_of
from windlass.core.queue import QueueConfig, Rate
from windlass.core.states import State
from windlass.core.validation import check_name
from windlass.engine.manage.queues import SECRET_OVERLAP_S, QueueView

table = Table("queues")
if TYPE_CHECKING:
    AnyDelivery = Delivery
else:
    AnyDelivery = any_delivery()


class RateForm(Struct, frozen=True, forbid_unknown_fields=True):
    """At most `count` starts in any window of `period_s` seconds."""

    count: Count
    period_s: Timeout


class LimitsForm(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of tasks that run at once (in total, per kind, per concurrency key) and of starts in a period."""

    max_running: Count | None = None
    max_running_per_kind: dict[Name, Count] = {}
    max_running_per_key: Count | None = None
    rate: RateForm | None = None


class QueueOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration of a queue. A missing field is set to its default, except `paused`, which does not change."""

    delivery: AnyDelivery = PULL
    retry: RetryForm | None = None
    limits: LimitsForm = LimitsForm()
    paused: bool | None = None


class QueueForm(Struct, frozen=True, kw_only=True):
    """A queue. `counts` does not include succeeded tasks. `signing_secret` is shown to admins, for queues that push or
    call a URL."""

    name: str
    namespace: str
    delivery: AnyDelivery
    retry: RetryForm
    limits: LimitsForm
    paused: bool
    counts: dict[str, int]
    signing_secret: str | None = None


class QueueDrain(Struct, frozen=True, forbid_unknown_fields=True):
    """The time to wait until no task runs."""

    wait_s: Annotated[float, Meta(ge=0, le=300)] = 0.0


class RotateOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """The time for which pushes and calls also carry a signature with the old secret."""

    overlap_s: Annotated[float, Meta(ge=0, le=30 * 86400)] = SECRET_OVERLAP_S


@table.add("PUT", "/api/v1/queues/{name}", Role.OPERATOR)
async def put_queue(call: Call[In, QueueOrder]) -> QueueForm:
    """Configure a queue. If programs on the server run its tasks, or its pushes carry secrets of the server, an admin
    key for all namespaces is required."""
    (namespace, queue), order = _queue(call), call.body
    if order.delivery.needs_server_admin:
        check_role(call.principal, Role.ADMIN)
        call.reach(None)
    await call.engine.keys.declare_namespace(namespace)
    view = await call.engine.queues.put(
        queue,
        namespace=namespace,
        delivery=order.delivery,
        retry=order.retry,
        limits=_config(order.limits),
        paused=order.paused,
    )
    return _form(call, namespace, view)


@table.add("GET", "/api/v1/queues", Role.VIEWER)
async def list_queues(call: Call[Paged, None]) -> Listed[QueueForm]:
    """List queues that are configured or have tasks, by name."""
    namespace = call.namespace(call.query.namespace)
    beyond = cursor.to_name(call.query.after) or ""
    found = [view for view in await call.engine.queues.list(namespace) if view.name > beyond]
    page = found[: call.query.limit]
    more = page[-1].name if len(found) > len(page) else None
    return Listed([_form(call, namespace, view) for view in page], cursor.of_name(more))


@table.add("GET", "/api/v1/queues/{name}", Role.VIEWER)
async def get_queue(call: Call[In, None]) -> QueueForm:
    """Get a queue."""
    namespace, queue = _queue(call)
    return _form(call, namespace, await call.engine.queues.get(queue, namespace=namespace))


@table.add("POST", "/api/v1/queues/{name}/pause", Role.OPERATOR)
async def pause_queue(call: Call[In, Nothing]) -> QueueForm:
    """Pause a queue. Its tasks are not claimed; running tasks continue."""
    return await _pause(call, paused=True)


@table.add("POST", "/api/v1/queues/{name}/resume", Role.OPERATOR)
async def resume_queue(call: Call[In, Nothing]) -> QueueForm:
    """Resume a paused queue."""
    return await _pause(call, paused=False)


@table.add("POST", "/api/v1/queues/{name}/drain", Role.OPERATOR)
async def drain_queue(call: Call[In, QueueDrain]) -> QueueForm:
    """Pause a queue, and wait up to `wait_s` seconds until no task runs. `counts.running` tasks still run."""
    namespace, queue = _queue(call)
    view = await call.engine.queues.drain(queue, namespace=namespace, wait_s=call.body.wait_s)
    return _form(call, namespace, view)


@table.add("POST", "/api/v1/queues/{name}/rotate-secret", Role.ADMIN)
async def rotate_secret(call: Call[In, RotateOrder]) -> QueueForm:
    """Rotate the signing secret of a queue. For `overlap_s` seconds, the old secret signs pushes and calls too."""
    namespace, queue = _queue(call)
    view = await call.engine.queues.rotate_secret(queue, namespace=namespace, overlap_s=call.body.overlap_s)
    return _form(call, namespace, view)


async def _pause(call: Call[In, Nothing], *, paused: bool) -> QueueForm:
    namespace, queue = _queue(call)
    return _form(call, namespace, await call.engine.queues.pause(queue, namespace=namespace, paused=paused))


def _queue(call: Call[In, Any]) -> tuple[str, str]:
    """The namespace and the name of the queue in the path."""
    check_name("queue", call.path["name"])
    return call.namespace(call.query.namespace), call.path["name"]


def _config(limits: LimitsForm) -> QueueConfig:
    rate = None if limits.rate is None else Rate(limits.rate.count, limits.rate.period_s)
    return QueueConfig(False, limits.max_running, limits.max_running_per_kind, limits.max_running_per_key, rate)


def _form(call: Call[Any, Any], namespace: str, view: QueueView) -> QueueForm:
    settings, config = view.settings, view.settings.config
    rate = None if config.rate is None else RateForm(config.rate.count, config.rate.period_s)
    is_admin = call.principal.may(Role.ADMIN)
    shown = is_admin and settings.delivery.signed
    secrets = call.engine.parts.secrets.signing_secrets(settings, namespace, view.name) if shown else []
    return QueueForm(
        name=view.name,
        namespace=namespace,
        delivery=settings.delivery if is_admin else settings.delivery.without_secrets(),
        retry=retry_of(settings.policy, settings.delivery),
        limits=LimitsForm(config.max_running, dict(config.max_running_per_kind), config.max_running_per_key, rate),
        paused=config.paused,
        counts={state.value: view.counts[state] for state in State if state in view.counts},
        signing_secret=next(iter(secrets), None),
    )
