"""Adds the registry contract to a server: its gRPC service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.api.framework import mount
from windlass.contracts.registry.server.call import Options
from windlass.contracts.registry.server.server import RegistryServer
from windlass.contracts.registry.wire.service import SERVICE
from windlass.net.grpc_server import Service


class Mount(mount.Mount[Mapping[str, Any]]):
    """The registry contract on an engine. Its options are the fields of `Options`."""

    def services(self) -> list[Service]:
        options = Options(**(self.options or {}))
        if options.open:
            self.check_open()
        server = RegistryServer(self.engine, self.engine.keys.identify, options)
        return [Service(SERVICE, server.handler(), server.guard)]
