"""Reads what the commands of a batch have to know besides their tasks, under the locks that are held already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from windlass.core.command import Command, Sleep
from windlass.core.holder import Emit, Finish, PublishBatch
from windlass.core.step import Facts
from windlass.core.step_command import STEP_COMMANDS, SendSignal, StepChild, StepResult, StepSignal
from windlass.core.workflow_command import STEP_TRIES, WorkflowSleep
from windlass.store.tx import Tx

HOLDERS = (Finish, Emit, PublishBatch)
INFORMED = STEP_COMMANDS | STEP_TRIES | {Sleep, SendSignal, WorkflowSleep, *HOLDERS}


async def load_facts(tx: Tx, commands: Sequence[Command]) -> Facts:
    """At most one query for each kind of fact; none at all for a batch that asks for none."""
    informed = [command for command in commands if type(command) in INFORMED]
    if not informed:
        return Facts()
    if all(type(command) in HOLDERS for command in informed):
        return await _load_holds(tx, informed)
    keys: set[tuple[UUID, str, int]] = set()
    signals: set[tuple[UUID, str]] = set()
    sent: set[tuple[UUID, str]] = set()
    signal_ids: set[UUID] = set()
    children: set[UUID] = set()
    tried: set[tuple[UUID, str, int]] = set()
    asleep: set[UUID] = set()
    for command in informed:
        said: Any = command
        if type(said) in STEP_COMMANDS:
            keys.add((said.task_id, said.place.name, said.place.occurrence))
        if type(said) is StepResult:
            continue
        if type(said) in STEP_TRIES:
            tried.add((said.task_id, said.name, said.occurrence))
            continue
        match said:
            case StepSignal():
                signals.add((said.task_id, said.signal))
            case StepChild():
                children.add(said.child_id)
            case WorkflowSleep():
                asleep.add(said.task_id)
            case Sleep():
                signals.update((said.task_id, name) for name in said.signals)
                children.update(said.children)
            case SendSignal():
                sent.add((said.task_id, said.name))
                signal_ids.add(said.signal_id)
    return Facts(
        await tx.steps.known_steps(keys | tried),
        await tx.steps.pending_signals(signals),
        await tx.steps.awaited_signals(sent),
        await tx.steps.child_tasks(children),
        [*await tx.attempts.latest_attempts(tried), *await tx.attempts.open_attempts(asleep)],
        await tx.attempts.next_positions({key[0] for key in tried} | asleep),
        sent=await tx.steps.sent_signals(signal_ids),
    )


async def _load_holds(tx: Tx, commands: Sequence[Any]) -> Facts:
    """What those who tell of data are held against: their leases, what they may write, what is recorded."""
    telling = {said.task_id for said in commands if type(said) is not Finish or said.events}
    if not telling:
        return Facts()
    events = {one.id_of(said.task_id) for said in commands if type(said) is not PublishBatch for one in said.events}
    batches = {said.batch.id_of(said.task_id, said.fence.attempt) for said in commands if type(said) is PublishBatch}
    return Facts(
        holds=await tx.holders.holds(telling),
        events=await tx.datasets.known_events(events),
        publishes=await tx.datasets.known_publishes(batches),
    )
