"""The options of a server that pushes tasks."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.net.targets import PUBLIC, Targets, read_targets


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server pushes tasks. `callback_url` is where workers call back (None: where the server listens). `targets`
    is the setting `push_targets`; `loopback` also allows this machine. Headers of queues may contain `secrets`.
    `google_token` is the token for Google Cloud Tasks (None: that of the machine's own account)."""

    callback_url: str | None = None
    targets: str = PUBLIC
    loopback: bool = False
    secrets: Mapping[str, str] = {}
    google_token: str | None = None
    google_url: str | None = None

    @property
    def allowed(self) -> Targets:
        return read_targets(self.targets, loopback=self.loopback)
