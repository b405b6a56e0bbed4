"""PostgreSQL as the carrier of wake-ups: the default, which needs no other service.

Workers have no database: they receive their messages from a server, with their certificate (see `internal`).
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.contracts.lease.wakeups.messages import Messages
from windlass.contracts.lease.wakeups.rules import WakeupMessage
from windlass.contracts.lease.wire.wakeup import message_of


class PostgresSender:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages

    async def send(self, messages: Sequence[WakeupMessage]) -> None:
        """The row has the id of the message, so a message that no worker has received yet is not stored twice."""
        unique = {message.id: message for message in messages}
        await self._messages.put([(m.id, m.namespace, m.queue, message_of(m.task_id)) for m in unique.values()])

    async def check(self) -> str:
        return "wake-ups go through the database itself"

    async def close(self) -> None:
        pass
