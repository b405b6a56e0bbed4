"""The composition root: the only place that names drivers and puts the parts together."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg

from windlass import settings
from windlass.blobs.address import read_address
from windlass.connect import App as App
from windlass.core.check import check_type
from windlass.core.delivery import INVOKE, Invoke, Stdio, Wakeup, type_of
from windlass.core.error import Invalid, InvalidState, Unavailable, WindlassError
from windlass.core.target import PUBLIC, read_targets
from windlass.engine.blob import Blobs
from windlass.engine.doctor import Finding, diagnose
from windlass.engine.engine import Engine
from windlass.engine.objects import examine_objects
from windlass.engine.outbox import EffectHandler
from windlass.engine.secret import Cipher, SecretCount, Secrets, examine_secrets
from windlass.queues.option import NO_CARRIERS, CarrierOptions
from windlass.store import migrate
from windlass.store.fault import translated
from windlass.store.migrate import Migration
from windlass.store.store import Store
from windlass.store.vitals import read_vitals
from windlass.wire.quiet import keep_grpc_quiet

if TYPE_CHECKING:
    from windlass.contracts.callback.option import PushOptions
    from windlass.contracts.hosting import Limits as GrpcLimits
    from windlass.http.server import Limits as HttpLimits
    from windlass.launchers.options import MachineOptions
    from windlass.store.embedded import EmbeddedServer

DEFAULT_HTTP, DEFAULT_GRPC = settings.Settings().http, settings.Settings().grpc


@asynccontextmanager
async def open_database(
    database_url: str | None = None, *, data_dir: str | os.PathLike[str] | None = None
) -> AsyncIterator[str]:
    """The URL of the database to use: the one given, the one of the settings, or an embedded PostgreSQL.

    The embedded one is started if need be, brought to the current schema, and stopped by the last who leaves it.
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
    """The URL of an embedded PostgreSQL with whatever schema it has."""
    server = await _open_embedded(_folder(data_dir))
    try:
        yield server.dsn
    finally:
        await asyncio.to_thread(server.close)


def has_embedded(data_dir: Path) -> bool:
    """Whether an embedded PostgreSQL was ever started there."""
    from windlass.store.embedded import Layout

    return (Layout(data_dir).data / "PG_VERSION").exists()


def _folder(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path) or not str(path).isprintable():
        raise Invalid("must be the path of a folder", field="data_dir")
    return Path(path)


async def _open_embedded(data_dir: Path) -> EmbeddedServer:
    """A thread cannot be stopped: who is cancelled while the server starts waits for it and stops it again."""
    from windlass.store.embedded import EmbeddedServer  # an extra that production does not carry

    opening = asyncio.ensure_future(asyncio.to_thread(EmbeddedServer.open, data_dir))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(WindlassError):
            await asyncio.to_thread((await opening).close)
        raise


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
    **options: Any,
) -> AsyncIterator[Engine]:
    """An engine that runs. Without a URL, here or in the settings (DATABASE_URL), it brings its own PostgreSQL.

    `pooled` is for a transaction-mode pooler in front of the database, by default as the settings say
    (WINDLASS_POOLED); there, nothing is heard by `listen`. `blobs` is the URL of the blob store, by default that of the
    settings (WINDLASS_BLOBS), else a folder beside the embedded PostgreSQL. Beside any other database there is none
    then, and what is too long for a row is refused. `secret_keys` encrypt secrets in the database, by default those of
    the settings (WINDLASS_SECRET_KEYS).
    """
    known = settings.load().settings
    if pooled is None:
        pooled = known.pooled and (database_url is not None or known.database_url is not None)
    if listen is None:
        listen = not pooled
    check_type("pooled", pooled, bool)
    check_type("listen", listen, bool)
    if pooled and listen:
        raise Invalid("LISTEN does not work through a transaction-mode pooler: say listen=False", field="listen")
    limit = known.payload_max_bytes if payload_max_bytes is None else payload_max_bytes
    if blobs is None:
        embedded = database_url is None and known.database_url is None
        own = embedded and known.blobs is None and data_dir is not None
        blobs = str(_folder(data_dir) / settings.BLOBS_FOLDER) if own else known.blobs_url if embedded else known.blobs
    opening = None if blobs is None else open_blobs(blobs)
    cipher = read_cipher(known.secret_keys if secret_keys is None else secret_keys)
    async with (
        open_database(database_url, data_dir=data_dir) as url,
        Engine(
            Store(url, pooled=pooled),
            listen=listen,
            effects=effects,
            blobs=opening,
            payload_max_bytes=limit,
            cipher=cipher,
            **options,
        ) as engine,  # fmt: skip
    ):
        yield engine


def read_cipher(secret_keys: str | None) -> Cipher | None:
    """What secrets in the database are encrypted with; None where that is not wanted."""
    if secret_keys is None:
        return None
    check_type("secret_keys", secret_keys, str)
    from windlass.wire.seal import Keyring, read_keys

    return Keyring(read_keys(secret_keys))


async def seal_secrets(database_url: str, secret_keys: str, *, pooled: bool = False) -> SecretCount:
    """Encrypt all secrets of a database with the first key. Returns how they were kept before."""
    store = Store(checked_url(database_url), pooled=pooled)
    try:
        return await Secrets(store, read_cipher(secret_keys)).seal_all()
    finally:
        await store.close()


def open_blobs(url: str) -> Callable[[], Blobs]:
    """The blob store that a URL names, when it is asked for: most processes never do."""
    read_address(url)  # what is wrong with it is said now

    def opened() -> Blobs:
        try:
            from windlass.blobs.object_store import open_store
        except ModuleNotFoundError as error:
            raise InvalidState(f"a blob store needs `pip install 'windlass-engine[server]'`: {error}") from None
        return open_store(url)

    return opened


# What a server imports when it first needs it, its libraries among it.
SERVER_MODULES = (
    "windlass.blobs.object_store", "windlass.contracts.callback.mount", "windlass.contracts.hosting",
    "windlass.contracts.lease.invoke", "windlass.contracts.lease.mount", "windlass.contracts.machine.mount",
    "windlass.contracts.machine.storage", "windlass.contracts.registry.server", "windlass.contracts.session.server",
    "windlass.http.api", "windlass.http.certified", "windlass.http.front", "windlass.http.revocable",
    "windlass.launchers.options", "windlass.queues.opening", "windlass.sdk.stdio_host", "windlass.wire.seal",
)  # fmt: skip


def load_servers() -> None:
    """Import all of it. A server calls this before its first port is open: whoever uses up its files then would keep it
    from importing anything, and so end it."""
    keep_grpc_quiet()
    for name in SERVER_MODULES:
        importlib.import_module(name)


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
    """The gRPC server for remote workers and apps on this engine until the block ends; yields its URL. `grpc` is
    HOST:PORT; port 0 takes any that is free. `api_key`: see `open_server`. `certificate` and `key` are PEM files, for
    TLS. `registry` are options of the registry contract, by name."""
    keep_grpc_quiet()
    from windlass.contracts.hosting import USUAL_LIMITS, Service, Tls, serving
    from windlass.contracts.registry.call import Options
    from windlass.contracts.registry.server import SERVICE, RegistryServer
    from windlass.contracts.session.server import SessionServer
    from windlass.wire.admission import Guard
    from windlass.wire.session import MESSAGE_ROOM_BYTES

    address = settings.read_address(grpc)
    if api_key is not None:
        engine.access.accept_root(api_key)
    if (certificate is None) != (key is None):
        raise Invalid("a certificate and its key go together", field="grpc_certificate")
    options = Options(**(registry or {}))
    if options.open and not settings.is_loopback(address):
        raise Invalid("without a key only on loopback, such as 127.0.0.1", field="open")
    identify = engine.access.identify
    sessions, workflows = SessionServer(engine, identify), RegistryServer(engine, identify, options)
    services = [Service(name, handler, sessions.guard) for name, handler in sessions.handlers().items()]
    services.append(Service(SERVICE, workflows.handler(), workflows.guard))
    tls = None if certificate is None or key is None else Tls(certificate, key)
    most = engine.objects.room_bytes + MESSAGE_ROOM_BYTES
    async with serving(
        services, str(address), tls, reflection_guard=Guard(workflows.admit), message_max_bytes=most,
        limits=limits or USUAL_LIMITS,
    ) as port:  # fmt: skip
        yield f"{'http' if tls is None else 'https'}://{settings.Address(address.host, port)}"


@asynccontextmanager
async def open_pools(engine: Engine, *, drain_s: float | None = None) -> AsyncIterator[None]:
    """The programs of all queues with delivery stdio, as child processes, until the block ends; then what runs is
    finished, and what takes longer than `drain_s` is given back. Whoever may set up queues can run any command as the
    user of this process."""
    from windlass.sdk.stdio_host import StdioHost

    async with StdioHost(engine, lambda: engine.queues.delivered(Stdio), drain_s=drain_s):
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
    """Our API on this engine until the block ends; yields its URL. `http` is HOST:PORT; port 0 takes any that is free.

    `api_key` is an admin's key in all namespaces, for whoever starts the server; others are made with it.
    `open_metrics` lets everybody read /metrics who can reach the port. `certificate` and `key` are PEM files, for TLS;
    files that are replaced hold from the next connection on. With `push`, tasks of queues that push are sent
    out; workers may call back here in any case. With `machines`, those of queues with delivery machine are launched.
    """
    from windlass import __version__
    from windlass.contracts.callback import app as callback
    from windlass.contracts.callback.mount import make_callbacks, pushing
    from windlass.contracts.lease.mount import holding
    from windlass.contracts.machine import app as machine
    from windlass.contracts.machine.mount import launching, make_machines
    from windlass.http.api import make_api  # an extra that a plain worker does not carry
    from windlass.http.front import Front
    from windlass.http.revocable import Revocable
    from windlass.http.server import USUAL_LIMITS, Encrypted, listening
    from windlass.http.tls import reloading, server_context

    address = settings.read_address(http)
    if (certificate is None) != (key is None):
        raise Invalid("a certificate and its key go together", field="http_certificate")
    tls: Encrypted | None = None
    if certificate is not None and key is not None:
        pem, secret = certificate, key
        tls = Encrypted(reloading((pem, secret), lambda: server_context(pem, secret, setting="http")))
    if api_key is not None:
        engine.access.accept_root(api_key)
    service, callbacks = make_callbacks(engine, __version__)
    api = make_api(engine, version=__version__, open_metrics=open_metrics)
    if machines is not None and machines.open and not settings.is_loopback(address):
        raise Invalid("without a key only on loopback, such as 127.0.0.1", field="open")
    watch = engine.access.opened
    machine_app = Revocable(make_machines(engine, machines), watch)
    front = Front(Revocable(api, watch), (callback.PREFIX, callbacks), (machine.PREFIXES, machine_app))
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(
            listening(front, address.host, address.port, tls, limits=limits or USUAL_LIMITS)
        )
        if push is not None:
            await stack.enter_async_context(pushing(engine, service, push, url))
            await stack.enter_async_context(holding(engine))
        if machines is not None and machines.launchers:
            await stack.enter_async_context(launching(engine, machines, url))
        yield url


@asynccontextmanager
async def open_internal(
    engine: Engine,
    *,
    internal: str | settings.Address,
    certificate: Path | None,
    key: Path | None,
    authority: Path | None,
    scratch_uri: str = settings.Settings().scratch_uri,
    limits: HttpLimits | None = None,
) -> AsyncIterator[str]:
    """`/internal/*` on this engine until the block ends, for callers with a certificate of the authority and for nobody
    else; yields its URL. `internal` is HOST:PORT; port 0 takes any that is free. The files are PEM."""
    from windlass import __version__
    from windlass.contracts.lease.mount import make_lease_app
    from windlass.http.certified import Certificates, guarded
    from windlass.http.server import USUAL_LIMITS, listening

    address = settings.read_address(internal)
    files = {"internal_certificate": certificate, "internal_key": key, "internal_ca": authority}
    for name, file in files.items():
        if file is None:
            raise Invalid("the internal port needs it: see `windlass certs`", field=name)
    guard = guarded(Certificates(*(Path(file) for file in files.values() if file is not None)))
    app = make_lease_app(engine, __version__, scratch_uri)
    async with listening(app, address.host, address.port, guard, limits=limits or USUAL_LIMITS) as url:
        yield url


@asynccontextmanager
async def open_carriers(
    engine: Engine,
    carriers: CarrierOptions = NO_CARRIERS,
    *,
    scratch_uri: str = settings.Settings().scratch_uri,
    targets: str = PUBLIC,
    loopback: bool = False,
) -> AsyncIterator[None]:
    """Wake workers by messages and call functions, until the block ends: messages through PostgreSQL, and the carriers
    that are named; functions at URLs, where `targets` allows it (see the setting `push_targets`), and of Lambda."""
    from windlass.contracts.lease.invoke import Invoker
    from windlass.queues.opening import make_lambda, make_senders

    async with AsyncExitStack() as stack:
        senders, functions = make_senders(carriers, engine.messages), make_lambda(carriers)
        for sender in senders.values():
            stack.push_async_callback(sender.close)
        if functions is not None:
            stack.push_async_callback(functions.close)
        call_function = None if functions is None else functions.call
        allowed = read_targets(targets, loopback=loopback)
        invoker = Invoker(engine, scratch_uri=scratch_uri, targets=allowed, call_function=call_function)
        await engine.hear()
        await stack.enter_async_context(engine.wakeups.carrying(senders))
        await stack.enter_async_context(engine.sent.carrying(INVOKE, invoker.invoke))
        yield


def open_machines(known: settings.Settings) -> MachineOptions:
    """How this server runs machines, by its settings and the variables of its process."""
    from windlass.blobs.address import read_address
    from windlass.contracts.machine.storage import storage_variables
    from windlass.launchers.options import machine_options

    blobs = known.blobs_url
    storage = {} if blobs is None else storage_variables(read_address(blobs), os.environ)
    return machine_options(known, os.environ, storage, open_=known.is_open("machine"))


async def migrate_database(database_url: str, target: int | None = None) -> tuple[Migration, ...]:
    """Bring a database to the schema of this version; returns what was applied."""
    with translated(database_url):
        connection = await asyncpg.connect(checked_url(database_url), timeout=10)
        try:
            applied = await migrate.migrate(connection, target=target)
            await connection.close()
        finally:
            connection.terminate()
    return applied


async def examine(
    database_url: str,
    *,
    local_s: float,
    pooled: bool = False,
    carriers: CarrierOptions = NO_CARRIERS,
    blobs: str | None = None,
    secret_keys: str | None = None,
) -> list[Finding]:
    """What is wrong with a database or about to be, and what to do. `local_s` is the clock of this machine."""
    vitals = await read_vitals(checked_url(database_url))
    found = diagnose(vitals, pooled=pooled, local_s=local_s)
    if vitals.schema is not None:
        return found
    found += await _examine_carriers(database_url, pooled, carriers)
    store = Store(database_url, pooled=pooled)
    try:
        cipher = read_cipher(secret_keys)
        secrets = examine_secrets(await Secrets(store, cipher).count(), encrypted=cipher is not None)
        return [*found, await _examine_blobs(store, blobs), secrets]
    finally:
        await store.close()


async def _examine_carriers(database_url: str, pooled: bool, carriers: CarrierOptions) -> list[Finding]:
    from windlass.queues.examine import examine_carriers

    store = Store(database_url, pooled=pooled)
    try:
        async with store.begin() as tx:
            queues = await tx.queues.queues_delivered([type_of(Wakeup), type_of(Invoke)])
            letters = await tx.wakeups.count_dead_messages()
    finally:
        await store.close()
    return await examine_carriers([settings.delivery for settings in queues.values()], letters, carriers)


async def _examine_blobs(store: Store, blobs: str | None) -> Finding:
    """Looks, and makes nothing: neither the folder nor the mark of a store."""
    if blobs is None:
        return await examine_objects(store, None, "")
    address, opening = read_address(blobs), open_blobs(blobs)

    def opened() -> Blobs:
        if address.scheme == "file" and not Path(address.place).is_dir():
            raise Unavailable(f"there is no folder {address.place}")
        return opening()

    return await examine_objects(store, opened, address.shown)


def checked_url(url: object) -> str:
    if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
        raise Invalid("must begin with postgresql://", field="database_url")
    if "\x00" in url or not url.isprintable():
        raise Invalid("must not contain control characters", field="database_url")
    try:
        _ = urlsplit(url).port  # reads it, and so checks it
    except ValueError as error:
        raise Invalid(f"cannot be read: {error}", field="database_url") from None
    return url
