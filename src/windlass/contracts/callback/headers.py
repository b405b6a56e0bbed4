"""Headers that a queue adds to each push. A value may contain secrets of the server: `Bearer ${SHOP_TOKEN}`.

`${NAME}` is the server's variable `PUSH_SECRET_NAME`, so that no header can carry any other variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass.errors import Invalid

HEADERS_MAX, VALUE_MAX = 20, 4000
PREFIX = "PUSH_SECRET_"
OURS = frozenset({
    "host", "content-length", "content-type", "connection", "transfer-encoding", "te", "trailer", "upgrade", "expect",
    "keep-alive", "traceparent", "tracestate", "user-agent",
})  # fmt: skip
OURS_BEGIN = ("webhook-", "x-cloudtasks-", "proxy-")
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_SECRET = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_headers(field: str, headers: Mapping[str, str]) -> None:
    """Raise Invalid for an invalid header, or for one that the engine sets."""
    if len(headers) > HEADERS_MAX:
        raise Invalid(f"must be at most {HEADERS_MAX} headers", field=field)
    if len({name.lower() for name in headers}) < len(headers):
        raise Invalid("must not name a header twice", field=field)
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise Invalid("must be names of headers", field=field)
        if name.lower() in OURS or name.lower().startswith(OURS_BEGIN):
            raise Invalid("is set by the engine", field=f"{field}.{name}")
        if len(value) > VALUE_MAX or not _VALUE.fullmatch(value):
            raise Invalid("must be printable ASCII, without spaces around it", field=f"{field}.{name}")


def secret_names(headers: Mapping[str, str]) -> list[str]:
    return [name for value in headers.values() for name in _SECRET.findall(value)]


def push_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a server that headers may use, by the name that they use."""
    return {name.removeprefix(PREFIX): value for name, value in variables.items() if name.startswith(PREFIX)}


def fill_headers(headers: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The headers with their secrets filled in. Raises Invalid for a missing or unusable secret, without its value."""
    for name in secret_names(headers):
        if name not in secrets:
            raise Invalid(f"this server has no variable {PREFIX}{name}", field="delivery.headers")
    complete = {name: _SECRET.sub(lambda found: secrets[found[1]], value) for name, value in headers.items()}
    for name, value in complete.items():
        if not _VALUE.fullmatch(value):
            raise Invalid("a secret in it is not printable ASCII", field=f"delivery.headers.{name}")
    return complete
