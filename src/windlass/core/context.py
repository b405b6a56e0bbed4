"""Commands that need more than the row of their task.

Such a command names the class of its context. The module that owns the rows registers a loader for that class with the
store (`store.contexts`). The loader reads them under the lock of the task, once for all commands of a batch.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from windlass.core.states import Instant, Transition
from windlass.core.task import Task


class CommandContext:
    """The rows that the commands of a batch need besides their tasks. Without arguments it is empty."""

    def note(self, transition: Transition) -> None:
        """Add the writes of one command, so that the next command of the batch sees them."""


class CommandWithContext(msgspec.Struct, frozen=True):
    """A command that is decided with its context."""

    context: ClassVar[type[CommandContext]]

    def decide(self, task: Task, now: Instant) -> Transition:
        return self.decide_with(task, self.context(), now)

    def decide_with(self, task: Task, context: Any, now: Instant) -> Transition:
        raise NotImplementedError
