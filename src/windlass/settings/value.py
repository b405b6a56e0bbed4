"""Reads the values of settings from text, and checks them.

Every reader and every check raises `Invalid` without a field; the caller adds the setting and its origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlsplit, urlunsplit

from windlass.core.validation import COUNT_MAX, SECONDS_MAX, check_count, check_name, check_seconds
from windlass.errors import Invalid

Check = Callable[[Any], object]

_PASSWORD_OPTION = re.compile(r"(?<![^&])(password|sslpassword)=[^&]*", re.IGNORECASE)


class Address(NamedTuple):
    """Address of a server, written `HOST:PORT`, with brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(raw: object) -> Address:
    """Reads `127.0.0.1:8420`, `localhost:8420` or `[::1]:8420`. Port 0 takes any free port."""
    if isinstance(raw, Address):
        return raw
    host, separator, port = raw.rpartition(":") if isinstance(raw, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or (":" in host and not bracketed):
        raise Invalid("must be HOST:PORT, such as 127.0.0.1:8420")
    if int(port) > 65535:
        raise Invalid("the port must be at most 65535")
    return Address(host.strip("[]"), int(port))


LOOPBACK = ("127.0.0.1", "::1", "localhost")


def is_loopback(address: Address) -> bool:
    return address.host in LOOPBACK


def listed(names: str | None) -> list[str]:
    """The parts of a comma-separated list."""
    return [part.strip() for part in (names or "").split(",") if part.strip()]


def without_password(url: str) -> str:
    """A URL with its password masked, both before the host and in the query."""
    parts = urlsplit(url)
    netloc = parts.netloc
    if parts.password is not None:
        user, _, place = netloc.rpartition("@")
        netloc = f"{user.partition(':')[0]}:***@{place}"
    query = _PASSWORD_OPTION.sub(r"\1=***", parts.query)
    if (netloc, query) == (parts.netloc, parts.query):
        return url
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def without_options(url: str) -> str:
    """A URL without its password and its query."""
    return without_password(url).partition("?")[0]


# --------------------------------------------------------------------------------------------- from text to values


def read_value(kind: Any, raw: object) -> Any:
    """Converts a raw value to this type."""
    if get_origin(kind) is not Literal:
        return _READERS[kind](raw)
    if raw not in get_args(kind):
        raise Invalid(f"must be {' or '.join(get_args(kind))}")
    return raw


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise Invalid("must be text, and not empty")
    return raw


def _truth(raw: object) -> bool:
    word = raw.lower() if isinstance(raw, str) else raw
    if word in (True, "true", "yes", "on", "1"):
        return True
    if word in (False, "false", "no", "off", "0"):
        return False
    raise Invalid("must be true or false")


def _number(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, str) else raw
    except ValueError:
        value = None
    check_seconds("", value)
    return float(value)  # type: ignore[arg-type]


def _whole(raw: object) -> int:
    value = int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 10 else raw
    check_count("", value, least=1, most=2**31 - 1)
    return int(value)  # type: ignore[call-overload,no-any-return]


def _path(raw: object) -> Path:
    if isinstance(raw, Path):
        return raw
    if not (text := _text(raw)).isprintable():
        raise Invalid("must be the path of a folder")
    return Path(text)


_READERS: dict[Any, Callable[[object], object]] = {
    str: _text,
    bool: _truth,
    float: _number,
    int: _whole,
    Path: _path,
    Address: read_address,
}


# --------------------------------------------------------------------------------------------- checks


def name(value: str) -> None:
    check_name("", value)


def seconds(least: float = 0.0, most: float = SECONDS_MAX) -> Check:
    return lambda value: check_seconds("", value, least=least, most=most)


def count(least: int = 1, most: int = COUNT_MAX) -> Check:
    return lambda value: check_count("", value, least=least, most=most)


def names_of(*allowed: str) -> Check:
    """A comma-separated list of some of these."""

    def check(names: str) -> None:
        for name in listed(names):
            if name not in allowed:
                raise Invalid(f"{name!r} is not one of {', '.join(allowed)}")

    return check


def database_url(url: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        raise Invalid("must begin with postgresql://")


def http_url(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise Invalid("must begin with http:// or https://, such as http://127.0.0.1:8420")


def nats_urls(urls: str) -> None:
    for url in urls.split(","):
        if urlsplit(url).scheme not in ("nats", "tls", "ws", "wss") or not urlsplit(url).hostname:
            raise Invalid("must begin with nats:// or tls://, such as nats://127.0.0.1:4222")


def plain_uri(uri: str) -> None:
    if not urlsplit(uri).scheme or "://" not in uri or any(mark in uri for mark in "?#%\\ "):
        raise Invalid("must be a plain URI, such as s3://bucket/folder")
