"""Keeps secrets out of logs and messages, whoever wrote them, and control characters out of logs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

MASK = "***"


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Without the secrets; the longest come first, since one may contain another."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


class Discreet(logging.Formatter):
    """A log line is one line, or a traceback; what others sent cannot forge another or colour the terminal."""

    def __init__(self, name: str, secrets: list[str]) -> None:
        super().__init__(f"%(asctime)s [{name}] %(levelname)s %(message)s")
        self._secrets = secrets

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record), self._secrets)
