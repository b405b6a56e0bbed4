"""How the carriers are reached, on either side, and what is said where one is not to be had."""

from __future__ import annotations

from pathlib import Path

import msgspec

from windlass.core.error import Invalid


class CarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`nats_credentials` is a file of NATS. Who we are to AWS is found where its own tools look."""

    nats_url: str | None = None
    nats_credentials: Path | None = None
    aws_region: str | None = None
    aws_endpoint_url: str | None = None


NO_CARRIERS = CarrierOptions()


def not_installed(extra: str) -> Invalid:
    return Invalid(f"this needs more than is installed: pip install 'windlass[{extra}]'")


def not_set(name: str, carrier: str) -> Invalid:
    return Invalid(f"{carrier} carries the wake-ups of this queue: say where it is", field=name)
