"""The log of servers and workers: lines for people, or one JSON object a line for whoever collects them.

The parts of Windlass log by the standard library and know nothing of this; what they give as `extra` becomes fields.
Everything goes to standard error, since standard output belongs to the answers of commands.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from windlass.settings import Settings, misspelt

log = logging.getLogger("windlass.settings")

# Libraries whose details are nobody's business here: `debug` is for what Windlass and the program itself say.
OTHERS = ("asyncio", "asyncpg", "boto3", "botocore", "grpc", "nats", "urllib3", "uvicorn.error")


def set_up_logs(settings: Settings) -> None:
    """From now on every logger of this process speaks in the format of the settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_described(),
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendered(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for chatty in OTHERS:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    for variable, near in misspelt(os.environ).items():
        log.warning("the variable %s means nothing; did you mean %s?", variable, near)


def _described() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
    ]


def _rendered(settings: Settings) -> list[Processor]:
    if settings.log_format == "json":
        return [
            structlog.processors.format_exc_info,  # as text: a traceback with local variables would tell secrets
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str),
        ]
    plain = structlog.dev.plain_traceback
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return [_short, structlog.dev.ConsoleRenderer(colors=coloured, timestamp_key="at", exception_formatter=plain)]


def _short(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """A person needs the time of day only."""
    event["at"] = str(event["at"])[11:19]
    return event
