"""How servers and workers reach the carriers, and the errors for a carrier that is not set up."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec

from windlass.errors import Invalid


class CarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of all carriers. `nats_credentials` is a NATS credentials file. Credentials for AWS are found as its
    own tools find them. Settings and flags of workers have the same names."""

    nats_url: str | None = None
    nats_credentials: Path | None = None
    aws_region: str | None = None
    aws_endpoint_url: str | None = None

    @property
    def credential_files(self) -> tuple[Path, ...]:
        """Files that no operator may read."""
        return () if self.nats_credentials is None else (self.nats_credentials,)

    @classmethod
    def of(cls, settings: object) -> Self:
        """The carrier options among other settings."""
        return cls(**{name: getattr(settings, name) for name in cls.__struct_fields__})


NO_CARRIERS = CarrierOptions()


def not_installed(extra: str) -> Invalid:
    return Invalid(f"a package is missing: pip install 'windlass-engine[{extra}]'")


def not_set(name: str, carrier: str) -> Invalid:
    return Invalid(f"must be set: {carrier} carries the wake-ups of this queue", field=name)
