"""Flags, HTTP client and output of the commands that call the API.

`windlass dev` writes its API key to a file in the data folder that only this user can read, so commands in the same
folder need no key. They send this key to servers on this machine only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from cyclopts import Parameter
from rich.live import Live

from windlass.api.client import ApiClient, ApiPath
from windlass.cli.options import Json, load
from windlass.cli.output import console, print_json, render_table, table
from windlass.settings import LOOPBACK, Settings

REFRESH_S = 1.0

Watch = Annotated[
    bool, Parameter(name=("--watch", "-w"), show_default=False, help="Refresh every second, until Ctrl-C.")
]


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

    def show(self, answer: object, text: str) -> None:
        """Prints the answer as JSON, or else the text."""
        if self.json:
            print_json(answer)
        else:
            console.print(text, markup=False)

    def show_table(self, answer: object, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
        """Prints the answer as JSON, or else the rows as a table."""
        if self.json:
            print_json(answer)
        else:
            table(columns, rows, nothing=empty)

    def show_items(
        self,
        path: ApiPath,
        query: Mapping[str, object],
        columns: Sequence[str],
        row_of: Callable[[dict[str, Any]], Sequence[object]],
        *,
        limit: int = 10_000,
        watch: bool = False,
        empty: str,
    ) -> None:
        """Prints the items of a list of the API. With `watch`, refreshes the table on a terminal until Ctrl-C."""
        client = self.client()

        def items() -> Iterable[dict[str, Any]]:
            return client.items(path, query, limit)

        if not (watch and console.is_terminal) or self.json:
            found = list(items())
            self.show_table(found, columns, map(row_of, found), empty)
            return
        with (
            suppress(KeyboardInterrupt),
            Live(render_table(columns, map(row_of, items())), console=console, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(REFRESH_S)
                live.update(render_table(columns, map(row_of, items())), refresh=True)


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
    return settings.data_dir / "api-key"
