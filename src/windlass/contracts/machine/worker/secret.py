"""Keeps secrets out of logs and messages, and control characters out of logs."""

from __future__ import annotations

import logging
from collections.abc import Iterable

MASK = "***"


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Mask the secrets. The longest come first, since one may contain another."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


class SecretFormatter(logging.Formatter):
    """Masks secrets and control characters, so that foreign text can neither forge log lines nor control a terminal."""

    def __init__(self, name: str, secrets: list[str]) -> None:
        super().__init__(f"%(asctime)s [{name}] %(levelname)s %(message)s")
        self._secrets = secrets

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record), self._secrets)
