"""The settings of a wrapper: a TOML file, and flags that override it. They are checked before anything runs."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.worker.operator import Operator, checked
from windlass.core.validation import check_name
from windlass.errors import Invalid


class Config(CarrierOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings, with those of the carriers. `operators` are keyed by the operator name of a task; `*` runs tasks of
    all other operators."""

    server: str
    queues: Annotated[list[str], Meta(min_length=1)]
    certificate: Path
    key: Path
    ca: Path
    operators: Annotated[dict[str, Operator], Meta(min_length=1)]
    namespace: str = "default"
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 4
    name: str | None = None
    state_dir: Path = Path(".windlass-wrapper")
    isolation: Literal["auto", "namespaces", "landlock"] = "auto"

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """Files that no untrusted operator may read."""
        return (self.certificate, self.key, *self.credential_files)


MISSING = {
    "server": "is missing: set it in the file or with --server, or start `windlass dev` in this folder",
    "operators": "are missing: name the module of your functions with --operators, or list them in the file",
}


def read_config(file: Path | None, flags: Mapping[str, Any], defaults: Path | None = None) -> Config:
    """Raises Invalid, which names the setting that is wrong. A flag that is None was not set. `defaults` is a file of a
    server on this machine: it is used if neither the file nor a flag names a server."""
    table = {} if file is None else _table(file)
    overrides = {name: value for name, value in flags.items() if value is not None}
    if "server" not in table | overrides and defaults is not None and defaults.exists():
        table = _table(defaults) | table
    operators = {**table.get("operators", {}), **overrides.pop("operators", {})}
    settings = {**table, **overrides, "operators": operators}
    for name in settings:
        if name not in Config.__struct_fields__:
            near = get_close_matches(name, Config.__struct_fields__, 1)
            raise Invalid(f"{name} in {file} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    for name in ("server", "queues", "certificate", "key", "ca", "operators"):
        if not settings.get(name):
            raise Invalid(MISSING.get(name, "is missing: set it in the file or with a flag"), field=name)
    try:
        config = msgspec.convert(settings, Config, dec_hook=_path, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(f"{file or 'the command line'}: {error}") from None
    for queue in config.queues:
        check_name("queues", queue)
    placed = {
        name: replace(operator, read=[path.absolute() for path in operator.read])
        for name, operator in config.operators.items()
    }
    config = replace(config, operators=placed)
    for name, operator in placed.items():
        _check_paths(name, checked(name, operator), config)
    return config


def _path(kind: type, value: Any) -> Any:
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    raise NotImplementedError


def _table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Invalid(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file}: {error}") from None


def _check_paths(name: str, operator: Operator, config: Config) -> None:
    """Refuse paths that hold a secret of the wrapper, and paths that another user could not read."""
    field = f"operators.{name}.read"
    for path in operator.read:
        for secret in (*config.secret_files, config.state_dir):
            if secret.resolve().is_relative_to(path.resolve()):
                raise Invalid(f"{path} holds {secret}, which only the wrapper may read", field=field)
        least = 0o005 if path.is_dir() else 0o004
        if os.geteuid() == 0 and not operator.trusted and path.stat().st_mode & least != least:
            raise Invalid(f"{path} must be readable by all users: root runs this as another user", field=field)
