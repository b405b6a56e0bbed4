"""Servers as `windlass serve` opens them: `python -m tests.cli.late_imports DSN FOLDER` prints where they are, waits
for a line, and prints which modules were imported after the first port was opened."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from windlass.cli import serve
from windlass.cli.dev_wrapper import with_certificates
from windlass.serve import open_engine
from windlass.settings import Address, Settings

before: set[str] = set()


def noted(opening: Any) -> Any:
    def opened(*given: Any, **options: Any) -> Any:
        before.update(sys.modules)
        return opening(*given, **options)

    return opened


async def main(dsn: str, folder: str) -> None:
    anywhere = Address("127.0.0.1", 0)
    settings = with_certificates(
        Settings(
            database_url=dsn, data_dir=Path(folder), http=anywhere, grpc=anywhere, internal=anywhere, api_key="k",
            stdio=True, launchers="process", push_loopback=True,
        )
    )  # fmt: skip
    serve.open_internal = noted(serve.open_internal)  # type: ignore[attr-defined]  # the first of them
    async with open_engine(dsn, **serve.engine_options(settings)) as engine, serve.servers(engine, settings) as places:
        print(json.dumps(places), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(sorted(set(sys.modules) - before)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
