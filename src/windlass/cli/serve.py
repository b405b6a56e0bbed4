"""`windlass serve`: an engine with its loops, and its servers, on your own PostgreSQL. Run as many as you like."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

from windlass import __version__
from windlass.app import (
    load_servers,
    open_carriers,
    open_engine,
    open_internal,
    open_machines,
    open_pools,
    open_server,
    open_sessions,
)
from windlass.cli.logs import set_up_logs
from windlass.cli.option import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import Unusable, print_json, say
from windlass.cli.ports import check_ports
from windlass.cli.process import keep_for_good, run_async
from windlass.cli.stop import stop_signal
from windlass.contracts.callback.option import PushOptions
from windlass.contracts.hosting import Limits as GrpcLimits
from windlass.core.header import push_secrets
from windlass.engine.engine import Engine
from windlass.engine.fire import Pace
from windlass.engine.metrics import Tally
from windlass.http.bounded import Bounds
from windlass.http.server import Limits as HttpLimits
from windlass.queues.option import CarrierOptions
from windlass.settings import Settings, without_password
from windlass.wire.files import raise_limit
from windlass.wire.memory import Memory

Http = Annotated[str | None, Parameter(help="Where the API listens, HOST:PORT; port 0 takes any that is free.")]
HttpCertificate = Annotated[
    Path | None, Parameter(help="PEM file with the certificate of the API, for TLS; read again when it is replaced.")
]
HttpKey = Annotated[Path | None, Parameter(help="PEM file with the key of that certificate.")]
Grpc = Annotated[str | None, Parameter(help="Where remote workers connect, HOST:PORT.")]
Internal = Annotated[
    str | None, Parameter(help="Where holders of tasks call, HOST:PORT; only those with a certificate are answered.")
]
ApiKey = Annotated[str | None, Parameter(help="An admin's key in all namespaces; default: WINDLASS_API_KEY.")]

Open = Annotated[
    str | None, Parameter(help="Contracts that need no key, such as `registry,machine`; only on loopback.")
]


def serve(
    *,
    http: Http = None,
    http_certificate: HttpCertificate = None,
    http_key: HttpKey = None,
    grpc: Grpc = None,
    internal: Internal = None,
    api_key: ApiKey = None,
    open: Open = None,  # noqa: A002
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Serve the API and run the loops of an engine, until Ctrl-C or SIGTERM. Needs a database that was migrated."""
    settings = database.settings(
        http=http, http_certificate=http_certificate, http_key=http_key, grpc=grpc, internal=internal, api_key=api_key,
        open=open, **log.flags,
    )  # fmt: skip
    if settings.database_url is None:
        raise Unusable("serve needs a database: give --database-url or DATABASE_URL, or try `windlass dev`")
    check_ports(settings)
    set_up_logs(settings)
    run_async(run_serve(settings, settings.database_url, as_json=database.json))


NO_KEYS = "there is no key yet, so nobody could use this server: `windlass keys bootstrap` makes the first one"


async def run_serve(settings: Settings, url: str, *, as_json: bool) -> None:
    stop = stop_signal()
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(url, **engine_options(settings)))
        if settings.api_key is None and not await engine.access.has_keys():
            raise Unusable(NO_KEYS)
        places = await stack.enter_async_context(servers(engine, settings))
        keep_for_good()
        if as_json:
            print_json({**places, "database": without_password(url), "version": __version__})
        else:
            say(f"[bold]Windlass[/bold] {__version__} is running")
            tell_places({**places, "database": without_password(url)})
        await stop.wait()
        if not as_json:
            say("Stopping: finishing what was begun …")
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
        "tally": Tally() if settings.metrics else None,
        "pace": Pace(settings.scheduler_interval_s, settings.scheduler_batch, settings.scheduler_fires_max),
    }


def registry_options(settings: Settings) -> dict[str, Any]:
    return {
        "poll_timeout_s": settings.poll_timeout_s,
        "heartbeat_s": settings.worker_heartbeat_s,
        "stale_s": settings.worker_stale_s,
        "open": settings.is_open("registry"),
    }


def limits_of(settings: Settings, memory: Memory) -> tuple[HttpLimits, GrpcLimits]:
    """What callers may use of this process: see the settings of these names."""
    bounds = Bounds(
        settings.http_header_bytes, settings.http_header_count, settings.http_request_s, settings.http_connections,
        settings.http_address_connections,
    )  # fmt: skip
    return HttpLimits(bounds, memory), GrpcLimits(settings.grpc_connections, settings.grpc_calls, memory)


@asynccontextmanager
async def servers(engine: Engine, settings: Settings) -> AsyncIterator[dict[str, str]]:
    """All that listens, by what a person calls it, with where it is."""
    raise_limit()
    load_servers()
    async with AsyncExitStack() as stack:
        key, internal = settings.api_key, None
        memory = Memory(settings.request_memory_bytes)
        http_limits, grpc_limits = limits_of(settings, memory)
        if settings.internal is not None:  # first, so that a file that cannot be used is told before anything is begun
            internal = await stack.enter_async_context(
                open_internal(
                    engine, internal=settings.internal, certificate=settings.internal_certificate,
                    key=settings.internal_key, authority=settings.internal_ca, scratch_uri=settings.scratch_uri,
                    limits=http_limits,
                )
            )  # fmt: skip
        push = PushOptions(
            callback_url=settings.callback_url,
            targets=settings.push_targets,
            loopback=settings.push_loopback,
            secrets=push_secrets(os.environ),
            google_token=settings.google_token,
        )
        machines = open_machines(settings)
        grpc = await stack.enter_async_context(
            open_sessions(
                engine, grpc=settings.grpc, api_key=key, certificate=settings.grpc_certificate,
                key=settings.grpc_key, registry=registry_options(settings), limits=grpc_limits,
            )
        )  # fmt: skip
        api = await stack.enter_async_context(  # after gRPC: who is told that we are ready may come by either way
            open_server(
                engine, http=settings.http, api_key=key, certificate=settings.http_certificate, key=settings.http_key,
                push=push, machines=machines, limits=http_limits,
            )
        )  # fmt: skip
        engine.workers.drain_timeout_s = settings.drain_timeout_s
        await stack.enter_async_context(
            open_carriers(
                engine,
                CarrierOptions.of(settings),
                scratch_uri=settings.scratch_uri,
                targets=settings.push_targets,
                loopback=settings.push_loopback,
            )
        )
        if settings.stdio:
            await stack.enter_async_context(open_pools(engine, drain_s=settings.drain_timeout_s))
        places = {"api": f"{api}/api/v1", "metrics": f"{api}/metrics", "grpc": grpc}
        yield places if internal is None else {**places, "internal": internal}


def tell_places(places: dict[str, str]) -> None:
    for name, place in places.items():
        say(f"  {name:<9} {escape(place)}")
