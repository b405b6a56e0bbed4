"""Loaders of the rows that commands need besides their tasks (`core.context`), by the class of the context.

The module that owns the rows registers the loader. A batch calls it at most once, with the commands that need its
context. It makes at most one query for each kind of row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from windlass.core.command import Command
from windlass.core.context import CommandContext, CommandWithContext
from windlass.store.pool import Session

C = TypeVar("C", bound=CommandContext)
Contexts = dict[type[CommandContext], CommandContext]

_LOADERS: dict[type[CommandContext], Callable[[Session, Sequence[Any]], Awaitable[CommandContext]]] = {}


def register_loader(kind: type[C], load: Callable[[Session, Sequence[Any]], Awaitable[C]]) -> None:
    assert kind not in _LOADERS, f"{kind.__name__} has a loader already"
    _LOADERS[kind] = load


async def load_contexts(session: Session, commands: Sequence[Command]) -> Contexts:
    """The contexts that the commands of a batch need, read under the locks that the transaction holds."""
    by_context: dict[type[CommandContext], list[CommandWithContext]] = {}
    for command in commands:
        if isinstance(command, CommandWithContext):
            by_context.setdefault(command.context, []).append(command)
    return {kind: await _LOADERS[kind](session, group) for kind, group in by_context.items()}
