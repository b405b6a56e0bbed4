"""Delivery `push`: the engine sends each task to a URL, and the worker calls back."""

from __future__ import annotations

import re
from typing import Annotated, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.contracts.callback.headers import check_headers, secret_names
from windlass.core.delivery import HIDDEN, MS_MAX, TOKEN_TTL_MAX_S, Delivery, Ms, Outgoing, Url, Word
from windlass.core.validation import check_names, check_url
from windlass.errors import Invalid

Amount = Annotated[int, Meta(ge=0, le=2**53)]

PUSH = "push"
HEARTBEAT_TIMEOUT_MS = 90_000
_PATH_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.:_-]{0,199}")


class Resources(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a task of the queue may use. The envelope carries it to the worker."""

    memory_bytes: Amount = 536_870_912
    cpu_millicores: Amount = 1000
    timeout_ms: Ms = 3_600_000


class CloudTasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Google Cloud Tasks delivers the pushes. It calls the worker as this service account, if one is given."""

    project: Word
    location: Word
    queue: Word
    service_account_email: Word | None = None
    audience: Url | None = None
    dispatch_deadline_s: Annotated[int, Meta(ge=15, le=1800)] = 600

    def check(self) -> None:
        """Check the parts that become parts of a URL path, so that they cannot lead to another path."""
        for name in ("project", "location", "queue"):
            if not _PATH_WORD.fullmatch(getattr(self, name)):
                raise Invalid("must be letters, digits, dashes, dots or colons", field=f"delivery.cloud_tasks.{name}")
        if self.audience is not None:
            check_url("delivery.cloud_tasks.audience", self.audience)


class Push(Delivery, frozen=True, tag="push", kw_only=True):
    """The engine sends each task to a URL; the worker calls back. Without `heartbeat_timeout_ms`, the timeout is the
    default, or three intervals if the default would be too short. A task that requires labels is sent only if `labels`
    has them all. `headers` go with each push; `${NAME}` in a value is the server's variable `PUSH_SECRET_NAME`."""

    url: Url
    heartbeat_interval_ms: Ms = 30_000
    heartbeat_timeout_ms: Ms | None = None
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 30_000
    dispatch_timeout_ms: Ms = 30_000
    token_ttl_seconds: Annotated[int, Meta(ge=1, le=TOKEN_TTL_MAX_S)] = 3600
    labels: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    resources: Resources = Resources()
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    cloud_tasks: CloudTasks | None = None

    mark = 3
    effect = PUSH

    def checked(self) -> Self:
        check_url("delivery.url", self.url)
        check_names("delivery.labels", self.labels)
        check_headers("delivery.headers", self.headers)
        if HIDDEN in self.headers.values():
            raise Invalid(
                f"a value is {HIDDEN}, the mask of a hidden value: send the value itself", field="delivery.headers"
            )
        if self.cloud_tasks is not None:
            self.cloud_tasks.check()
        # The timeout is at least two intervals, so that a worker survives one lost heartbeat.
        interval_ms = self.heartbeat_interval_ms
        if self.heartbeat_timeout_ms is None:
            enough = 2 * interval_ms <= HEARTBEAT_TIMEOUT_MS
            return replace(self, heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS if enough else min(3 * interval_ms, MS_MAX))
        if self.heartbeat_timeout_ms < 2 * interval_ms:
            raise Invalid("must be at least twice heartbeat_interval_ms", field="delivery.heartbeat_timeout_ms")
        return self

    @property
    def outgoing(self) -> Outgoing:
        """Expired attempts are searched twice per interval, so half an interval of slack costs no extra delay."""
        half_ms = self.heartbeat_interval_ms // 2
        return Outgoing(PUSH, self.heartbeat_timeout_ms or HEARTBEAT_TIMEOUT_MS, half_ms, half_ms, self.labels)

    @property
    def needs_server_admin(self) -> bool:
        return bool(secret_names(self.headers))

    def without_secrets(self) -> Self:
        return replace(self, headers=dict.fromkeys(self.headers, HIDDEN))

    @property
    def target_url(self) -> str:
        return self.url

    @property
    def signed(self) -> bool:
        return True

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000
