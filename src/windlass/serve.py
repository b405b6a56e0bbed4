"""The composition root: the only module that names drivers and connects the parts."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from windlass import settings
from windlass.blobs.address import read_address
from windlass.connect import App as App
from windlass.core.validation import check_type
from windlass.datasets.data.database import DataDatabase, migrate_data
from windlass.engine.engine import Engine
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.secrets import Cipher, SecretCount, Secrets
from windlass.engine.send.outbox import EffectHandler
from windlass.errors import Invalid, InvalidState, WindlassError
from windlass.net.grpc_log import keep_grpc_quiet
from windlass.net.targets import PUBLIC, read_targets
from windlass.store import migrate
from windlass.store.errors import translated
from windlass.store.migrate import Migration
from windlass.store.store import Store

if TYPE_CHECKING:
    from windlass.api.framework.mount import Mount
    from windlass.contracts.callback.server.options import PushOptions
    from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
    from windlass.contracts.machine.launchers.options import MachineOptions
    from windlass.net.grpc_server import Limits as GrpcLimits
    from windlass.net.server.server import Limits as HttpLimits

# One line per contract. No module of a contract that is not here is imported.
CONTRACTS = (
    "callback",
    "lease",
    "machine",
    "registry",
    "session",
    "stdio",
)
ROOMS = tuple(f"windlass.contracts.{name}" for name in CONTRACTS)
for _room in ROOMS:
    if find_spec(f"{_room}.registration") is not None:  # the kernel need not know of every contract
        importlib.import_module(f"{_room}.registration").register()

DEFAULT_HTTP, DEFAULT_GRPC = settings.Settings().http, settings.Settings().grpc


@asynccontextmanager
async def open_database(
    database_url: str | None = None, *, data_dir: str | os.PathLike[str] | None = None
) -> AsyncIterator[str]:
    """Yields the URL of a database: the given one, the one in the settings, or an embedded PostgreSQL.

    The embedded one is started if it does not run, and migrated. The last process that uses it stops it.
    """
    folder = None if data_dir is None else _folder(data_dir)
    if database_url is not None:
        yield checked_url(database_url)
        return
    known = settings.load().settings
    if known.database_url is not None:
        yield checked_url(known.database_url)
        return
    async with open_embedded(folder or known.data_dir) as url:
        await migrate_database(url)
        yield url


@asynccontextmanager
async def open_embedded(data_dir: str | os.PathLike[str]) -> AsyncIterator[str]:
    """Yields the URL of an embedded PostgreSQL. Its schema stays as it is."""
    from windlass.store.embedded.server import EmbeddedServer  # an extra that production does not install

    opening = asyncio.ensure_future(asyncio.to_thread(EmbeddedServer.open, _folder(data_dir)))
    try:
        server = await asyncio.shield(opening)
    except asyncio.CancelledError:  # the thread cannot be stopped: wait until the server runs, and stop it
        with suppress(WindlassError):
            await asyncio.to_thread((await opening).close)
        raise
    try:
        yield server.dsn
    finally:
        await asyncio.to_thread(server.close)


def has_embedded(data_dir: Path) -> bool:
    """Whether an embedded PostgreSQL was ever started there."""
    from windlass.store.embedded.server import Layout

    return (Layout(data_dir).data / "PG_VERSION").exists()


def _folder(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path) or not str(path).isprintable():
        raise Invalid("must be the path of a folder", field="data_dir")
    return Path(path)


@asynccontextmanager
async def open_engine(
    database_url: str | None = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    pooled: bool | None = None,
    listen: bool | None = None,
    effects: Mapping[str, EffectHandler] | None = None,
    blobs: str | None = None,
    payload_max_bytes: int | None = None,
    secret_keys: str | None = None,
    data_database_url: str | None = None,
    **options: Any,
) -> AsyncIterator[Engine]:
    """Yields a running engine. Without a URL, here or in the settings (DATABASE_URL), it uses an embedded PostgreSQL.

    Set `pooled` if a transaction-mode pooler stands before the database (default: WINDLASS_POOLED); LISTEN does not
    work there. `blobs` is the URL of the blob store (default: WINDLASS_BLOBS, else a folder beside the embedded
    PostgreSQL). Without a blob store, payloads that are too long for a row are refused. `secret_keys` encrypt the
    secrets in the database (default: WINDLASS_SECRET_KEYS). `data_database_url` is the database with the tables of
    datasets (default: WINDLASS_DATA_DATABASE_URL, else the same database).
    """
    known = settings.load().settings
    embedded = database_url is None and known.database_url is None
    if pooled is None:
        pooled = known.pooled and not embedded
    if listen is None:
        listen = not pooled
    check_type("pooled", pooled, bool)
    check_type("listen", listen, bool)
    if pooled and listen:
        raise Invalid("LISTEN does not work through a transaction-mode pooler: pass listen=False", field="listen")
    if blobs is None:
        blobs = known.blobs
        if blobs is None and embedded:
            blobs = str(_folder(known.data_dir if data_dir is None else data_dir) / settings.BLOBS_FOLDER)
    options["blobs"] = None if blobs is None else open_blobs(blobs)
    options["payload_max_bytes"] = known.payload_max_bytes if payload_max_bytes is None else payload_max_bytes
    options["cipher"] = read_cipher(known.secret_keys if secret_keys is None else secret_keys)
    data_database_url = known.data_database_url if data_database_url is None else data_database_url
    if data_database_url is not None:
        checked_url(data_database_url, "data_database_url")
    async with (
        open_database(database_url, data_dir=data_dir) as url,
        Engine(Store(url, pooled=pooled), listen=listen, effects=effects, **options) as engine,
    ):
        if data_database_url is not None:
            engine.service(DataDatabase).use(data_database_url)
        yield engine


def read_cipher(secret_keys: str | None) -> Cipher | None:
    """The cipher of the secrets in the database. None: they are not encrypted."""
    if secret_keys is None:
        return None
    check_type("secret_keys", secret_keys, str)
    from windlass.engine.cipher import Keyring, read_keys

    return Keyring(read_keys(secret_keys))


async def seal_secrets(database_url: str, secret_keys: str, *, pooled: bool = False) -> SecretCount:
    """Encrypt all secrets of a database with the first key. Returns how many were encrypted before, and how."""
    store = Store(checked_url(database_url), pooled=pooled)
    try:
        return await Secrets(store, read_cipher(secret_keys)).seal_all()
    finally:
        await store.close()


def open_blobs(url: str) -> Callable[[], Blobs]:
    """Returns a function that opens the blob store: most processes never use it. Raises now if the URL is wrong."""
    read_address(url)

    def open_() -> Blobs:
        try:
            from windlass.blobs.object_store import open_store
        except ModuleNotFoundError as error:
            raise InvalidState(f"a blob store needs `pip install 'windlass-engine[server]'`: {error}") from None
        return open_store(url)

    return open_


# What a server imports late, besides the rooms.
SERVER_MODULES = (
    "windlass.api.app",
    "windlass.blobs.object_store",
    "windlass.engine.cipher",
    "windlass.net.grpc_server",
    "windlass.net.server.server",
)


def load_servers() -> None:
    """Import all modules of a server before it opens a port. A client that uses up its file descriptors could otherwise
    make a late import fail, and so end the server."""
    keep_grpc_quiet()
    for name in (*SERVER_MODULES, *(f"{room}.mount" for room in ROOMS)):
        importlib.import_module(name)


def _mounts(engine: Engine, options: Mapping[str, Any], address: settings.Address | None = None) -> list[Mount[Any]]:
    """All rooms on this engine, with their options by name."""
    from windlass import __version__

    loopback = address is None or settings.is_loopback(address)
    return [
        importlib.import_module(f"{room}.mount").Mount(
            engine, options.get(room.rpartition(".")[2]), version=__version__, loopback=loopback
        )
        for room in ROOMS
    ]


@asynccontextmanager
async def _running(mounts: list[Mount[Any]], url: str = "") -> AsyncIterator[None]:
    """Handle effects and run loops of the rooms that have options."""
    async with AsyncExitStack() as stack:
        for mount in mounts:
            if mount.options is not None:
                await stack.enter_async_context(mount.running(mount.options, url))
        yield


@asynccontextmanager
async def open_sessions(
    engine: Engine,
    *,
    grpc: str | settings.Address = DEFAULT_GRPC,
    api_key: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    registry: Mapping[str, Any] | None = None,
    limits: GrpcLimits | None = None,
) -> AsyncIterator[str]:
    """Runs the gRPC server for remote workers and apps until the block ends; yields its URL. `grpc` is HOST:PORT; port
    0 takes any free port. `api_key`: see `open_server`. `certificate` and `key` are PEM files, for TLS. `registry` are
    options of the registry contract, by name."""
    keep_grpc_quiet()
    from windlass.net.grpc_channel import MESSAGE_ROOM_BYTES
    from windlass.net.grpc_server import USUAL_LIMITS, Tls, serving

    address = settings.read_address(grpc)
    if api_key is not None:
        engine.keys.accept_root(api_key)
    files = _key_pair(certificate, key, "grpc_certificate")
    services = [one for mount in _mounts(engine, {"registry": registry}, address) for one in mount.services()]
    tls = None if files is None else Tls(*files)
    most = engine.parts.objects.room_bytes + MESSAGE_ROOM_BYTES
    async with serving(services, str(address), tls, message_max_bytes=most, limits=limits or USUAL_LIMITS) as port:
        yield f"{'http' if tls is None else 'https'}://{settings.Address(address.host, port)}"


@asynccontextmanager
async def open_pools(engine: Engine, *, drain_s: float | None = None) -> AsyncIterator[None]:
    """Runs the programs of all queues with delivery stdio, as child processes, until the block ends. Running tasks then
    finish; those that take longer than `drain_s` are given back. A caller that may configure queues can run any command
    as the user of this process."""
    async with _running(_mounts(engine, {"stdio": {"drain_s": drain_s}})):
        yield


@asynccontextmanager
async def open_server(
    engine: Engine,
    *,
    http: str | settings.Address = DEFAULT_HTTP,
    api_key: str | None = None,
    open_metrics: bool = False,
    certificate: Path | None = None,
    key: Path | None = None,
    push: PushOptions | None = None,
    machines: MachineOptions | None = None,
    limits: HttpLimits | None = None,
) -> AsyncIterator[str]:
    """Serves our API until the block ends; yields its URL. `http` is HOST:PORT; port 0 takes any free port.

    `api_key` is an admin key for all namespaces, for the operator of the server, who creates other keys with it.
    `open_metrics` lets all callers that reach the port read /metrics. `certificate` and `key` are PEM files, for TLS;
    replaced files are used from the next connection on. With `push`, tasks of queues that push are sent; workers may
    call back in any case. With `machines`, tasks of queues with delivery machine are launched.
    """
    from windlass import __version__
    from windlass.api.app import make_api  # an extra that a plain worker does not install
    from windlass.net.server.server import USUAL_LIMITS, PathRouter, ServerTls, listening
    from windlass.net.server.tls import reloading, server_context

    address = settings.read_address(http)
    files = _key_pair(certificate, key, "http_certificate")
    tls = None if files is None else ServerTls(reloading(files, lambda: server_context(*files, setting="http")))
    mounts = _mounts(engine, {"callback": push, "machine": machines}, address)
    applications = [mounted for mount in mounts for mounted in mount.applications().items()]
    if api_key is not None:
        engine.keys.accept_root(api_key)
    api = make_api(engine, version=__version__, open_metrics=open_metrics)
    router = PathRouter(api, *applications)
    async with (
        listening(router, address.host, address.port, tls, limits=limits or USUAL_LIMITS) as url,
        _running(mounts, url),
    ):
        yield url


def _key_pair(certificate: Path | None, key: Path | None, field: str) -> tuple[Path, Path] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Invalid("a certificate and its key go together", field=field)
    return certificate, key


@asynccontextmanager
async def open_internal(
    engine: Engine,
    *,
    internal: str | settings.Address,
    certificate: Path | None,
    key: Path | None,
    authority: Path | None,
    scratch_uri: str = settings.Settings().scratch_uri,
    lake: str | None = None,
    limits: HttpLimits | None = None,
) -> AsyncIterator[str]:
    """Serves `/internal/*` until the block ends, only for callers with a certificate of the authority; yields its URL.
    `internal` is HOST:PORT; port 0 takes any free port. The files are PEM. `lake` is the URL of the lake, without which
    outputs with storage s3 are refused."""
    from windlass import __version__
    from windlass.contracts.lease.mount import make_lease_app, make_tls
    from windlass.net.server.server import USUAL_LIMITS, listening

    address = settings.read_address(internal)
    tls = make_tls(internal_certificate=certificate, internal_key=key, internal_ca=authority)
    use_lake(engine, lake)
    app = make_lease_app(engine, __version__, scratch_uri)
    async with listening(app, address.host, address.port, tls, limits=limits or USUAL_LIMITS) as url:
        yield url


@asynccontextmanager
async def open_carriers(
    engine: Engine,
    carriers: CarrierOptions | None = None,
    *,
    scratch_uri: str = settings.Settings().scratch_uri,
    lake: str | None = None,
    staging_keep_s: float = settings.Settings().staging_keep_s,
    reconcile_s: float = settings.Settings().reconcile_s,
    targets: str = PUBLIC,
    loopback: bool = False,
) -> AsyncIterator[None]:
    """Wakes workers by messages, calls functions and routes the events of lease holders, until the block ends. Messages
    go through PostgreSQL and the given carriers. Functions are URLs that `targets` allows (see the setting
    `push_targets`), and AWS Lambda functions. What attempts leave in the lake is deleted after `staging_keep_s`.
    An event whose effect was lost is routed within `reconcile_s`."""
    use_lake(engine, lake, staging_keep_s)
    allowed = read_targets(targets, loopback=loopback)
    options = {"carriers": carriers, "scratch_uri": scratch_uri, "targets": allowed, "reconcile_s": reconcile_s}
    async with _running(_mounts(engine, {"lease": options})):
        yield


@asynccontextmanager
async def open_sink(
    engine: Engine,
    *,
    scratch_uri: str = settings.Settings().scratch_uri,
    batch_max_bytes: int = settings.Settings().buffer_batch_max_bytes,
    keep_s: float = settings.Settings().buffer_keep_s,
    visibility_s: float | None = None,
) -> AsyncIterator[None]:
    """Writes the batches of buffered datasets to their tables, until the block ends. It reads them under `scratch_uri`,
    and deletes them `keep_s` seconds after they were written. If this process dies, other sinks get its batches after
    `visibility_s`."""
    from windlass.datasets.loops import sinking
    from windlass.datasets.scratch import Scratch
    from windlass.datasets.sink import VISIBILITY_S, Sink

    scratch = Scratch(scratch_uri, open_blobs(scratch_uri), batch_max_bytes=batch_max_bytes)
    sink = Sink(engine, scratch, keep_s=keep_s, visibility_s=visibility_s or VISIBILITY_S)
    async with sinking(engine, sink):
        yield


def use_lake(engine: Engine, url: str | None, staging_keep_s: float | None = None) -> None:
    """Let an engine keep the files of datasets at this URL. Sends no request yet."""
    if url is not None:
        from windlass.datasets.clean_up import CleanUp
        from windlass.datasets.lake import Lake

        engine.service(Lake).use(read_address(url).root, open_blobs(url))
        if staging_keep_s is not None:
            engine.service(CleanUp).keep_s = staging_keep_s


def open_machines(known: settings.Settings) -> MachineOptions:
    """How this server runs machines, from its settings and environment variables."""
    from windlass.contracts.machine.launchers.options import machine_options
    from windlass.contracts.machine.server.storage import storage_variables

    blobs = known.blobs_url
    storage = {} if blobs is None else storage_variables(read_address(blobs), os.environ)
    return machine_options(known, os.environ, storage, open_=known.is_open("machine"))


async def migrate_database(database_url: str, target: int | None = None) -> tuple[Migration, ...]:
    """Migrate a database to the schema of this version. Returns the applied migrations."""
    with translated(database_url):
        connection = await asyncpg.connect(checked_url(database_url), timeout=10)
        try:
            applied = await migrate.migrate(connection, target=target)
            await migrate_data(connection)  # the default; another data database is migrated beside it
            await connection.close()
        finally:
            connection.terminate()
    return applied


async def migrate_data_database(data_database_url: str) -> bool:
    """Migrate a data database of its own. Returns whether it was changed."""
    url = checked_url(data_database_url, "data_database_url")
    with translated(url):
        connection = await asyncpg.connect(url, timeout=10)
        try:
            changed = await migrate_data(connection)
            await connection.close()
        finally:
            connection.terminate()
    return changed


def checked_url(url: object, field: str = "database_url") -> str:
    if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
        raise Invalid("must begin with postgresql://", field=field)
    if "\x00" in url or not url.isprintable():
        raise Invalid("must not contain control characters", field=field)
    try:
        _ = urlsplit(url).port  # raises ValueError if it is not a port
    except ValueError as error:
        raise Invalid(f"cannot be read: {error}", field=field) from None
    return url
