"""The app of the package: one that knows how to reach its engine, in its own process or far away.

Imports nothing of either before it is opened, so that a program far from the database needs no database driver, and one
beside it no gRPC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Unpack

from windlass import sdk
from windlass.core.error import Invalid, InvalidState
from windlass.sdk.callback.worker import CallbackOptions, CallbackWorker
from windlass.sdk.client import Client
from windlass.settings import load
from windlass.wire.quiet import keep_grpc_quiet


class App(sdk.App):
    """`App("shop")` uses the server or the database of the settings (WINDLASS_SERVER, DATABASE_URL), else a PostgreSQL
    of its own. `pooled` says whether a transaction-mode pooler stands before the database, by default as the settings
    do (WINDLASS_POOLED). `App("shop", server="http://HOST:50051", api_key=KEY)` uses a server and needs no database.
    """

    def __init__(
        self,
        name: str,
        database_url: str | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        pooled: bool | None = None,
        server: str | None = None,
        api_key: str | None = None,
        **settings: Unpack[sdk.AppSettings],
    ) -> None:
        if server is not None:
            _check_remote(server, api_key, database_url, data_dir)
        elif api_key is not None:
            raise Invalid("is for a server: name one", field="api_key")

        def connect() -> AbstractAsyncContextManager[Client]:
            there = (server, api_key)
            if server is None and database_url is None and data_dir is None:
                known = load().settings
                there = (known.server, known.api_key)
            if there[0] is not None:
                keep_grpc_quiet()
                with _extra("remote", "an app that uses a server"):
                    from windlass.sdk import remote
                if not there[1]:
                    raise Invalid(NO_KEY, field="api_key")
                return remote.connect(there[0], there[1])
            with _extra("server", "an app beside its database"):
                from windlass.app import open_engine
            return open_engine(database_url, data_dir=data_dir, pooled=pooled)

        super().__init__(name, connect, **settings)

    def callback_worker(self, **options: Unpack[CallbackOptions]) -> CallbackWorker:
        """A worker for queues that push, which your service mounts: for ASGI, FastAPI and WSGI. The `secret` is that of
        the queue; by default the one of the settings (WINDLASS_SIGNING_SECRET). The app is opened with the worker if it
        is not open already; then it cannot submit."""
        known = load().settings.signing_secret if "secret" not in options else None
        if known is not None:
            options["secret"] = known.split()
        return super().callback_worker(**options)


NO_KEY = "a server asks for one: give it, or set WINDLASS_API_KEY"


@contextmanager
def _extra(name: str, who: str) -> Iterator[None]:
    """Say what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidState(f"{who} needs `pip install 'windlass-engine[{name}]'`: {error}") from None


def _check_remote(server: object, api_key: object, database_url: object, data_dir: object) -> None:
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise Invalid("must be like http://HOST:PORT or https://HOST:PORT", field="server")
    if not isinstance(api_key, str) or not api_key:
        raise Invalid(NO_KEY, field="api_key")
    if database_url is not None or data_dir is not None:
        raise Invalid("an app uses a server or a database, not both", field="server")
