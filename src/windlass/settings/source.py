"""Reads settings from their sources.

A flag overrides the environment, which overrides `windlass.toml`, which overrides `[tool.windlass]` in
`pyproject.toml`, which overrides the default. Every value keeps its origin, so that an error names the place to change.
Nothing is read when this module is imported, and nothing here knows a setting by its name.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
import types
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from windlass.errors import Invalid
from windlass.settings.table import Setting, Settings
from windlass.settings.value import read_value

OWN_FILE, SHARED_FILE = "windlass.toml", "pyproject.toml"
PREFIX, FROM_FILE = "WINDLASS_", "_FILE"
CONFIG = "WINDLASS_CONFIG"
MASK = "********"


class Loaded(NamedTuple):
    """The settings in force, and the origin of each: `default`, or the flag, the variable or the key to change."""

    settings: Settings
    origins: Mapping[str, str]

    def shown(self, name: str) -> object:
        """The value for a screen or a log, without secrets."""
        value = getattr(self.settings, name)
        if value is None or isinstance(value, bool | int | float):
            return value
        about = setting(name)
        if about.shown is not None:
            return about.shown(value)
        return MASK if about.secret else str(value)


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """All settings. A flag that is None was not given."""
    variables = os.environ if environment is None else environment
    values: dict[str, object] = {}
    origins = dict.fromkeys(names(), "default")
    for origin, name, raw in _entries(flags or {}, variables, folder or Path.cwd()):
        values[name], origins[name] = _read(name, raw, origin), origin
    return Loaded(Settings(**values), origins)  # type: ignore[arg-type]


_SETTINGS: dict[str, Setting] = {field.name: field.metadata["setting"] for field in dataclasses.fields(Settings)}


def names() -> tuple[str, ...]:
    return tuple(_SETTINGS)


def setting(name: str) -> Setting:
    """The description of a setting."""
    return _SETTINGS[name]


@cache
def _types() -> dict[str, Any]:
    """The type of each setting, without None."""
    kinds = get_type_hints(Settings)
    return {name: get_args(kind)[0] if isinstance(kind, types.UnionType) else kind for name, kind in kinds.items()}


# --------------------------------------------------------------------------------------------- the sources

Entry = tuple[str, str, object]  # origin, name and raw value


def _entries(flags: Mapping[str, object], variables: Mapping[str, str], folder: Path) -> list[Entry]:
    """Everything that is set. A later entry overrides an earlier one."""
    entries = [entry for file in _files(variables, folder) for entry in _in_file(*file)]
    entries += [entry for name in names() for entry in _in_environment(name, variables)]
    for name, value in flags.items():
        if value is not None:
            entries.append((f"--{name.replace('_', '-')}", name, value))
    return entries


def _files(variables: Mapping[str, str], folder: Path) -> list[tuple[Path, Mapping[str, object], str]]:
    """The tables to read, each with the prefix of its keys. A later table overrides an earlier one."""
    if path := variables.get(CONFIG):
        if not Path(path).is_file():
            raise Invalid(f"there is no file {path} (set by {CONFIG})")
        return [(Path(path), _table(Path(path)), "")]
    found: list[tuple[Path, Mapping[str, object], str]] = []
    if (shared := folder / SHARED_FILE).is_file():
        tool = _table(shared).get("tool", {})
        ours = tool.get("windlass", {}) if isinstance(tool, dict) else {}
        if not isinstance(ours, dict):
            raise Invalid(f"tool.windlass in {SHARED_FILE} must be a table")
        found.append((shared, ours, "tool.windlass."))
    if (own := folder / OWN_FILE).is_file():
        found.append((own, _table(own), ""))
    return found


def _table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file.name} cannot be read as TOML: {error}") from None


def _in_file(file: Path, table: Mapping[str, object], prefix: str) -> list[Entry]:
    entries: list[Entry] = []
    for key, value in table.items():
        name = key.replace("-", "_")
        origin = f"{prefix}{key} in {file.name}"
        base = name.removesuffix(FROM_FILE.lower())
        if name in names():
            entries.append((origin, name, value))
        elif base != name and base in names() and setting(base).secret:
            entries.append((origin, base, _secret(base, file.parent / str(value), origin)))
        else:
            near = get_close_matches(name, names(), n=1)
            advice = f"; did you mean {near[0]}?" if near else f". Settings are: {', '.join(names())}"
            raise Invalid(f"{origin} is not a setting{advice}")
    return entries


def _in_environment(name: str, variables: Mapping[str, str]) -> list[Entry]:
    """The alias comes first, so that our own variable overrides it. An empty variable counts as not set."""
    entries: list[Entry] = []
    for variable in (setting(name).alias, PREFIX + name.upper()):
        if variable is None:
            continue
        plain, mounted = variables.get(variable) or None, variables.get(variable + FROM_FILE) or None
        if plain is not None and mounted is not None and setting(name).secret:
            raise Invalid(f"both {variable} and {variable + FROM_FILE} are set: keep one", field=name)
        if plain is not None:
            entries.append((variable, name, plain))
        elif mounted is not None and setting(name).secret:
            origin = variable + FROM_FILE
            entries.append((origin, name, _secret(name, Path(mounted), origin)))
    return entries


def _secret(name: str, file: Path, origin: str) -> str:
    """The secret in a file, without its last newline."""
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Invalid(f"the file {file} cannot be read: {why} (set by {origin})", field=name) from None


# Not settings of servers and commands: read by the MODS exporter, the test kit, and our own tests.
NO_SETTINGS = ("WINDLASS_MODS_WEB_URL", "WINDLASS_TEST_DATABASE_URL", "WINDLASS_TEST_PG", "WINDLASS_GOLDEN")


def misspelt(variables: Mapping[str, str]) -> dict[str, str]:
    """Unknown variables with our prefix that resemble a known one, each with the known one."""
    known = {PREFIX + name.upper() for name in names()} | {CONFIG, *NO_SETTINGS}
    known |= {PREFIX + name.upper() + FROM_FILE for name in names() if setting(name).secret}
    ours = [name for name in variables if name.startswith(PREFIX) and name not in known]
    return {name: near[0] for name in ours if (near := get_close_matches(name, known, n=1, cutoff=0.85))}


def _read(name: str, raw: object, origin: str) -> object:
    """The value of the setting. Raises Invalid with the place to change."""
    check = setting(name).check
    try:
        value = read_value(_types()[name], raw)
        if check is not None:
            check(value)
    except Invalid as error:
        why = error.message.removeprefix(": ")
        raise Invalid(f"{why} (set by {origin})", field=name, origin=origin) from None
    return value
