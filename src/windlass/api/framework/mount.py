"""What a room adds to the servers of a process. The module `mount` of each room has a subclass `Mount`.

That module imports at its top what its servers need, because `serve` imports it before it opens a port.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from windlass.api.framework.application import Application
from windlass.engine.engine import Engine
from windlass.errors import Invalid

if TYPE_CHECKING:
    from windlass.net.grpc_server import Service

Options = TypeVar("Options")
Prefix = str | tuple[str, ...]


class Mount(Generic[Options]):
    """A room on an engine. This one adds nothing. `options` are those of the room, if the server has any for it;
    `loopback` says whether only this machine reaches the port."""

    def __init__(
        self, engine: Engine, options: Options | None = None, *, version: str = "unknown", loopback: bool = True
    ) -> None:
        self.engine, self.options, self.version, self.loopback = engine, options, version, loopback

    def applications(self) -> dict[Prefix, Application]:
        """The applications on the port of our API, by the prefixes of their paths."""
        return {}

    def services(self) -> list[Service]:
        """The services on the gRPC port."""
        return []

    def running(self, _options: Options, _url: str) -> AbstractAsyncContextManager[None]:
        """Handle effects and run loops until the block ends, on a server that has options for this room. `url` is where
        our API listens."""
        return nullcontext()

    def check_open(self) -> None:
        """Raise Invalid unless callers without a key may be admitted."""
        if not self.loopback:
            raise Invalid("without a key only on loopback, such as 127.0.0.1", field="open")
