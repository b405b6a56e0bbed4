"""The flags that many commands share, and the settings they give. A flag that was not given is None: see `settings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from msgspec.structs import replace

from windlass import settings
from windlass.cli.output import Unusable
from windlass.core.error import Invalid
from windlass.settings import Loaded, Settings

Json = Annotated[bool, Parameter(help="Print JSON instead of tables.", show_default=False)]


def load(**flags: object) -> Loaded:
    """The settings in force; a wrong one ends the command as wrong use."""
    try:
        return settings.load(flags)
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None


@Parameter(name="*")
@dataclass(frozen=True)
class DatabaseOptions:
    """For commands that work on the database itself."""

    database_url: Annotated[
        str | None, Parameter(help="PostgreSQL URL; default: DATABASE_URL, else an embedded one.")
    ] = None
    data_dir: Annotated[Path | None, Parameter(help="Where the embedded PostgreSQL keeps its data.")] = None
    json: Json = False

    def settings(self, **more: object) -> Settings:
        """A folder that was asked for on the command line beats a URL that was not."""
        known = load(database_url=self.database_url, data_dir=self.data_dir, **more).settings
        embedded = self.data_dir is not None and self.database_url is None
        return replace(known, database_url=None) if embedded else known


NO_DATABASE = DatabaseOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class LogOptions:
    """For commands that run until they are told to stop."""

    log_format: Annotated[
        Literal["text", "json"] | None, Parameter(help="Lines for people, or JSON; default: text.")
    ] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, Parameter(help="Default: info.")] = None

    @property
    def flags(self) -> dict[str, object]:
        return {"log_format": self.log_format, "log_level": self.log_level}


NO_LOG = LogOptions()
