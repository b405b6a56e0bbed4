"""How the carriers are reached, on either side, and what is said where one is not to be had."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from windlass.core.error import Invalid


class CarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`nats_credentials` is a file of NATS. Who we are to AWS is found where its own tools look. Settings, and flags of
    workers, have the same names."""

    nats_url: str | None = None
    nats_credentials: Path | None = None
    aws_region: str | None = None
    aws_endpoint_url: str | None = None

    @property
    def credential_files(self) -> tuple[Path, ...]:
        """Files that nobody else may read."""
        return () if self.nats_credentials is None else (self.nats_credentials,)

    @classmethod
    def of(cls, known: object) -> Self:
        """Those of somebody who knows more than them."""
        return cls(**{name: getattr(known, name) for name in cls.__struct_fields__})


NO_CARRIERS = CarrierOptions()


def not_installed(extra: str) -> Invalid:
    return Invalid(f"this needs more than is installed: pip install 'windlass-engine[{extra}]'")


def not_set(name: str, carrier: str) -> Invalid:
    return Invalid(f"{carrier} carries the wake-ups of this queue: say where it is", field=name)
