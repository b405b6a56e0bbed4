"""How a server sends tasks out to workers that call back."""

from __future__ import annotations

import msgspec


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where workers call back (None: where the server listens), whether they may be on this machine, and who we are to
    Google Cloud Tasks (None: the machine's own account)."""

    callback_url: str | None = None
    loopback: bool = False
    google_token: str | None = None
    google_url: str | None = None
