"""PostgreSQL as the carrier of wake-ups: the default, which needs nothing but the database that is there.

Workers have no database: they ask a server for their messages, with their certificate (see `internal`).
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.wakeup import Letter
from windlass.engine.message import Messages
from windlass.wire.wakeup import message_of


class PostgresSender:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def send(self, letters: Sequence[Letter]) -> None:
        """The id of a letter is that of its message, so that one which nobody has received yet is not there twice."""
        known = {letter.id: letter for letter in letters}
        await self._messages.put(
            [(letter.id, letter.namespace, letter.queue, message_of(letter.task_id)) for letter in known.values()]
        )

    async def check(self) -> str:
        return "wake-ups go through the database itself"

    async def close(self) -> None:
        pass
