"""Workers: how busy each is, and whether it takes more work.

The lease of a worker decides whether it is alive. A draining worker finishes what it has and gets nothing new; when its
time is over, it counts as offline.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

import msgspec

from windlass.core.lease import check_about
from windlass.core.states import Instant
from windlass.core.validation import NAME_MAX, check_name, check_names, check_text
from windlass.errors import Invalid

LABELS_MAX = 64
LIMIT_MAX = 10_000


class WorkerState(StrEnum):
    ONLINE = "online"
    DRAINING = "draining"
    OFFLINE = "offline"


class Contract(StrEnum):
    """The contract of a worker."""

    SESSION = "session"  # our SDK, beside the database or through a server
    REGISTRY = "registry"


class Worker(msgspec.Struct, frozen=True):
    """One worker. Field order is the column order of the queries. `running` is the number of tasks that the engine
    counts; `active` is the number that the worker last reported, plus the tasks that it got since."""

    id: UUID
    lease_id: UUID
    namespace: str
    contract: Contract
    name: str
    queues: tuple[str, ...]
    kinds: tuple[str, ...] | None
    labels: dict[str, str]
    host: str
    pid: int
    version: str
    max_running: int
    incarnation: int
    registered_at: Instant
    heartbeat_at: Instant
    offline_at: Instant | None
    completed: int
    failed: int
    state: WorkerState
    lease_s: float
    expires_at: Instant
    active: int = 0
    running: int = 0


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The registration of a worker. Limits apply to the whole queue; the last one that is set counts."""

    namespace: str
    queue: str
    kinds: tuple[str, ...]
    host: str = ""
    pid: int = 0
    version: str = ""
    max_running: int = 1
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    queue_limit: int | None = None
    kind_limits: Mapping[str, int] = msgspec.field(default_factory=dict)


class WorkerHeartbeat(msgspec.Struct, frozen=True):
    """A heartbeat: how many attempts run, and how many ended since the last one. `lease_id` names an incarnation; None
    is the current one. Without `active` it only shows that the worker is alive."""

    worker_id: UUID
    active: int | None = None
    completed: int = 0
    failed: int = 0
    lease_id: UUID | None = None


def check_registration(registration: Registration) -> None:
    """Raise Invalid naming the first field that cannot be accepted."""
    check_name("namespace", registration.namespace)
    check_name("queue", registration.queue)
    if not registration.kinds:
        raise Invalid("cannot be empty", field="kinds")
    check_names("kinds", registration.kinds)
    check_about(registration.host, registration.pid, registration.version)
    if len(registration.labels) > LABELS_MAX:
        raise Invalid(f"must be at most {LABELS_MAX}", field="labels")
    for key, value in registration.labels.items():
        check_name("labels", label_of(key, value))
    for kind in registration.kind_limits:
        check_name("kind_limits", kind)


def label_of(key: str, value: str) -> str:
    """A label as tasks can require it: `gpu`, or `region=eu`."""
    check_text("labels", key, NAME_MAX)
    return f"{key}={value}" if value else key


def limit_of(given: int) -> int | None:
    """A requested limit; 0 and less mean none."""
    return None if given <= 0 else min(given, LIMIT_MAX)
