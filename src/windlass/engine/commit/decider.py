"""Load, decide, apply: does the I/O for commands on tasks; their rules decide.

A batch does not wait for rows that another transaction has locked. Commands on such rows wait in a line per task, in
order, and are tried with a limited lock wait while batches go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import UUID

from windlass.core.command import Command, Complete, Report
from windlass.core.context import CommandWithContext
from windlass.core.states import State, Transition
from windlass.core.task import Task
from windlass.engine.commit.committer import Committer, Later, Pause
from windlass.engine.commit.lock_waits import LockWaits
from windlass.engine.read.metrics import Tally
from windlass.errors import Conflict, LeaseLost, NotFound, WindlassError
from windlass.store.contexts import Contexts, load_contexts
from windlass.store.store import Store
from windlass.store.transaction import Transaction

Answer = Any  # the task, the answer of the rule (`Transition.answer`), or a WindlassError
Outcomes = dict[int, Answer]
InLine = tuple[Command, asyncio.Future[Answer]]
C = TypeVar("C", bound=Command)


class Decider:
    """Carries out the commands of one engine."""

    def __init__(self, store: Store, lock_waits: LockWaits) -> None:
        self._store, self._lock_waits = store, lock_waits
        self.tally: Tally | None = None
        self._lines: dict[UUID, list[InLine]] = {}

    async def carry_out(self, commands: Sequence[Command]) -> list[Later[Answer]]:
        """Returns the answer or the error of each command; for a locked row, a future of it."""
        outcomes: Outcomes = {}
        wanted = {c.task_id for c in commands} - self._lines.keys()
        async with self._store.begin() as tx:
            tasks, now = await tx.tasks.load_tasks(sorted(wanted))
            if now is not None:
                await tx.apply(decide(commands, tasks, now, outcomes, await load_contexts(tx.session, commands)))
            left = list({c.task_id for i, c in enumerate(commands) if i not in outcomes} & wanted)
            held = await tx.tasks.existing_tasks(left) if left else set()
        self._count_late(outcomes)
        return [
            outcomes[i] if i in outcomes
            else self._stand_in_line(command) if command.task_id in held or command.task_id not in wanted
            else unknown(command)
            for i, command in enumerate(commands)
        ]  # fmt: skip

    def line(self, *, pause: Pause) -> Committer[Command, Task]:
        """A committer for commands whose outcome is their task: all but those about steps."""
        carry_out = cast("Callable[[list[Command]], Awaitable[list[Later[Task]]]]", self.carry_out)
        return Committer(carry_out, pause=pause)

    async def carry_out_reports(self, reports: Sequence[Report]) -> list[Later[Task | State]]:
        """Carry out workers' reports. Most of them are that a handler returned."""
        returned = [report for report in reports if type(report) is Complete]
        return await self.carry_out_mostly(reports, returned, Transaction.complete)

    async def carry_out_mostly(
        self,
        commands: Sequence[Command],
        plain: Sequence[C],
        write: Callable[[Transaction, Sequence[C]], Awaitable[set[UUID]]],
    ) -> list[Later[Task | State]]:
        """Write successes that need no decision (`plain`) with one statement; the outcome of each is the state of its
        task. The rest is decided like all other commands."""
        alone = self._alone(plain, commands)
        done: set[UUID] = set()
        if len(alone) * 2 > len(commands):  # otherwise a second transaction costs more than it saves
            async with self._store.single() as tx:
                done = await write(tx, alone)
        if len(done) == len(commands):
            return [State.SUCCEEDED] * len(commands)
        left = [one for one in commands if one.task_id not in done]
        rest = iter(cast("list[Later[Task | State]]", await self.carry_out(left)) if left else ())
        return [State.SUCCEEDED if one.task_id in done else next(rest) for one in commands]

    def _alone(self, plain: Sequence[C], commands: Sequence[Command]) -> Sequence[C]:
        """The commands that are the only one on their task, with nothing before them in line."""
        if self._lines:
            plain = [one for one in plain if one.task_id not in self._lines]
        if len({one.task_id for one in commands}) < len(commands):
            times = Counter(one.task_id for one in commands)
            plain = [one for one in plain if times[one.task_id] == 1]
        return plain

    def _stand_in_line(self, command: Command) -> asyncio.Future[Answer]:
        """Put a command behind the others on this task."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(command.task_id, [])
        line.append((command, answer))
        if len(line) == 1:
            self._lock_waits.later(lambda: self._serve(command.task_id, line))
        return answer

    async def _serve(self, task_id: UUID, line: list[InLine]) -> None:
        """Carry out all commands in line together; those that come meanwhile are next."""
        served = 0
        try:
            while served < len(line):
                turn = line[served:]
                answers = await self._together([command for command, _ in turn])
                served += len(turn)
                for (_, answer), outcome in zip(turn, answers, strict=True):
                    answer.set_result(outcome)
        except Exception as defect:
            for _, answer in line[served:]:
                answer.set_exception(defect)
        finally:
            del self._lines[task_id]

    async def _together(self, commands: Sequence[Command]) -> list[Answer]:
        """Carry out commands on one task, in their order."""
        outcomes: Outcomes = {}
        try:
            async with self._store.begin() as tx:
                tasks = await tx.tasks.lock_tasks([commands[0].task_id])
                contexts = await load_contexts(tx.session, commands)
                await tx.apply(decide(commands, tasks, await tx.now(), outcomes, contexts))
        except WindlassError as error:
            return [error] * len(commands)
        self._count_late(outcomes)
        return [outcomes.get(i) or unknown(command) for i, command in enumerate(commands)]

    def _count_late(self, outcomes: Outcomes) -> None:
        if self.tally is not None:
            late = sum(isinstance(outcome, LeaseLost | Conflict) for outcome in outcomes.values())
            if late:
                self.tally.came_late(late)


def decide(
    commands: Sequence[Command],
    tasks: dict[UUID, Task],
    now: datetime,
    outcomes: Outcomes,
    contexts: Contexts,
) -> list[Transition]:
    """Apply the rules in order. A later command on the same task sees the result of an earlier one."""
    moves: list[Transition] = []
    for i, command in enumerate(commands):
        task = tasks.get(command.task_id)
        if task is None:
            continue
        try:
            if isinstance(command, CommandWithContext):
                move = command.decide_with(task, contexts[command.context], now)
            else:
                move = command.decide(task, now)
        except WindlassError as error:
            outcomes[i] = error
            continue
        moves.append(move)
        tasks[task.id] = move.after
        if move.writes:
            for context in contexts.values():
                context.note(move)
        outcomes[i] = move.refusal or move.answer or move.after
    return moves


def unknown(command: Command) -> NotFound:
    return NotFound(f"there is no task {command.task_id}", task_id=command.task_id)
