"""How a server sends tasks out to workers that call back."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.core.target import PUBLIC, Targets, read_targets


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers call back (None: where the server listens), which addresses may be called, as the setting
    `push_targets` says it, and this machine with `loopback`; the secrets that headers of queues may name; and who we
    are to Google Cloud Tasks (None: the machine's own account)."""

    callback_url: str | None = None
    targets: str = PUBLIC
    loopback: bool = False
    secrets: Mapping[str, str] = {}
    google_token: str | None = None
    google_url: str | None = None

    @property
    def allowed(self) -> Targets:
        return read_targets(self.targets, loopback=self.loopback)
