"""The environment variables with the upload target of a machine: the blob store of the server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

_R2 = re.compile(r"https?://([0-9a-f]+)\.r2\.cloudflarestorage\.com")


class StoreAddress(Protocol):
    """The address of the blob store; see `blobs.address`."""

    @property
    def scheme(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def prefix(self) -> str: ...
    @property
    def options(self) -> Mapping[str, str]: ...


def storage_variables(address: StoreAddress, variables: Mapping[str, str]) -> dict[str, str]:
    """The R2_* variables of the contract for a blob store with the S3 API. Variables of these names in the environment
    of the server take precedence, so that machines can have keys with fewer permissions."""
    storage: dict[str, str | None] = {}
    if address.scheme == "s3":
        options = address.options
        account = _R2.match(options.get("endpoint", ""))
        storage = {
            "R2_ACCOUNT_ID": account[1] if account else "none",
            "R2_ACCESS_KEY_ID": options.get("access_key_id") or variables.get("AWS_ACCESS_KEY_ID"),
            "R2_SECRET_ACCESS_KEY": options.get("secret_access_key") or variables.get("AWS_SECRET_ACCESS_KEY"),
            "R2_SESSION_TOKEN": options.get("session_token") or variables.get("AWS_SESSION_TOKEN"),
            "R2_BUCKET": address.place,
            "R2_ENDPOINT": options.get("endpoint") or variables.get("AWS_ENDPOINT_URL"),
            "R2_REGION": options.get("region") or variables.get("AWS_REGION"),
            "R2_PREFIX": address.prefix or None,
        }
    storage |= {name: variables[name] for name in storage if name in variables}
    return {name: value for name, value in storage.items() if value}
