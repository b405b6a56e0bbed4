"""Adds the session contract to a server: its gRPC services."""

from __future__ import annotations

from windlass.api.framework import mount
from windlass.contracts.session.server.server import SessionServer
from windlass.net.grpc_server import Service


class Mount(mount.Mount[None]):
    """The session contract on an engine."""

    def services(self) -> list[Service]:
        server = SessionServer(self.engine, self.engine.keys.identify)
        return [Service(name, handler, server.guard) for name, handler in server.handlers().items()]
