"""One gRPC server for all services that a process offers, with health and reflection, in the clear or with TLS.

Knows no service: each brings its name and its handlers. The options suit calls that are open for a minute without a
word (long polls) and streams that are open for ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from windlass.core.error import Invalid
from windlass.wire.reflection import ALPHA_SERVICE, V1_SERVICE, pool_of
from windlass.wire.session import MESSAGE_MAX_BYTES

METADATA_MAX_BYTES = 1024 * 1024  # a worker may name all that it runs

OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", METADATA_MAX_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # a peer that vanished without a word is noticed
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # clients may ping while they wait
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # an address in use is told at once
]


class Service(NamedTuple):
    """What is served under a name."""

    name: str
    handler: Any


class Tls(NamedTuple):
    """The files of a server's certificate (with its chain) and of its key, both PEM."""

    certificate: Path
    key: Path


@asynccontextmanager
async def serving(
    services: Sequence[Service], address: str, tls: Tls | None = None, *, message_max_bytes: int = MESSAGE_MAX_BYTES
) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port. `address` is HOST:PORT; port 0 takes any that is free. Messages that
    are longer are not taken."""
    credentials = None if tls is None else _credentials(tls)
    server = grpc.aio.server(options=[*OPTIONS, ("grpc.max_receive_message_length", message_max_bytes)])
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
    """Both versions, which differ in nothing but their names: new clients ask for v1 and old ones for v1alpha."""
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
    read: dict[str, bytes] = {}
    for field, file in (("grpc_certificate", tls.certificate), ("grpc_key", tls.key)):
        try:
            read[field] = file.read_bytes()
        except OSError as error:
            raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=field) from None
        if b"-----BEGIN " not in read[field]:
            raise Invalid(f"the file {file} is not PEM", field=field)
    return grpc.ssl_server_credentials([(read["grpc_key"], read["grpc_certificate"])])
