"""A process that does nothing but run the loops of an engine: `python -m tests.e2e.scheduler DSN`."""

from __future__ import annotations

import asyncio
import sys

from windlass.serve import open_engine


async def main(dsn: str) -> None:
    async with open_engine(dsn):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
