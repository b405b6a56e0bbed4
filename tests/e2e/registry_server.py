"""A gRPC server as a process that notices dead workers soon: `python -m tests.e2e.registry_server DSN HOST:PORT KEY
HEARTBEAT_S STALE_S`."""

from __future__ import annotations

import asyncio
import signal
import sys

from tests.e2e.child import show_tasks

from windlass import open_engine
from windlass.serve import open_sessions


async def main(dsn: str, address: str, key: str, heartbeat_s: str, stale_s: str) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, show_tasks)
    options = {"heartbeat_s": float(heartbeat_s), "stale_s": float(stale_s)}
    async with (
        open_engine(dsn) as engine,
        open_sessions(engine, grpc=address, api_key=key, registry=options) as url,
    ):
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:6]))
