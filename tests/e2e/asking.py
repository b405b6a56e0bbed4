"""Questions to a database that is killed now and then: asked again until it is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from windlass.errors import Unavailable
from windlass.store.errors import translate

POLL_S = 0.05
BACK_S = 120.0


class Asking:
    """For whoever has a `dsn`, can bring its PostgreSQL back, and can tell what is to be seen when that fails."""

    dsn: str
    _connection: asyncpg.Connection | None = None

    async def look_after_postgresql(self) -> None:
        raise NotImplementedError

    def report(self, problem: str) -> str:
        raise NotImplementedError

    async def ask(self, question: Callable[[asyncpg.Connection], Awaitable[Any]]) -> Any:
        """Ask the database, for as long as it takes to come back."""
        until_s = time.monotonic() + BACK_S
        while True:
            try:
                if self._connection is None:
                    self._connection = await asyncpg.connect(self.dsn, timeout=15)
                return await asyncio.wait_for(question(self._connection), 30)
            except Exception as error:
                if not isinstance(translate(error), Unavailable):
                    raise
                self.hang_up()
                assert time.monotonic() < until_s, self.report("PostgreSQL did not come back")
                await self.look_after_postgresql()
                await asyncio.sleep(POLL_S)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
