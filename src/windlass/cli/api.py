"""Flags and HTTP client of the commands that call the API.

`windlass dev` writes its API key to a file in the data folder that only this user can read, so commands in the same
folder need no key. They send this key to servers on this machine only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from windlass.api.client import ApiClient
from windlass.cli.options import Json, load
from windlass.settings import Settings

KEY_FILE = "api-key"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclass(frozen=True)
class ApiOptions:
    """Flags of commands that call the API."""

    url: Annotated[str | None, Parameter(help="URL of the server. Default: WINDLASS_URL, else this machine.")] = None
    api_key: Annotated[
        str | None, Parameter(help="API key. Default: WINDLASS_API_KEY, else that of `windlass dev`.")
    ] = None
    namespace: Annotated[
        str | None, Parameter(name=("--namespace", "-n"), help="Namespace. Default: that of the key.")
    ] = None
    json: Json = False

    @property
    def settings(self) -> Settings:
        return load(url=self.url, api_key=self.api_key, namespace=self.namespace).settings

    def client(self, timeout_s: float = 30.0) -> ApiClient:
        known = self.settings
        return ApiClient(known.api_url, known.api_key or dev_key(known), timeout_s=timeout_s)

    @property
    def space(self) -> dict[str, object]:
        """The namespace of the flags or settings, as a query."""
        return {"namespace": self.settings.namespace}


HERE = ApiOptions()


def dev_key(settings: Settings) -> str | None:
    """The key that `windlass dev` has stored in the data folder, for servers on this machine."""
    if urlsplit(settings.api_url).hostname not in LOOPBACK:
        return None
    try:
        return key_file(settings).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def key_file(settings: Settings) -> Path:
    return settings.data_dir / KEY_FILE
