"""`windlass serve`: runs an engine with its loops and servers on your own PostgreSQL. Run any number of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from windlass import __version__
from windlass.cli.logs import set_up_logs
from windlass.cli.options import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import Unusable, print_json, say
from windlass.cli.process import freeze_heap, run_async
from windlass.cli.shutdown import stop_signal
from windlass.contracts.callback.headers import push_secrets
from windlass.contracts.callback.server.options import PushOptions
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.engine.engine import Engine
from windlass.engine.loops.schedule_loop import Pace
from windlass.engine.read.metrics import Tally
from windlass.errors import Invalid
from windlass.net.file_limits import raise_limit
from windlass.net.grpc_server import Limits as GrpcLimits
from windlass.net.memory import Memory
from windlass.net.server.limits import ConnectionLimits
from windlass.net.server.server import Limits as HttpLimits
from windlass.net.server.server import bind
from windlass.serve import (
    load_servers,
    open_carriers,
    open_engine,
    open_internal,
    open_machines,
    open_pools,
    open_server,
    open_sessions,
    open_sink,
)
from windlass.settings import Address, Settings, without_password


@Parameter(name="*")
@dataclass(frozen=True)
class ServerOptions:
    """Flags of commands that run servers."""

    http: Annotated[str | None, Parameter(help="Address of the API, HOST:PORT; port 0 takes any free port.")] = None
    grpc: Annotated[str | None, Parameter(help="Address of the gRPC server for remote workers, HOST:PORT.")] = None
    internal: Annotated[
        str | None, Parameter(help="Address of the internal port, HOST:PORT, for callers with a client certificate.")
    ] = None
    api_key: Annotated[str | None, Parameter(help="Admin key for all namespaces. Default: WINDLASS_API_KEY.")] = None
    open: Annotated[
        str | None, Parameter(help="Contracts that need no API key, such as `registry,machine`; only on loopback.")
    ] = None


DEFAULT_SERVER = ServerOptions()


def serve(
    *,
    server: ServerOptions = DEFAULT_SERVER,
    http_certificate: Annotated[
        Path | None, Parameter(help="PEM file with the TLS certificate of the API; reloaded when replaced.")
    ] = None,
    http_key: Annotated[Path | None, Parameter(help="PEM file with the key of that certificate.")] = None,
    sink: Annotated[
        bool | None, Parameter(help="Also write the batches of buffered datasets, as `windlass sink` does.")
    ] = None,
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Serve the API and run the loops of an engine, until Ctrl-C or SIGTERM. The database must be migrated."""
    settings = database.settings(
        **asdict(server), http_certificate=http_certificate, http_key=http_key, sink=sink, **asdict(log)
    )
    if settings.database_url is None:
        raise Unusable("serve needs a database: give --database-url or DATABASE_URL, or use `windlass dev`")
    check_ports(settings)
    set_up_logs(settings)
    run_async(run_serve(settings, settings.database_url, as_json=database.json))


def check_ports(settings: Settings) -> None:
    """Raises `Unusable` that names every address in use, with its flag."""
    problems: list[str] = []
    flags: dict[Address, str] = {}
    with ExitStack() as stack:
        for name in ("http", "grpc", "internal"):
            address = getattr(settings, name)
            if address is None or not address.port:
                continue
            if address in flags:
                problems.append(f"--{name} cannot listen on {address}: it is the address of --{flags[address]}")
                continue
            flags[address] = name
            try:
                stack.enter_context(bind(address.host, address.port))
            except Invalid as error:
                why = error.message.removeprefix("http: ").removesuffix("; choose another address")
                problems.append(f"--{name} {why}")
    if problems:
        raise Unusable(f"{'; '.join(problems)}. Choose other addresses, or stop what listens there")


NO_KEYS = "there is no API key yet, so no caller could use this server: create the first with `windlass keys bootstrap`"


async def run_serve(settings: Settings, url: str, *, as_json: bool) -> None:
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(url, **engine_options(settings)))
        if settings.api_key is None and not await engine.keys.has_keys():
            raise Unusable(NO_KEYS)
        addresses = await stack.enter_async_context(servers(engine, settings))
        freeze_heap()
        if as_json:
            print_json({**addresses, "database": without_password(url), "version": __version__})
        else:
            say(f"[bold]Windlass[/bold] {__version__} is running")
            print_addresses({**addresses, "database": without_password(url)})
        await stop.wait()
        if not as_json:
            say("Stopping: finishing open requests …")
    if not as_json:
        say("Stopped.")


def engine_options(settings: Settings) -> dict[str, Any]:
    return {
        "pooled": settings.pooled,
        "listen": not settings.pooled,
        "keep_finished_s": settings.keep_finished_s,
        "blobs": settings.blobs_url,
        "payload_max_bytes": settings.payload_max_bytes,
        "secret_keys": settings.secret_keys,
        "data_database_url": settings.data_database_url,
        "tally": Tally() if settings.metrics else None,
        "pace": Pace(settings.scheduler_interval_s, settings.scheduler_batch, settings.scheduler_fires_max),
    }


@asynccontextmanager
async def servers(engine: Engine, settings: Settings) -> AsyncIterator[dict[str, str]]:
    """Starts all servers. Yields their names and addresses."""
    raise_limit()
    load_servers()
    memory = Memory(settings.request_memory_bytes)
    connections = ConnectionLimits(
        settings.http_header_bytes, settings.http_header_count, settings.http_request_s, settings.http_connections,
        settings.http_address_connections,
    )  # fmt: skip
    http_limits = HttpLimits(connections, memory)
    grpc_limits = GrpcLimits(settings.grpc_connections, settings.grpc_calls, memory)
    registry = {
        "poll_timeout_s": settings.poll_timeout_s, "heartbeat_s": settings.worker_heartbeat_s,
        "stale_s": settings.worker_stale_s, "open": settings.is_open("registry"),
    }  # fmt: skip
    push = PushOptions(
        callback_url=settings.callback_url, targets=settings.push_targets, loopback=settings.push_loopback,
        secrets=push_secrets(os.environ), google_token=settings.google_token,
    )  # fmt: skip
    machines = open_machines(settings)
    async with AsyncExitStack() as stack:
        key, addresses = settings.api_key, {}
        if settings.internal is not None:  # first, so that an unusable certificate fails before anything starts
            addresses["internal"] = await stack.enter_async_context(
                open_internal(
                    engine, internal=settings.internal, certificate=settings.internal_certificate,
                    key=settings.internal_key, authority=settings.internal_ca, scratch_uri=settings.scratch_uri,
                    lake=settings.lake_url, limits=http_limits,
                )
            )  # fmt: skip
        grpc = await stack.enter_async_context(
            open_sessions(
                engine, grpc=settings.grpc, api_key=key, certificate=settings.grpc_certificate,
                key=settings.grpc_key, registry=registry, limits=grpc_limits,
            )
        )  # fmt: skip
        api = await stack.enter_async_context(  # after gRPC: a client that finds the API ready may use either
            open_server(
                engine, http=settings.http, api_key=key, certificate=settings.http_certificate, key=settings.http_key,
                push=push, machines=machines, limits=http_limits,
            )
        )  # fmt: skip
        engine.workers.drain_timeout_s = settings.drain_timeout_s
        await stack.enter_async_context(
            open_carriers(
                engine, CarrierOptions.of(settings), scratch_uri=settings.scratch_uri, lake=settings.lake_url,
                staging_keep_s=settings.staging_keep_s, reconcile_s=settings.reconcile_s, targets=settings.push_targets,
                loopback=settings.push_loopback,
            )
        )  # fmt: skip
        if settings.sink:
            await stack.enter_async_context(sink_of(engine, settings))
        if settings.stdio:
            await stack.enter_async_context(open_pools(engine, drain_s=settings.drain_timeout_s))
        yield {"api": f"{api}/api/v1", "metrics": f"{api}/metrics", "grpc": grpc, **addresses}


def sink_of(engine: Engine, settings: Settings) -> AbstractAsyncContextManager[None]:
    return open_sink(
        engine, scratch_uri=settings.scratch_uri, batch_max_bytes=settings.buffer_batch_max_bytes,
        keep_s=settings.buffer_keep_s,
    )  # fmt: skip


def print_addresses(addresses: dict[str, str]) -> None:
    for name, address in addresses.items():
        say(f"  {name:<9} {escape(address)}")
