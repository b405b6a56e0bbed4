"""Applications whose callers show keys: what is open ends when the key is revoked, be it a long poll or a stream."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from windlass.core.error import Unauthenticated
from windlass.http.problem import refuse

Watch = Callable[[str], AbstractContextManager[None]]
Application = Callable[[Any, Any, Any], Any]


class Revocable:
    """`watch` cancels whoever is within it when this key is revoked. A stream that has begun ends where it is."""

    def __init__(self, app: Application, watch: Watch) -> None:
        self._app, self._watch, self.state = app, watch, getattr(app, "state", None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        started = False

        async def note(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            with self._watch(key):
                await self._app(scope, receive, note)
        except Unauthenticated as error:
            if not started:
                await refuse(error)(scope, receive, send)
                return
            with contextlib.suppress(Exception):  # whatever the server says of a body that ends too early
                await send({"type": "http.response.body", "body": b"", "more_body": False})


def _key(scope: Any) -> str | None:
    if scope["type"] != "http":
        return None
    shown = dict(scope["headers"]).get(b"authorization", b"").split()
    return shown[1].decode("latin-1") if len(shown) == 2 and shown[0].lower() == b"bearer" else None
