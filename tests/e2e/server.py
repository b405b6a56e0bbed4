"""A gRPC server as a process: `python -m tests.e2e.server DSN HOST:PORT KEY`. Says its URL when it serves."""

from __future__ import annotations

import asyncio
import sys

from windlass import open_engine
from windlass.serve import open_sessions


async def main(dsn: str, address: str, key: str) -> None:
    async with open_engine(dsn) as engine, open_sessions(engine, grpc=address, api_key=key) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
