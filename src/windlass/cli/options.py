"""Flags that many commands share, and the settings that they set. An absent flag is None: see `settings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec.structs import replace

from windlass import settings
from windlass.cli.output import Unusable
from windlass.errors import Invalid
from windlass.settings import Loaded, Settings

Json = Annotated[bool, Parameter(help="Print JSON.", show_default=False)]


def load(**flags: object) -> Loaded:
    """Returns the settings in force. Raises `Unusable` for an invalid one."""
    try:
        return settings.load(flags)
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None


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

    @property
    def flags(self) -> dict[str, object]:
        return {"log_format": self.log_format, "log_level": self.log_level}


NO_LOG = LogOptions()
