"""One gRPC server for all services of a process, with health and reflection, with or without TLS.

It knows no service: each brings its name and its handlers. The options suit long polls, which are silent for a minute,
and streams that stay open.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from windlass.errors import Invalid
from windlass.net.file_limits import connections_room
from windlass.net.file_watcher import Watched
from windlass.net.grpc_admission import CALLS_MAX, Admission, Guard
from windlass.net.grpc_channel import MESSAGE_MAX_BYTES
from windlass.net.grpc_reflection import ALPHA_SERVICE, V1_SERVICE, pool_of
from windlass.net.memory import Memory

log = logging.getLogger("windlass.tls")

METADATA_MAX_BYTES = 1024 * 1024  # a worker may list all its running tasks
HANDSHAKE_S, IDLE_S = 10, 300

OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_MAX_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # notices a peer that vanished
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # clients may ping while they wait
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # an address in use is an error
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
    ("grpc.http2.settings_timeout", HANDSHAKE_S * 1000),
    ("grpc.max_connection_idle_ms", IDLE_S * 1000),  # without any call; the client then reconnects
]


class Service(NamedTuple):
    """A gRPC service and its guard."""

    name: str
    handler: Any
    guard: Guard


class Limits(NamedTuple):
    """What callers may use of this process; `memory` is shared by all of its servers."""

    connections: int = 4096
    calls: int = CALLS_MAX
    memory: Memory | None = None


USUAL_LIMITS = Limits()


class Tls(NamedTuple):
    """The files of a server's certificate (with its chain) and of its key, both PEM."""

    certificate: Path
    key: Path


@asynccontextmanager
async def serving(
    services: Sequence[Service],
    address: str,
    tls: Tls | None = None,
    *,
    message_max_bytes: int = MESSAGE_MAX_BYTES,
    limits: Limits = USUAL_LIMITS,
) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port. `address` is HOST:PORT; port 0 takes a free one. Messages longer
    than `message_max_bytes` are refused. Callers of the first service may use reflection."""
    credentials = None if tls is None else _credentials(tls)
    guards = {service.name: service.guard for service in services}
    guards |= dict.fromkeys((ALPHA_SERVICE, V1_SERVICE), Guard(services[0].guard.admit))
    admission = Admission(guards, limits.memory or Memory(), limits.calls)
    options = [
        *OPTIONS,
        ("grpc.max_receive_message_length", message_max_bytes),
        ("grpc.max_allowed_incoming_connections", connections_room(limits.connections)),
    ]
    server = grpc.aio.server(interceptors=[admission], options=options)
    alive = health.HealthServicer()
    server.add_generic_rpc_handlers([service.handler for service in services])
    health_pb2_grpc.add_HealthServicer_to_server(alive, server)
    names = [service.name for service in services]
    server.add_generic_rpc_handlers(_reflection((*names, "grpc.health.v1.Health")))
    for name in ("", *names):
        await alive.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise Invalid(
            f"cannot listen on {address}: another program may listen there already; choose another address",
            field="grpc",
        ) from None
    await server.start()
    try:
        yield int(port)
    finally:
        await alive.enter_graceful_shutdown()
        await server.stop(0)


def _reflection(services: Sequence[str]) -> list[Any]:
    """The handlers of both versions, which differ only in name: new clients use v1, old ones v1alpha."""
    names = (*services, ALPHA_SERVICE, V1_SERVICE)
    servicer = reflection.aio.ReflectionServicer(names, pool_of(services))
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method})
        for name in (ALPHA_SERVICE, V1_SERVICE)
    ]


def _credentials(tls: Tls) -> Any:
    """Credentials that reload replaced files at the next connection, if they are valid."""
    watched = Watched(tls)

    def newest() -> Any:
        if not watched.replaced():
            return None
        try:
            return _certificates(tls)
        except Invalid as error:
            log.warning("the replaced certificate files cannot be used: %s", error)
            return None

    return grpc.dynamic_ssl_server_credentials(_certificates(tls), newest)


def _certificates(tls: Tls) -> Any:
    read: dict[str, bytes] = {}
    for field, file in (("grpc_certificate", tls.certificate), ("grpc_key", tls.key)):
        try:
            read[field] = file.read_bytes()
        except OSError as error:
            raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=field) from None
        if b"-----BEGIN " not in read[field]:
            raise Invalid(f"the file {file} is not PEM", field=field)
    return grpc.ssl_server_certificate_configuration([(read["grpc_key"], read["grpc_certificate"])])
