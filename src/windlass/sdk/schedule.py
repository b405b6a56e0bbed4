"""Schedules that an app declares: which handler, when, with which arguments. Checked here; nothing fires them yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from windlass.core.check import check_mapping, check_name
from windlass.core.cron import Cron, parse_cron
from windlass.core.error import Invalid
from windlass.sdk.handler import Handler


class Schedule(msgspec.Struct, frozen=True):
    """A task that is to be submitted again and again."""

    name: str
    cron: Cron
    timezone: str
    kind: str
    payload: bytes


def made_schedule(
    handler: Handler[..., Any], cron: str, name: str | None, timezone: str, arguments: Mapping[str, Any] | None
) -> Schedule:
    """Everything that can be wrong with it is said where it is declared."""
    name = handler.kind if name is None else name
    check_name("name", name)
    check_name("timezone", timezone)
    try:
        ZoneInfo(timezone)
    except (OSError, ValueError, KeyError):
        raise Invalid(f"there is no time zone {timezone!r}", field="timezone") from None
    given = {} if arguments is None else check_mapping("arguments", arguments)
    for word in given:
        check_name("arguments", word)
    return Schedule(name, parse_cron(cron), timezone, handler.kind, handler.schema.payload((), given))
