"""What machines are told of where they upload: the blob store of the server, in the names of their contract."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

_R2 = re.compile(r"https?://([0-9a-f]+)\.r2\.cloudflarestorage\.com")


class StoreAddress(Protocol):
    """Where objects are kept; see `blobs.address`."""

    @property
    def scheme(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def options(self) -> Mapping[str, str]: ...


def storage_variables(address: StoreAddress, variables: Mapping[str, str]) -> dict[str, str]:
    """What machines are told of where they upload, in the names of their contract, if that is S3 or like it. Variables
    of these names that this server has itself beat what the address says, for who wants machines to have less."""
    told: dict[str, str | None] = {}
    if address.scheme == "s3":
        options = address.options
        account = _R2.match(options.get("endpoint", ""))
        told = {
            "R2_ACCOUNT_ID": account[1] if account else "none",
            "R2_ACCESS_KEY_ID": options.get("access_key_id") or variables.get("AWS_ACCESS_KEY_ID"),
            "R2_SECRET_ACCESS_KEY": options.get("secret_access_key") or variables.get("AWS_SECRET_ACCESS_KEY"),
            "R2_SESSION_TOKEN": options.get("session_token") or variables.get("AWS_SESSION_TOKEN"),
            "R2_BUCKET": address.place,
            "R2_ENDPOINT": options.get("endpoint") or variables.get("AWS_ENDPOINT_URL"),
            "R2_REGION": options.get("region") or variables.get("AWS_REGION"),
            "R2_PREFIX": address.prefix or None,
        }
    told |= {name: variables[name] for name in told if name in variables}
    return {name: value for name, value in told.items() if value}
