"""Delivery `machine`: a launcher starts a machine that lives for one task."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.core.delivery import HIDDEN, MS_MAX, Command, Delivery, Ms, Outgoing, Variable, Word
from windlass.core.validation import check_name, check_text
from windlass.errors import Invalid

LAUNCH = "launch"
LAUNCH_TIMEOUT_MS = 3_600_000


class Machine(Delivery, frozen=True, tag="machine", kw_only=True, omit_defaults=True):
    """A launcher starts a machine that lives for one task. `command` runs on the server's host (launcher process) or
    replaces the command of the `image` (docker, kubernetes, fly). `secrets` names variables of the server that the
    machine also gets. The machine has `run_timeout_ms` from its start to its callback; it gets the timeouts of upload
    and callback as variables. Its result is kept for `keep_object_ms`."""

    launcher: Word
    command: Command | None = None
    image: Word | None = None
    region: Word | None = None
    cpus: Annotated[int, Meta(ge=1, le=1024)] = 2
    memory_mb: Annotated[int, Meta(ge=16, le=16_777_216)] = 1024
    env: dict[Variable, Annotated[str, Meta(max_length=10_000)]] = msgspec.field(default_factory=dict)
    secrets: Annotated[tuple[Variable, ...], Meta(max_length=100)] = ()
    spawn_timeout_ms: Ms = 30_000
    run_timeout_ms: Ms = 600_000
    upload_timeout_ms: Ms = 120_000
    callback_timeout_ms: Ms = 10_000
    cancel_grace_period_ms: Annotated[int, Meta(ge=0, le=MS_MAX)] = 10_000
    keep_object_ms: Ms = 86_400_000
    callback_auth: Literal["required", "optional"] = "required"

    mark = 5
    effect = LAUNCH
    runs_programs = True
    max_attempts, max_losses = 1, 0  # a task runs on a second machine only if a user retries it

    def checked(self) -> Self:
        check_name("delivery.launcher", self.launcher)
        for word in self.command or ():
            check_text("delivery.command", word, 4000)
        for name, value in self.env.items():
            if "\x00" in value:
                raise Invalid("must not contain a NUL", field=f"delivery.env.{name}")
        return self

    def without_secrets(self) -> Self:
        return replace(self, env=dict.fromkeys(self.env, HIDDEN))

    @property
    def outgoing(self) -> Outgoing:
        return Outgoing(LAUNCH, LAUNCH_TIMEOUT_MS, 0, 1000)

    @property
    def cancel_grace_s(self) -> float:
        return self.cancel_grace_period_ms / 1000
