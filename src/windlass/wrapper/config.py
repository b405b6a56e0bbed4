"""What a wrapper is told: a TOML file, and flags that beat it. Owns what is wrong with that, before anything is run."""

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

from windlass.core.check import check_name
from windlass.core.error import Invalid
from windlass.queues.option import CarrierOptions
from windlass.wrapper.operator import Operator, checked


class Config(CarrierOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`operators` by the name that tasks have for them; `*` runs all that have none of their own. With how the carriers
    of its queues are reached."""

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
        """What no operator may read that is not trusted."""
        return (self.certificate, self.key, *self.credential_files)


def read_config(file: Path | None, flags: Mapping[str, Any]) -> Config:
    """Raises Invalid, which names what is wrong. A flag that is None was not given."""
    said = {} if file is None else _table(file)
    given = {name: value for name, value in flags.items() if value is not None}
    operators = {**said.get("operators", {}), **given.pop("operators", {})}
    told = {**said, **given, "operators": operators}
    for name in told:
        if name not in Config.__struct_fields__:
            near = get_close_matches(name, Config.__struct_fields__, 1)
            raise Invalid(f"{name} in {file} is not a setting" + (f"; did you mean {near[0]}?" if near else ""))
    for name in ("server", "queues", "certificate", "key", "ca", "operators"):
        if not told.get(name):
            raise Invalid("is missing: say it in the file, or by flags", field=name)
    try:
        config = msgspec.convert(told, Config, dec_hook=_path, strict=True)
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
        _keep_apart(name, checked(name, operator), config)
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


def _keep_apart(name: str, operator: Operator, config: Config) -> None:
    """Whoever may read a folder may read the key in it. Started by root, an untrusted operator is another user."""
    field = f"operators.{name}.read"
    for path in operator.read:
        for secret in (*config.secret_files, config.state_dir):
            if secret.resolve().is_relative_to(path.resolve()):
                raise Invalid(f"{path} holds {secret}, which nobody but the wrapper may read", field=field)
        least = 0o005 if path.is_dir() else 0o004
        if os.geteuid() == 0 and not operator.trusted and path.stat().st_mode & least != least:
            raise Invalid(f"{path} must be readable for everybody: root runs this as another user", field=field)
