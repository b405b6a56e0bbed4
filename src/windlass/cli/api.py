"""For commands that ask the API: the flags that they share, and the client that they make.

Beside `windlass dev` no key has to be typed: it leaves its own in the data folder, which only this user can read, and
commands show it to servers on this machine only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from windlass.cli.option import Json, load
from windlass.http.client import ApiClient
from windlass.settings import Settings

KEY_FILE = "api-key"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@Parameter(name="*")
@dataclass(frozen=True)
class ApiOptions:
    url: Annotated[str | None, Parameter(help="The server; default: WINDLASS_URL, else the one on this machine.")] = (
        None
    )
    api_key: Annotated[str | None, Parameter(help="Default: WINDLASS_API_KEY, else that of `windlass dev`.")] = None
    namespace: Annotated[str | None, Parameter(name=("--namespace", "-n"), help="Default: the key's own.")] = None
    json: Json = False

    @property
    def settings(self) -> Settings:
        return load(url=self.url, api_key=self.api_key, namespace=self.namespace).settings

    def client(self, timeout_s: float = 30.0) -> ApiClient:
        known = self.settings
        return ApiClient(known.api_url, known.api_key or dev_key(known), timeout_s=timeout_s)

    @property
    def space(self) -> dict[str, object]:
        """The namespace that was asked for, as a query."""
        return {"namespace": self.settings.namespace}


HERE = ApiOptions()


def dev_key(settings: Settings) -> str | None:
    """The key that `windlass dev` left for commands in the same folder."""
    if urlsplit(settings.api_url).hostname not in LOOPBACK:
        return None
    try:
        return key_file(settings).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def key_file(settings: Settings) -> Path:
    return settings.data_dir / KEY_FILE
