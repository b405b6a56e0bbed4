"""Checks of values from outside: type, shape and range, each with an error that names the field.

Nothing that fails here has reached the database. Free text of people and workers is made storable instead of refused
(`clean_text`), since losing it would be worse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from windlass.core.text import TEXT_MAX as TEXT_MAX
from windlass.core.text import clean, clean_data
from windlass.errors import Invalid, TooLarge

K = TypeVar("K")
V = TypeVar("V")

NAME_MAX = 200
OWN_QUEUES = "windlass."  # how the names of our own queues begin
KEY_MAX = 500
PAYLOAD_MAX_BYTES = 2 * 1024 * 1024  # in a row; what is longer is kept as an object
LARGE_MAX_BYTES = 128 * 1024 * 1024
URL_MAX = 2000
SECONDS_MAX = 100 * 365 * 86400.0
COUNT_MAX = 1_000_000
_URL = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?", re.IGNORECASE)
_read_json = msgspec.json.Decoder(msgspec.Raw).decode  # reads all of it and builds no objects
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters and surrogates


def check_type(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise Invalid(f"must be {kind.__name__}, not {type(value).__name__}", field=field)


def check_name(field: str, value: object) -> None:
    """A name of ours: queue, kind, namespace, worker, label."""
    if value.__class__ is not str or not _is_name(value):
        check_text(field, value, NAME_MAX)


def check_queue_of_users(field: str, queue: str) -> None:
    """The tasks of our own queues are made and run by the engine."""
    if queue.startswith(OWN_QUEUES):
        raise Invalid(f"queues that begin with {OWN_QUEUES} belong to Windlass", field=field)


@lru_cache(maxsize=4096)
def _is_name(value: object) -> bool:
    """Cached, since the same few names come with every task."""
    try:
        check_text("", value, NAME_MAX)
    except Invalid:
        return False
    return True


def check_ids(field: str, values: object) -> None:
    for value in check_list(field, values):
        check_type(field, value, UUID)


def check_attempt(of: Any) -> None:
    """The fields `task_id`, `attempt` and `lease_id` of a command or report."""
    check_type("task_id", of.task_id, UUID)
    check_type("lease_id", of.lease_id, UUID)
    check_count("attempt", of.attempt, least=1, most=2**31 - 1)


def check_names(field: str, values: object) -> None:
    for value in check_list(field, values):
        check_name(field, value)


def check_list(field: str, values: object) -> tuple[object, ...] | list[object]:
    if not isinstance(values, tuple | list):
        raise Invalid(f"must be a list, not {type(values).__name__}", field=field)
    return values


def check_mapping(field: str, values: Mapping[K, V]) -> dict[K, V]:
    """Returns a copy, so that later changes by the caller have no effect."""
    if not isinstance(values, Mapping):
        raise Invalid(f"must be a mapping, not {type(values).__name__}", field=field)
    return dict(values)


def check_able(field: str, value: object, *names: str) -> None:
    """An object of the caller that has these methods."""
    for name in names:
        if isinstance(value, type) or not callable(getattr(value, name, None)):
            raise Invalid(f"must have a method {name}; {type(value).__name__} has none", field=field)


def check_callable(field: str, value: object) -> None:
    if not callable(value):
        raise Invalid(f"must be a function, not {type(value).__name__}", field=field)


def check_text(field: str, value: object, longest: int) -> None:
    """Text that PostgreSQL can store and a person can read: UTF-8, no control characters, not empty."""
    if not isinstance(value, str):
        raise Invalid(f"must be text, not {type(value).__name__}", field=field)
    if not 0 < len(value) <= longest:
        raise Invalid(f"must have 1 to {longest} characters, not {len(value)}", field=field)
    if not value.isprintable() and _UNFIT.search(value):
        raise Invalid("must not contain control characters or text that is not UTF-8", field=field)


def check_url(field: str, value: object) -> None:
    check_text(field, value, URL_MAX)
    if not is_url(str(value)):
        raise Invalid("must be an http or https URL without a user", field=field)


def is_url(text: str) -> bool:
    return _URL.fullmatch(text) is not None


def clean_text(field: str, value: object, longest: int = TEXT_MAX) -> str:
    """Free text, cut, and with characters replaced that PostgreSQL cannot store."""
    if not isinstance(value, str):
        raise Invalid(f"must be text, not {type(value).__name__}", field=field)
    return clean(value, longest)


def clean_json(value: object, longest: int | None = None) -> object:
    """A decoded JSON value whose texts PostgreSQL can store."""
    if isinstance(value, str):
        return clean_data(value if longest is None else value[:longest])
    if isinstance(value, list):
        return [clean_json(item, longest) for item in value]
    if isinstance(value, dict):
        return {str(clean_json(name, longest)): clean_json(item, longest) for name, item in value.items()}
    return value


def check_payload(field: str, value: object, most: int = PAYLOAD_MAX_BYTES) -> None:
    if value.__class__ is not bytes or not isinstance(value, bytes):
        raise Invalid(f"must be bytes of JSON text, not {type(value).__name__}", field=field)
    if len(value) > most:
        raise TooLarge(f"has {len(value)} bytes, the limit is {most}", field=field, limit=most)
    try:
        _read_json(value)
        if not value.isascii():
            value.decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"is not JSON text in UTF-8: {error}", field=field) from None
    except RecursionError:
        raise Invalid("is nested too deeply", field=field) from None


def check_object(field: str, value: object) -> None:
    """JSON text of an object."""
    check_payload(field, value)
    if not isinstance(value, bytes) or not value.lstrip().startswith(b"{"):
        raise Invalid("must be a JSON object", field=field)


def check_instant(field: str, value: object) -> None:
    if not isinstance(value, datetime):
        raise Invalid(f"must be a datetime, not {type(value).__name__}", field=field)
    if value.tzinfo is None or value.utcoffset() is None:
        raise Invalid("must have a time zone", field=field)
    if not 1970 <= value.year <= 9000:
        raise Invalid("is too far away", field=field)


def check_count(field: str, value: object, *, least: int = 0, most: int = COUNT_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Invalid(f"must be a whole number from {least} to {most}", field=field)


def check_seconds(field: str, value: object, *, least: float = 0.0, most: float = SECONDS_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid("must be a number", field=field)
    if not least <= value <= most:  # refuses NaN and infinity too
        raise Invalid(f"must lie between {least:g} and {most:g}", field=field)
