"""Load, decide, apply: how commands on tasks become changes. I/O and no decisions.

Rows that somebody else holds are not waited for in the batch: they are tried again afterwards, each on its own, with
a limit on the wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from windlass.core.command import Command
from windlass.core.error import NotFound, StoreBusy, WindlassError
from windlass.core.task import Task
from windlass.core.transition import Transition
from windlass.store.store import Store
from windlass.store.tx import Tx

Outcomes = dict[int, Task | WindlassError]


async def carry_out(store: Store, commands: Sequence[Command]) -> list[Task | WindlassError]:
    """One outcome per command: the task as it is now, or why not."""
    outcomes: Outcomes = {}
    async with store.begin() as tx:
        tasks, now = await tx.tasks.load_tasks(sorted({c.task_id for c in commands}))
        if now is not None:
            await tx.apply(decide(commands, tasks, now, outcomes))
        left = [i for i in range(len(commands)) if i not in outcomes]
        existing = await tx.tasks.existing_tasks(list({commands[i].task_id for i in left})) if left else set()
    for i in left:
        outcomes[i] = await _alone(store, commands[i]) if commands[i].task_id in existing else unknown(commands[i])
    return [outcomes[i] for i in range(len(commands))]


def decide(commands: Sequence[Command], tasks: dict[UUID, Task], now: datetime, outcomes: Outcomes) -> list[Transition]:
    """Ask the rules, in order; a later command on the same task sees what an earlier one made of it."""
    moves: list[Transition] = []
    for i, command in enumerate(commands):
        task = tasks.get(command.task_id)
        if task is None:
            continue
        try:
            move = command.decide(task, now)
        except WindlassError as error:
            outcomes[i] = error
            continue
        moves.append(move)
        tasks[task.id] = move.after
        outcomes[i] = move.refusal or move.after
    return moves


async def _alone(store: Store, command: Command) -> Task | WindlassError:
    """Wait for the row's lock, but not for ever."""
    outcomes: Outcomes = {}
    try:
        async with store.begin() as tx:
            tasks = await tx.tasks.load_tasks_patiently([command.task_id])
            await tx.apply(decide([command], tasks, await tx.now(), outcomes))
    except StoreBusy as error:
        return error
    return outcomes.get(0) or unknown(command)


def unknown(command: Command) -> NotFound:
    return NotFound(f"there is no task {command.task_id}", task_id=command.task_id)


async def apply_rule(tx: Tx, moves: Sequence[Transition]) -> int:
    """For ticks: write what was decided, say how much changed."""
    await tx.apply(moves)
    return sum(move.changed for move in moves)
