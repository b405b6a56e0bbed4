"""Load, decide, apply: how commands on tasks become changes. I/O and no decisions.

Rows that somebody else holds are not waited for in the batch. Their commands stand in a line of their own, one a task
so that they keep their order, and are tried with a limit on the wait, while the batches go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar, cast
from uuid import UUID

from windlass.core.command import Command, Complete, Informed, Report
from windlass.core.error import Conflict, LeaseLost, NotFound, WindlassError
from windlass.core.step import Facts, Step
from windlass.core.step_attempt import StepAttempt
from windlass.core.task import Task
from windlass.core.transition import State, Transition
from windlass.engine.committer import Committer, Later, Pause
from windlass.engine.facts import INFORMED, load_facts
from windlass.engine.metrics import Tally
from windlass.engine.patience import Patience
from windlass.store.store import Store
from windlass.store.tx import Tx

Answer = Task | Step | StepAttempt | WindlassError
Outcomes = dict[int, Answer]
InLine = tuple[Command, asyncio.Future[Answer]]
C = TypeVar("C", bound=Command)


class Decider:
    """Carries out the commands of one engine."""

    def __init__(self, store: Store, patience: Patience) -> None:
        self._store, self._patience = store, patience
        self.tally: Tally | None = None
        self._lines: dict[UUID, list[InLine]] = {}

    async def carry_out(self, commands: Sequence[Command]) -> list[Later[Task | Step | StepAttempt]]:
        """One outcome per command: the task as it is now, or why not; for a row that is held, a future of that."""
        outcomes: Outcomes = {}
        wanted = {c.task_id for c in commands} - self._lines.keys()
        async with self._store.begin() as tx:
            tasks, now = await tx.tasks.load_tasks(sorted(wanted))
            if now is not None:
                await tx.apply(decide(commands, tasks, now, outcomes, await load_facts(tx, commands)))
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
        """A line for commands of which none is about a step: the outcome of each is its task."""
        carry_out = cast("Callable[[list[Command]], Awaitable[list[Later[Task]]]]", self.carry_out)
        return Committer(carry_out, pause=pause)

    async def carry_out_reports(self, reports: Sequence[Report]) -> list[Later[Task | State]]:
        """What workers say: most of it is that a handler returned."""
        returned = [report for report in reports if type(report) is Complete]
        return await self.carry_out_mostly(reports, returned, Tx.complete)

    async def carry_out_mostly(
        self, said: Sequence[Command], plain: Sequence[C], write: Callable[[Tx, Sequence[C]], Awaitable[set[UUID]]]
    ) -> list[Later[Task | State]]:
        """Successes about which there is nothing to weigh (`plain`) are written at once, and the outcome of each is the
        state of its task. What is left is decided like all other commands."""
        alone = self._alone(plain, said)
        done: set[UUID] = set()
        if len(alone) * 2 > len(said):  # otherwise a second transaction costs more than it saves
            async with self._store.single() as tx:
                done = await write(tx, alone)
        if len(done) == len(said):
            return [State.SUCCEEDED] * len(said)
        left = [one for one in said if one.task_id not in done]
        rest = iter(cast("list[Later[Task | State]]", await self.carry_out(left)) if left else ())
        return [State.SUCCEEDED if one.task_id in done else next(rest) for one in said]

    def _alone(self, plain: Sequence[C], said: Sequence[Command]) -> Sequence[C]:
        """Those that are the only thing that is said of their task, with nothing before them in line."""
        if self._lines:
            plain = [one for one in plain if one.task_id not in self._lines]
        if len({one.task_id for one in said}) < len(said):
            times = Counter(one.task_id for one in said)
            plain = [one for one in plain if times[one.task_id] == 1]
        return plain

    def _stand_in_line(self, command: Command) -> asyncio.Future[Answer]:
        """Behind the other commands on this task."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(command.task_id, [])
        line.append((command, answer))
        if len(line) == 1:
            self._patience.later(lambda: self._serve(command.task_id, line))
        return answer

    async def _serve(self, task_id: UUID, line: list[InLine]) -> None:
        """All who have come by then at once; who comes meanwhile is served next."""
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
        """Commands on one task, in their order."""
        outcomes: Outcomes = {}
        try:
            async with self._store.begin() as tx:
                tasks = await tx.tasks.load_tasks_patiently([commands[0].task_id])
                facts = await load_facts(tx, commands)
                await tx.apply(decide(commands, tasks, await tx.now(), outcomes, facts))
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
    commands: Sequence[Command], tasks: dict[UUID, Task], now: datetime, outcomes: Outcomes, facts: Facts | None = None
) -> list[Transition]:
    """Ask the rules, in order; a later command on the same task sees what an earlier one made of it. The outcome of a
    command about a step is the record of the step, of any other the task."""
    moves: list[Transition] = []
    facts = facts or Facts()
    for i, command in enumerate(commands):
        task = tasks.get(command.task_id)
        if task is None:
            continue
        try:
            if type(command) in INFORMED:
                move = cast("Informed", command).decide_with(task, facts, now)
            else:
                move = command.decide(task, now)
        except WindlassError as error:
            outcomes[i] = error
            continue
        moves.append(move)
        tasks[task.id] = move.after
        if move.steps or move.signals or move.attempts or move.events or move.publishes:
            facts.note(move)
        about_step = move.steps[-1:] or move.attempts[-1:]
        outcomes[i] = move.refusal or move.told or (about_step[0] if about_step else move.after)
    return moves


def unknown(command: Command) -> NotFound:
    return NotFound(f"there is no task {command.task_id}", task_id=command.task_id)
