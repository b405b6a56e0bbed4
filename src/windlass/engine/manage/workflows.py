"""Operations of workflows: record a step, read the recorded steps, send a signal, fork.

Steps of many workflows share one transaction (group commit), on another connection than the reports. The task's row is
locked for the fence, and not written.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from windlass.core.command import Command
from windlass.core.payload_reference import is_reference
from windlass.core.replay import copy
from windlass.core.step import Step, kept_by_fork
from windlass.core.step_command import SendSignal, StepCommand, StepResult, checked_step
from windlass.core.task import Task
from windlass.core.validation import check_count, check_name, check_payload, check_type
from windlass.engine.commit.committer import Committer, Pause
from windlass.engine.commit.decider import Decider, Outcomes, decide, unknown
from windlass.engine.payloads.objects import Objects
from windlass.engine.randomness import Randomness
from windlass.errors import Invalid, NotFound, TooLarge, WindlassError
from windlass.store.contexts import load_contexts
from windlass.store.errors import CommitUnknown
from windlass.store.store import Store
from windlass.store.tables.view import Views
from windlass.store.transaction import Transaction

TRANSACT_TRIES = 3


class Workflows:
    """The workflows of one engine."""

    def __init__(
        self, store: Store, randomness: Randomness, decider: Decider, objects: Objects, *, pause: Pause
    ) -> None:
        self._store, self._randomness, self._objects = store, randomness, objects
        self._steps: Committer[Command, Any] = Committer(decider.carry_out, pause=pause)
        self._signals: Committer[Command, Any] = Committer(decider.carry_out, pause=pause)
        self._loads: Committer[UUID, list[Step]] = Committer(self._load, pause=pause)

    async def close(self) -> None:
        for part in (self._steps, self._signals, self._loads):
            await part.close()

    async def record(self, command: StepCommand) -> Step:
        """Record a step of a workflow durably. Returns the record that counts, which may be an earlier one. Raises
        LeaseLost if the attempt is over."""
        try:
            checked = checked_step(command, self._randomness.jitter())
        except TooLarge:
            return await self._record_large(command)
        step = await self._steps.call(checked)
        assert isinstance(step, Step), step
        return await self._objects.whole_step(step) if is_reference(step.result) else step

    async def _record_large(self, command: StepCommand) -> Step:
        """Record a step whose result is too long for a row."""
        assert isinstance(command, StepResult), command
        checked_step(replace(command, result=b"null"), 0.0)
        async with self._objects.kept("result", command.result, command.task_id, "step") as text:
            step = await self._steps.call(replace(command, result=text))
        assert isinstance(step, Step), step
        return replace(step, result=command.result) if step.result == text else await self._objects.whole_step(step)

    async def carry_out(self, command: Command) -> Any:
        """Carry out a command about a workflow, in one transaction with the steps of others. Returns its answer."""
        return await self._steps.call(command)

    async def load(self, task_id: UUID) -> list[Step]:
        """The recorded steps of a workflow, in the order in which its code runs them."""
        check_type("task_id", task_id, UUID)
        steps = await self._loads.call(task_id)
        if any(is_reference(step.result) for step in steps):
            steps = [await self._objects.whole_step(step) for step in steps]
        return steps

    async def _load(self, task_ids: Sequence[UUID]) -> list[list[Step]]:
        async with self._store.single() as tx:
            steps = await tx.steps.task_steps(set(task_ids))
        by_task: dict[UUID, list[Step]] = {}
        for step in steps:
            by_task.setdefault(step.task_id, []).append(step)
        return [by_task.get(task_id, []) for task_id in task_ids]

    async def signal(
        self, task_id: UUID, name: str, payload: bytes = b"null", *, signal_id: UUID | None = None
    ) -> Task:
        """Send a signal to a workflow, which may wait for it now or later. Repeating a `signal_id` has no effect."""
        check_type("task_id", task_id, UUID)
        check_name("name", name)
        check_payload("payload", payload)
        if signal_id is not None:
            check_type("signal_id", signal_id, UUID)
        task = await self._signals.call(SendSignal(task_id, signal_id or self._randomness.new_id(), name, payload))
        assert isinstance(task, Task), task
        return task

    # ----------------------------------------------------------------------------------------- effect and record

    async def transact(self, command: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        """Run `work` on a connection to this database: its changes and the record of the step are committed together.
        If the reply to the commit is lost, the record shows whether it happened."""
        if not isinstance(command, StepResult):
            raise Invalid(f"must be the result of a step, not {type(command).__name__}", field="command")
        checked_step(command, 0.0)
        if not inspect.iscoroutinefunction(work):
            raise Invalid("must be an async function that takes a connection", field="work")
        for _ in range(TRANSACT_TRIES):
            try:
                async with self._store.begin() as tx:
                    place = (command.task_id, command.place.name, command.place.occurrence)
                    known = await tx.steps.known_steps({place})
                    if known and known[0].done:
                        return known[0]
                    result = await work(tx.session.connection)
                    check_payload("result", result)
                    return await self._decide(tx, replace(command, result=result))
            except CommitUnknown as error:
                unknown_commit = error
                async with self._store.begin() as tx:  # wait until the lost transaction has released the row
                    await tx.tasks.lock_tasks([command.task_id])
        raise unknown_commit

    async def _decide(self, tx: Transaction, command: StepResult) -> Step:
        outcomes: Outcomes = {}
        tasks = await tx.tasks.lock_tasks([command.task_id])
        await tx.apply(decide([command], tasks, await tx.now(), outcomes, await load_contexts(tx.session, [command])))
        outcome = outcomes.get(0) or unknown(command)
        if isinstance(outcome, WindlassError):
            raise outcome  # rolls back everything that `work` did
        assert isinstance(outcome, Step), outcome
        return outcome

    # ----------------------------------------------------------------------------------------- fork

    async def fork(self, task_id: UUID, from_step: str, *, occurrence: int = 1) -> UUID:
        """Submit a new task that keeps the steps recorded before `from_step` and runs the rest again."""
        check_type("task_id", task_id, UUID)
        check_name("from_step", from_step)
        check_count("occurrence", occurrence, least=1)
        fork_id = self._randomness.new_id()
        copies: dict[bytes, bytes] = {}
        contents: dict[bytes, bytes] = {}
        while True:
            async with self._store.begin() as tx:
                view = await Views(tx.session).get_task(task_id)
                if view is None:
                    raise NotFound(f"there is no task {task_id}", task_id=task_id)
                steps = await tx.steps.task_steps([task_id])
                kept = kept_by_fork(steps, from_step, occurrence, fork_id, await tx.now())
                referred = {text for text in (view.payload, *(s.result for s in kept)) if text and is_reference(text)}
                if referred <= copies.keys():
                    payload = copies.get(view.payload, view.payload)
                    # outside of any run, without its key and its deadline
                    fork = copy(view.task, id=fork_id, payload=payload, requires=view.requires)
                    await tx.add_missing([fork])
                    await tx.steps.begin_fork(fork_id)
                    await tx.steps.put_steps([replace(s, result=copies.get(s.result or b"", s.result)) for s in kept])
                    break
            for text in referred - copies.keys():  # the fork has its own copy, since the original may be deleted first
                content = await self._objects.load(text)
                copies[text] = await self._objects.stow("payload", content, fork_id, "step", view.task.namespace)
                contents[copies[text]] = content
        for text, content in contents.items():
            await self._objects.settle(text, content, fork_id)
        return fork_id
