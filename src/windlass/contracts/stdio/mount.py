"""Adds the stdio contract to a server: the pools of its programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from windlass.api.framework import mount
from windlass.contracts.stdio.delivery import Stdio
from windlass.contracts.stdio.host import StdioHost


class Mount(mount.Mount[Mapping[str, Any]]):
    """The stdio contract on an engine. Its options are those of `StdioHost`."""

    @asynccontextmanager
    async def running(self, options: Mapping[str, Any], _url: str) -> AsyncIterator[None]:
        async with StdioHost(self.engine, lambda: self.engine.queues.delivered(Stdio), **options):
            yield
