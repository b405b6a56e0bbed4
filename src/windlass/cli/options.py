"""Flags that many commands share, and the settings that they set. An absent flag is None: see `settings`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter, Token

from windlass import settings
from windlass.cli.output import Unusable
from windlass.errors import Invalid
from windlass.sdk.duration import seconds
from windlass.settings import Loaded, Settings


def seconds_of(flag: str, text: str) -> float:
    """Reads a duration such as `90s`. A plain number is in seconds."""
    try:
        return seconds(flag, float(text) if text.replace(".", "", 1).isdigit() else text)
    except Invalid as error:
        raise Unusable(error.message) from None


def _read_duration(_type: object, tokens: Sequence[Token]) -> float:
    return seconds_of(tokens[0].keyword or "", tokens[0].value)


def _read_payload(_type: object, tokens: Sequence[Token]) -> msgspec.Raw:
    """Reads JSON from the command line, a file or standard input."""
    text, source = tokens[0].value, "--payload"
    try:
        if text == "-":
            text, source = sys.stdin.read(), "standard input"
        elif text.startswith("@"):
            text, source = Path(text[1:]).read_text(encoding="utf-8"), text[1:]
        msgspec.json.decode(text)
    except OSError as error:
        raise Unusable(f"--payload: {text[1:]} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{source} is not JSON: {error}. In a shell, quote it with single quotes") from None
    return msgspec.Raw(text.encode())


Json = Annotated[bool, Parameter(help="Print JSON.", show_default=False)]
Limit = Annotated[int, Parameter(help="Maximum number to list.")]
Duration = Annotated[float, Parameter(converter=_read_duration)]
Payload = Annotated[
    Any,  # msgspec.Raw, or None if it is not given
    Parameter(
        name=("--payload", "-p"), converter=_read_payload, allow_leading_hyphen=True,
        help="JSON text, `@FILE`, or `-` for standard input.",
    ),
]  # fmt: skip


def load(**flags: object) -> Loaded:
    """Returns the settings in force. Raises `Unusable` for an invalid one."""
    try:
        return settings.load(flags)
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None


def without_none(**fields: object) -> dict[str, Any]:
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True)
class DatabaseOptions:
    """Flags of commands that open the database."""

    database_url: Annotated[str | None, Parameter(help="PostgreSQL URL. Default: DATABASE_URL, else embedded.")] = None
    data_dir: Annotated[Path | None, Parameter(help="Data folder of the embedded PostgreSQL.")] = None
    json: Json = False

    def settings(self, **more: object) -> Settings:
        """`--data-dir` without `--database-url` selects the embedded database, whatever URL the settings have."""
        known = load(database_url=self.database_url, data_dir=self.data_dir, **more).settings
        embedded = self.data_dir is not None and self.database_url is None
        return replace(known, database_url=None) if embedded else known


NO_DATABASE = DatabaseOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class LogOptions:
    """Flags of commands that run until a signal stops them."""

    log_format: Annotated[Literal["text", "json"] | None, Parameter(help="Format of log lines. Default: text.")] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, Parameter(help="Lowest level to log. Default: info.")
    ] = None


NO_LOG = LogOptions()
