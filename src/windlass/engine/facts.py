"""Reads what the commands of a batch have to know besides their tasks, under the locks that are held already."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from windlass.core.command import Command, Informed, Sleep
from windlass.core.step import Facts
from windlass.core.step_command import SendSignal, StepChild, StepCommand, StepSignal
from windlass.store.tx import Tx


async def load_facts(tx: Tx, commands: Sequence[Command]) -> Facts:
    """At most one query for each kind of fact; none at all for a batch that asks for none."""
    informed: list[object] = [command for command in commands if isinstance(command, Informed)]
    if not informed:
        return Facts()
    keys: set[tuple[UUID, str, int]] = set()
    signals: set[tuple[UUID, str]] = set()
    sent: set[tuple[UUID, str]] = set()
    children: set[UUID] = set()
    for command in informed:
        if isinstance(command, StepCommand):
            keys.add((command.task_id, command.place.name, command.place.occurrence))
        match command:
            case StepSignal():
                signals.add((command.task_id, command.signal))
            case StepChild():
                children.add(command.child_id)
            case Sleep():
                signals.update((command.task_id, name) for name in command.signals)
                children.update(command.children)
            case SendSignal():
                sent.add((command.task_id, command.name))
    return Facts(
        await tx.steps.known_steps(keys),
        await tx.steps.pending_signals(signals),
        await tx.steps.awaited_signals(sent),
        await tx.steps.child_tasks(children),
    )
