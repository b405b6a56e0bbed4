"""`windlass.App`: an app that connects to its engine, in its own process or on a remote server.

The code for either is imported when the app is opened, so that a program that uses a server needs no database driver,
and a program that uses the database needs no gRPC.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TYPE_CHECKING, Unpack

from windlass import sdk
from windlass.errors import Invalid, InvalidState
from windlass.net.grpc_log import keep_grpc_quiet
from windlass.sdk.client import Client
from windlass.settings import load

if TYPE_CHECKING:
    from windlass.contracts.callback.worker.worker import CallbackOptions, CallbackWorker


class App(sdk.App):
    """`App("shop")` uses the server or the database of the settings (WINDLASS_SERVER, DATABASE_URL), else an embedded
    PostgreSQL. Set `pooled` if a transaction-mode pooler stands before the database (default: WINDLASS_POOLED).
    `App("shop", server="http://HOST:50051", api_key=KEY)` uses a server and needs no database.
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
            raise Invalid("needs a server: set `server` as well", field="api_key")

        def connect() -> AbstractAsyncContextManager[Client]:
            address, key = server, api_key
            if server is None and database_url is None and data_dir is None:
                settings = load().settings
                address, key = settings.server, settings.api_key
            if address is not None:
                keep_grpc_quiet()
                with _extra("remote", "an app that uses a server"):
                    from windlass.contracts.session.client import remote
                if not key:
                    raise Invalid(NO_KEY, field="api_key")
                return remote.connect(address, key)
            with _extra("server", "an app beside its database"):
                from windlass.serve import open_engine
            return open_engine(database_url, data_dir=data_dir, pooled=pooled)

        super().__init__(name, connect, **settings)

    def callback_worker(self, **options: Unpack[CallbackOptions]) -> CallbackWorker:
        """A worker for queues that push: an application for ASGI, FastAPI and WSGI that your service mounts. The
        `secret` is that of the queue; default: WINDLASS_SIGNING_SECRET. If the app is not open, the worker opens it
        without an engine; then it cannot submit."""
        from windlass.contracts.callback.worker.worker import CallbackOptions, CallbackWorker

        unknown = set(options) - CallbackOptions.__annotations__.keys()
        if unknown:
            raise Invalid(f"there is no option {min(unknown)}", field="options")
        if "secret" not in options:
            secret = load().settings.signing_secret
            if secret is None:
                raise Invalid("is missing: pass that of the queue, or set WINDLASS_SIGNING_SECRET", field="secret")
            options["secret"] = secret.split()
        return CallbackWorker(self, **options)


NO_KEY = "is missing: pass the key of the server, or set WINDLASS_API_KEY"


@contextmanager
def _extra(name: str, feature: str) -> Iterator[None]:
    """Name the extra to install when an import fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidState(f"{feature} needs `pip install 'windlass-engine[{name}]'`: {error}") from None


def _check_remote(server: object, api_key: object, database_url: object, data_dir: object) -> None:
    if not isinstance(server, str) or not server.startswith(("http://", "https://")):
        raise Invalid("must be like http://HOST:PORT or https://HOST:PORT", field="server")
    if not isinstance(api_key, str) or not api_key:
        raise Invalid(NO_KEY, field="api_key")
    if database_url is not None or data_dir is not None:
        raise Invalid("an app uses a server or a database, not both", field="server")
