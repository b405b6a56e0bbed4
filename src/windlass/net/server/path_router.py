"""One port for our API and the HTTP contracts: a path goes to the application that has its prefix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from windlass.net.server.server import AsgiApplication

Application = Callable[[Any, Any, Any], Awaitable[None]]
Prefixes = str | tuple[str, ...]


class PathRouter:
    """Sends each request to the application with its prefix, and all others to the API."""

    def __init__(self, api: AsgiApplication, *mounts: tuple[Prefixes, Application]) -> None:
        self._api, self._mounted, self.state = api, mounts, api.state

    def __call__(self, scope: Any, receive: Any, send: Any) -> Awaitable[None]:
        if scope["type"] == "http":
            for prefixes, application in self._mounted:
                if scope["path"].startswith(prefixes):
                    return application(scope, receive, send)
        return self._api(scope, receive, send)
