"""Log output of servers and workers: text, or one JSON object per line for log collectors.

Other modules use `logging` of the standard library and do not know this one; their `extra` becomes fields. Logs go to
standard error, because standard output carries the results of commands.
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

# Libraries that log warnings and errors only: `debug` is for Windlass and the user's program.
LIBRARIES = ("asyncio", "asyncpg", "boto3", "botocore", "grpc", "nats", "urllib3", "uvicorn.error")


def set_up_logs(settings: Settings) -> None:
    """Configures all loggers of this process as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.stdlib.ExtraAdder(),
                structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            ],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for library in LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    for variable, near in misspelt(os.environ).items():
        log.warning("%s is not a setting; did you mean %s?", variable, near)


def _renderers(settings: Settings) -> list[Processor]:
    if settings.log_format == "json":
        return [
            structlog.processors.format_exc_info,  # as text: a traceback with local variables could leak secrets
            structlog.processors.EventRenamer("message"),
            structlog.processors.JSONRenderer(default=str),
        ]
    plain = structlog.dev.plain_traceback
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return [_short, structlog.dev.ConsoleRenderer(colors=coloured, timestamp_key="at", exception_formatter=plain)]


def _short(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Shortens the timestamp to the time of day."""
    event["at"] = str(event["at"])[11:19]
    return event
