"""Settings: what can be set, where it was set, and what is wrong with it.

A flag beats the environment, the environment beats `windlass.toml`, that beats `[tool.windlass]` in `pyproject.toml`,
and all beat the default. Every value knows its origin, so that a wrong one is named together with the place to mend.
Nothing is read when this module is imported, and nothing here knows what a setting is for.
"""

from __future__ import annotations

import os
import tomllib
import types
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit, urlunsplit

import msgspec

from windlass.core.check import LARGE_MAX_BYTES, PAYLOAD_MAX_BYTES, check_count, check_name, check_seconds
from windlass.core.error import Invalid

OWN_FILE, SHARED_FILE = "windlass.toml", "pyproject.toml"
PREFIX, FROM_FILE = "WINDLASS_", "_FILE"
CONFIG = "WINDLASS_CONFIG"
# Names that others gave: read when ours is not set.
OTHER_VARIABLES = {
    "database_url": "DATABASE_URL",
    "scheduler_interval_s": "KAGZI_SCHEDULER_INTERVAL_SECS",
    "scheduler_batch": "KAGZI_SCHEDULER_BATCH_SIZE",
    "scheduler_fires_max": "KAGZI_SCHEDULER_MAX_WORKFLOWS_PER_TICK",
    "poll_timeout_s": "KAGZI_POLL_TIMEOUT_SECS",
    "worker_stale_s": "KAGZI_WORKER_STALE_THRESHOLD_SECS",
    "aws_region": "AWS_REGION",
    "aws_endpoint_url": "AWS_ENDPOINT_URL",
}
MASK = "********"
OPENABLE = ("registry", "machine")
BLOBS_FOLDER = "blobs"
LAUNCHERS = ("process", "docker", "kubernetes", "fly")


class Address(NamedTuple):
    """Where a server listens: `HOST:PORT`. An IPv6 host stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Help(NamedTuple):
    text: str
    secret: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. The order is that of the reference page."""

    database_url: Annotated[
        str | None,
        Help("PostgreSQL URL of the servers and of workers beside the database. None: an embedded one.", True),
    ] = None
    data_dir: Annotated[Path, Help("Folder of the embedded PostgreSQL.")] = Path(".windlass")
    blobs: Annotated[
        str | None,
        Help("Where objects are kept, such as payloads over 2 MiB: file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az://. "
             "None: the folder `blobs` in the data folder. The same for all who use one database.", True),
    ] = None  # fmt: skip
    payload_max_bytes: Annotated[
        int, Help("How many bytes a payload or a result may have, at most. Over 2 MiB it is kept as an object.")
    ] = 64 * 1024 * 1024
    pooled: Annotated[
        bool, Help("Whether a transaction-mode pooler stands before the database; it is polled then.")
    ] = False
    http: Annotated[Address, Help("Where the HTTP API listens, as HOST:PORT.")] = Address("127.0.0.1", 8420)
    grpc: Annotated[Address, Help("Where the gRPC server for remote workers listens, as HOST:PORT.")] = Address(
        "127.0.0.1", 50051
    )
    grpc_certificate: Annotated[
        Path | None, Help("PEM file with the certificate (and its chain) of the gRPC server. None: no TLS.")
    ] = None
    grpc_key: Annotated[Path | None, Help("PEM file with the key of that certificate.")] = None
    internal: Annotated[
        Address | None,
        Help("Where `/internal/*` listens, as HOST:PORT, for callers with a certificate. None: nowhere."),
    ] = None
    internal_certificate: Annotated[
        Path | None, Help("PEM file with the certificate (and its chain) of the internal port.")
    ] = None
    internal_key: Annotated[Path | None, Help("PEM file with the key of that certificate.")] = None
    internal_ca: Annotated[
        Path | None, Help("PEM file with the authorities whose certificates callers of the internal port show.")
    ] = None
    scratch_uri: Annotated[
        str, Help("The place under which tasks of the lease contract may leave batches, each in folders of its own.")
    ] = "s3://windlass-scratch"
    open: Annotated[
        str | None,
        Help(
            "Contracts that need no key, with commas between: registry, machine. Only on loopback; to try things out."
        ),
    ] = None
    poll_timeout_s: Annotated[float, Help("Seconds for which a long poll of the registry contract waits.")] = 60.0
    worker_heartbeat_s: Annotated[float, Help("How often workers of the registry contract are to be heard of.")] = 10.0
    worker_stale_s: Annotated[float, Help("Seconds of silence after which such a worker is gone.")] = 30.0
    drain_timeout_s: Annotated[
        float, Help("Seconds after which what a draining worker still runs is taken from it, stdio programs included.")
    ] = 300.0
    url: Annotated[
        str | None, Help("The HTTP API that commands talk to. None: the one that `http` names, on this machine.")
    ] = None
    server: Annotated[
        str | None,
        Help("The gRPC server that apps and workers far from the database use, as http://HOST:PORT. None: a database."),
    ] = None
    api_key: Annotated[str | None, Help("The key that commands show to the API; `windlass dev` accepts it.", True)] = (
        None
    )
    namespace: Annotated[str | None, Help("The namespace that commands look at. None: the one of the key.")] = None
    metrics: Annotated[bool, Help("Whether servers count what happens, for /metrics.")] = True
    callback_url: Annotated[
        str | None, Help("Where workers that are pushed to call back, as they see it. None: where the API listens.")
    ] = None
    stdio: Annotated[
        bool, Help("Whether this server runs the programs of queues with delivery stdio; `windlass dev` does.")
    ] = False
    launchers: Annotated[str | None, Help("What machines are started with: process, docker, kubernetes, fly.")] = None
    machine_sweep_s: Annotated[float, Help("How often machines are held against their tasks, in seconds.")] = 5.0
    mods_api_url: Annotated[str | None, Help("Where MODS exports get entities: GET /entities/{pi}.")] = None
    mods_gateway_url: Annotated[str | None, Help("Where MODS exports get their parts: GET /ipfs/{cid}.")] = None
    push_loopback: Annotated[
        bool, Help("Whether tasks may be pushed to workers on this machine; `windlass dev` allows it.")
    ] = False
    signing_secret: Annotated[
        str | None,
        Help("What pushes to workers of this program are signed with; two, with a space, while it changes.", True),
    ] = None
    google_token: Annotated[
        str | None, Help("Access token for Google Cloud Tasks. None: the one of the machine, from Google.", True)
    ] = None
    nats_url: Annotated[
        str | None,
        Help("NATS server for wake-ups, such as nats://HOST:4222; several with commas. None: no NATS.", True),
    ] = None
    nats_credentials: Annotated[Path | None, Help("File with the credentials for NATS.")] = None
    aws_region: Annotated[
        str | None, Help("Region of AWS, for wake-ups by SQS and for functions of Lambda. None: no AWS.")
    ] = None
    aws_endpoint_url: Annotated[str | None, Help("Where AWS is, if it is not the real one.")] = None
    worker_metrics: Annotated[
        Address | None, Help("Where a worker beside the database serves its own metrics, as HOST:PORT. None: nowhere.")
    ] = None
    log_format: Annotated[Literal["text", "json"], Help("How servers and workers write their log.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Help("What is worth a line in the log, at least.")
    ] = "info"
    keep_finished_s: Annotated[float, Help("Seconds for which ended tasks and their history are kept.")] = 604800.0
    scheduler_interval_s: Annotated[
        float,
        Help("Seconds between two looks for schedules that are due; known ones fire at their time. Six of them without "
             "a look by any server are an outage, after which `max_catchup` bounds what is made up for."),
    ] = 5.0  # fmt: skip
    scheduler_batch: Annotated[int, Help("How many schedules fire in one transaction, at most.")] = 100
    scheduler_fires_max: Annotated[int, Help("How many tasks they submit in one transaction, at most.")] = 1000

    @property
    def blobs_url(self) -> str:
        """Where objects are kept."""
        return self.blobs or str(self.data_dir / BLOBS_FOLDER)

    @property
    def api_url(self) -> str:
        """Where commands find the API."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.http.host, self.http.host)  # noqa: S104
        return self.url or f"http://{Address(host, self.http.port)}"


class Origin(NamedTuple):
    """Who said it: `place` is what a person has to look at."""

    kind: Literal["flag", "environment", "file", "default"]
    place: str

    def __str__(self) -> str:
        return self.place


DEFAULT = Origin("default", "default")


class Loaded(msgspec.Struct, frozen=True):
    """The settings in force, and where each comes from."""

    settings: Settings
    origins: Mapping[str, Origin]

    def shown(self, name: str) -> object:
        """The value for a screen or a log: plain, and without what is secret."""
        value = getattr(self.settings, name)
        if value is None or isinstance(value, bool | int | float):
            return value
        if name in ("database_url", "blobs"):
            return without_password(value).partition("?")[0] if name == "blobs" else without_password(value)
        return MASK if field_help(name).secret else str(value)


def load(
    flags: Mapping[str, object] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Loaded:
    """All settings. A flag that is None was not given."""
    variables = os.environ if environment is None else environment
    values: dict[str, object] = {}
    origins = dict.fromkeys(names(), DEFAULT)
    for origin, name, raw in _said(flags or {}, variables, folder or Path.cwd()):
        values[name], origins[name] = _read(name, raw, origin), origin
    return Loaded(Settings(**values), origins)  # type: ignore[arg-type]


def names() -> tuple[str, ...]:
    return Settings.__struct_fields__


def field_help(name: str) -> Help:
    found = _hints()[name].__metadata__[0]
    assert isinstance(found, Help), name
    return found


def field_type(name: str) -> Any:
    """Without None and without its explanation."""
    kind = get_args(_hints()[name])[0]
    if get_origin(kind) in (Union, types.UnionType):
        return next(part for part in get_args(kind) if part is not type(None))
    return kind


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=True)


def without_password(url: str) -> str:
    """A URL that may be shown."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:***@{place}"))


# --------------------------------------------------------------------------------------------- what was said, and where

Said = tuple[Origin, str, object]


def _said(flags: Mapping[str, object], variables: Mapping[str, str], folder: Path) -> list[Said]:
    """Everything that somebody set, the strongest last."""
    said = [item for file in _files(variables, folder) for item in _in_file(*file)]
    said += [item for name in names() for item in _in_environment(name, variables)]
    for name, value in flags.items():
        if value is not None:
            said.append((Origin("flag", f"--{name.replace('_', '-')}"), name, value))
    return said


def _files(variables: Mapping[str, str], folder: Path) -> list[tuple[Path, Mapping[str, object], str]]:
    """The tables to read, the weakest first, each with the prefix of its keys."""
    if named := variables.get(CONFIG):
        if not Path(named).is_file():
            raise Invalid(f"there is no file {named} (set by {CONFIG})")
        return [(Path(named), _table(Path(named)), "")]
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


def _in_file(file: Path, table: Mapping[str, object], prefix: str) -> list[Said]:
    said: list[Said] = []
    for key, value in table.items():
        name = key.replace("-", "_")
        origin = Origin("file", f"{prefix}{key} in {file.name}")
        base = name.removesuffix(FROM_FILE.lower())
        if name in names():
            said.append((origin, name, value))
        elif base != name and base in names() and field_help(base).secret:
            said.append((origin, base, _secret(base, file.parent / str(value), origin)))
        else:
            raise Invalid(f"{prefix}{key} in {file.name} is not a setting{_perhaps(name, names())}")
    return said


def _in_environment(name: str, variables: Mapping[str, str]) -> list[Said]:
    """The variable of another's making first, so that ours beats it."""
    said: list[Said] = []
    for variable in (OTHER_VARIABLES.get(name), PREFIX + name.upper()):
        if variable is None:
            continue
        plain, mounted = variables.get(variable), variables.get(variable + FROM_FILE)
        if plain is not None and mounted is not None and field_help(name).secret:
            raise Invalid(f"both {variable} and {variable + FROM_FILE} are set: keep one", field=name)
        if plain is not None:
            said.append((Origin("environment", variable), name, plain))
        elif mounted is not None and field_help(name).secret:
            origin = Origin("environment", variable + FROM_FILE)
            said.append((origin, name, _secret(name, Path(mounted), origin)))
    return said


def _secret(name: str, file: Path, origin: Origin) -> str:
    """A secret that is mounted as a file; the line's end is not part of it."""
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Invalid(f"the file {file} cannot be read: {why} (set by {origin})", field=name) from None


def misspelt(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin like ours, mean nothing, and are nearly one that does."""
    known = {PREFIX + name.upper() for name in names()} | {CONFIG}
    known |= {PREFIX + name.upper() + FROM_FILE for name in names() if field_help(name).secret}
    ours = [name for name in variables if name.startswith(PREFIX) and name not in known]
    return {name: near[0] for name in ours if (near := get_close_matches(name, known, n=1, cutoff=0.85))}


def _perhaps(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f". Settings are: {', '.join(known)}"


# --------------------------------------------------------------------------------------------- from text to values


def _read(name: str, raw: object, origin: Origin) -> object:
    kind = field_type(name)
    try:
        if get_origin(kind) is Literal:
            return _choice(raw, get_args(kind))
        value = _READERS[kind](raw)
        if name in _CHECKS:
            _CHECKS[name](value)
    except Invalid as error:
        why = error.message.removeprefix(": ")
        raise Invalid(f"{why} (set by {origin})", field=name, origin=str(origin)) from None
    return value


def _choice(raw: object, allowed: tuple[str, ...]) -> str:
    if raw not in allowed:
        raise Invalid(f"must be {' or '.join(allowed)}")
    return str(raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise Invalid("must be text, and not empty")
    return raw


def _truth(raw: object) -> bool:
    said = raw.lower() if isinstance(raw, str) else raw
    if said in (True, "true", "yes", "on", "1"):
        return True
    if said in (False, "false", "no", "off", "0"):
        return False
    raise Invalid("must be true or false")


def _number(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, str) else raw
    except ValueError:
        value = None
    check_seconds("", value)
    return float(value)  # type: ignore[arg-type]


def _whole(raw: object) -> int:
    value = int(raw) if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 10 else raw
    check_count("", value, least=1, most=2**31 - 1)
    return int(value)  # type: ignore[call-overload,no-any-return]


def _path(raw: object) -> Path:
    if isinstance(raw, Path):
        return raw
    if not (text := _text(raw)).isprintable():
        raise Invalid("must be the path of a folder")
    return Path(text)


def read_address(raw: object) -> Address:
    """`127.0.0.1:8420`, `localhost:8420`, `[::1]:8420`; port 0 takes any that is free."""
    if isinstance(raw, Address):
        return raw
    host, separator, port = raw.rpartition(":") if isinstance(raw, str) else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or (":" in host and not bracketed):
        raise Invalid("must be HOST:PORT, such as 127.0.0.1:8420")
    if int(port) > 65535:
        raise Invalid("the port must be at most 65535")
    return Address(host.strip("[]"), int(port))


def is_loopback(address: Address) -> bool:
    return address.host in ("127.0.0.1", "::1", "localhost")


def _check_database_url(url: str) -> None:
    if not url.startswith(("postgresql://", "postgres://")):
        raise Invalid("must begin with postgresql://")


def _check_api_url(url: str) -> None:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise Invalid("must begin with http:// or https://, such as http://127.0.0.1:8420")


def _check_scratch_uri(uri: str) -> None:
    if not urlsplit(uri).scheme or "://" not in uri or any(mark in uri for mark in "?#%\\ "):
        raise Invalid("must be a plain URI, such as s3://bucket/folder")


def _check_nats_url(urls: str) -> None:
    for url in urls.split(","):
        if urlsplit(url).scheme not in ("nats", "tls", "ws", "wss") or not urlsplit(url).hostname:
            raise Invalid("must begin with nats:// or tls://, such as nats://127.0.0.1:4222")


def _check_listed(names: str, allowed: tuple[str, ...]) -> None:
    for name in listed(names):
        if name not in allowed:
            raise Invalid(f"{name!r} is not one of {', '.join(allowed)}")


def opened(names: str | None) -> list[str]:
    """The contracts that need no key."""
    return listed(names)


def listed(names: str | None) -> list[str]:
    """What is written with commas between."""
    return [part.strip() for part in (names or "").split(",") if part.strip()]


_READERS: dict[Any, Callable[[object], object]] = {
    str: _text,
    bool: _truth,
    float: _number,
    int: _whole,
    Path: _path,
    Address: read_address,
}
_CHECKS: dict[str, Callable[[Any], None]] = {
    "database_url": _check_database_url,
    "url": _check_api_url,
    "callback_url": _check_api_url,
    "scratch_uri": _check_scratch_uri,
    "aws_endpoint_url": _check_api_url,
    "nats_url": _check_nats_url,
    "namespace": lambda value: check_name("", value),
    "scheduler_interval_s": lambda value: check_seconds("", value, least=0.1, most=3600.0),
    "scheduler_batch": lambda value: check_count("", value, least=1),
    "scheduler_fires_max": lambda value: check_count("", value, least=1),
    "open": lambda value: _check_listed(value, OPENABLE),
    "launchers": lambda value: _check_listed(value, LAUNCHERS),
    "machine_sweep_s": lambda value: check_seconds("", value, least=0.1, most=3600.0),
    "mods_api_url": _check_api_url,
    "mods_gateway_url": _check_api_url,
    "poll_timeout_s": lambda value: check_seconds("", value, most=3600.0),
    "payload_max_bytes": lambda value: check_count("", value, least=PAYLOAD_MAX_BYTES, most=LARGE_MAX_BYTES),
    "worker_heartbeat_s": lambda value: check_seconds("", value, least=1.0),
    "worker_stale_s": lambda value: check_seconds("", value, least=1.0),
}
