"""One port for our API and for the contracts that speak HTTP: each has the paths that begin like its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.http.server import Served

Application = Callable[[Any, Any, Any], Awaitable[None]]
Prefixes = str | tuple[str, ...]


class Front:
    """What no mounted application has a prefix for is for the API."""

    def __init__(self, api: Served, *mounted: tuple[Prefixes, Application]) -> None:
        self._api, self._mounted, self.state = api, mounted, api.state

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        if scope["type"] == "http":
            for prefixes, application in self._mounted:
                if scope["path"].startswith(prefixes):
                    return application(scope, receive, send)
        return self._api(scope, receive, send)
