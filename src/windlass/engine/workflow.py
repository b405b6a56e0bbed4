"""What workflows ask of the engine: to record a step, to read what is recorded, to send a signal, to fork.

Steps of many workflows share one transaction (group commit), on a connection beside that of the reports. The task's row
is locked, for the fence, and not written.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from windlass.core.check import check_count, check_name, check_payload, check_type
from windlass.core.command import Command
from windlass.core.error import Invalid, NotFound, TooLarge, WindlassError
from windlass.core.reference import is_reference
from windlass.core.step import Step, kept_by_fork
from windlass.core.step_attempt import StepAttempt
from windlass.core.step_command import SendSignal, StepCommand, StepResult, checked_step
from windlass.core.submission import Submission
from windlass.core.task import Task
from windlass.core.workflow_command import StepComplete, WorkflowCommand, WorkflowComplete, checked_command
from windlass.engine.chance import Chance
from windlass.engine.committer import Committer, Pause
from windlass.engine.decide import Decider, Outcomes, decide, unknown
from windlass.engine.facts import load_facts
from windlass.engine.objects import Objects
from windlass.store.fault import CommitUnknown
from windlass.store.store import Store
from windlass.store.tx import Tx
from windlass.store.view import TaskView, Views

TRANSACT_TRIES = 3


class Workflows:
    """The workflows of one engine."""

    def __init__(self, store: Store, chance: Chance, decider: Decider, objects: Objects, *, pause: Pause) -> None:
        self._store, self._chance, self._objects = store, chance, objects
        self._steps: Committer[Command, Task | Step | StepAttempt] = Committer(decider.carry_out, pause=pause)
        self._signals: Committer[Command, Task | Step | StepAttempt] = Committer(decider.carry_out, pause=pause)
        self._loads: Committer[UUID, list[Step]] = Committer(self._load, pause=pause)

    async def close(self) -> None:
        for part in (self._steps, self._signals, self._loads):
            await part.close()

    async def record(self, said: StepCommand) -> Step:
        try:
            checked = checked_step(said, self._chance.jitter())
        except TooLarge:
            return await self._record_large(said)
        step = await self._steps.call(checked)
        assert isinstance(step, Step), step
        return await self._objects.whole_step(step) if is_reference(step.result) else step

    async def _record_large(self, said: StepCommand) -> Step:
        """What it returned is too long for a row."""
        assert isinstance(said, StepResult), said
        checked_step(replace(said, result=b"null"), 0.0)
        async with self._objects.kept("result", said.result, said.task_id, "step") as text:
            step = await self._steps.call(replace(said, result=text))
        assert isinstance(step, Step), step
        return replace(step, result=said.result) if step.result == text else await self._objects.whole_step(step)

    async def say(self, said: WorkflowCommand) -> Task | Step | StepAttempt:
        """What a worker says that need not name its attempt; the answer is what stands now."""
        try:
            checked = checked_command(said, self._chance.jitter())
        except TooLarge:
            assert isinstance(said, WorkflowComplete | StepComplete), said
            checked_command(replace(said, result=b"null"), 0.0)
            what = "result" if isinstance(said, WorkflowComplete) else "step"
            async with self._objects.kept("output", said.result, said.task_id, what) as text:
                return await self._steps.call(replace(said, result=text))
        answer = await self._steps.call(checked)
        return await self._objects.whole_step(answer) if isinstance(answer, Step) else answer

    async def attempts(self, task_id: UUID) -> list[StepAttempt]:
        """Every try at a step that was begun over a wire which tells of that, in their order."""
        check_type("task_id", task_id, UUID)
        async with self._store.single() as tx:
            return await tx.attempts.task_attempts(task_id)

    async def attempt(self, attempt_id: UUID) -> StepAttempt:
        check_type("attempt_id", attempt_id, UUID)
        async with self._store.single() as tx:
            found = await tx.attempts.get_attempt(attempt_id)
        if found is None:
            raise NotFound(f"there is no step attempt {attempt_id}")
        return found

    async def load(self, task_id: UUID) -> list[Step]:
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

    async def signal(self, task_id: UUID, name: str, payload: bytes, signal_id: UUID | None) -> Task:
        check_type("task_id", task_id, UUID)
        check_name("name", name)
        check_payload("payload", payload)
        if signal_id is not None:
            check_type("signal_id", signal_id, UUID)
        sent = SendSignal(task_id, signal_id or self._chance.new_id(), name, payload)
        task = await self._signals.call(sent)
        assert isinstance(task, Task), task
        return task

    # ----------------------------------------------------------------------------------------- effect and record

    async def transact(self, said: StepResult, work: Callable[[Any], Awaitable[bytes]]) -> Step:
        """Run `work` in a transaction that records its result too. If the reply to the commit was lost, the record says
        whether it happened: our lock on the task's row is waited for before it is read."""
        said = _checked_result(said)
        if not inspect.iscoroutinefunction(work):
            raise Invalid("must be an async function that takes a connection", field="work")
        for _ in range(TRANSACT_TRIES):
            try:
                async with self._store.begin() as tx:
                    if (known := await self._known(tx, said)) is not None:
                        return known
                    result = await work(tx.session.connection)
                    check_payload("result", result)
                    return await self._decide(tx, replace(said, result=result))
            except CommitUnknown as error:
                unknown_commit = error
                await self._outwait(said.task_id)
        raise unknown_commit

    async def _known(self, tx: Tx, said: StepResult) -> Step | None:
        known = await tx.steps.known_steps({(said.task_id, said.place.name, said.place.occurrence)})
        return known[0] if known and known[0].done else None

    async def _decide(self, tx: Tx, said: StepResult) -> Step:
        outcomes: Outcomes = {}
        tasks = await tx.tasks.load_tasks_patiently([said.task_id])
        await tx.apply(decide([said], tasks, await tx.now(), outcomes, await load_facts(tx, [said])))
        outcome = outcomes.get(0) or unknown(said)
        if isinstance(outcome, WindlassError):
            raise outcome  # and with it all that `work` did is undone
        assert isinstance(outcome, Step), outcome
        return outcome

    async def _outwait(self, task_id: UUID) -> None:
        async with self._store.begin() as tx:
            await tx.tasks.load_tasks_patiently([task_id])

    # ----------------------------------------------------------------------------------------- fork

    async def fork(self, task_id: UUID, from_step: str, occurrence: int) -> UUID:
        check_type("task_id", task_id, UUID)
        check_name("from_step", from_step)
        check_count("occurrence", occurrence, least=1)
        fork_id = self._chance.new_id()
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
                    await tx.add_missing([_like(view, fork_id, payload)])
                    await tx.steps.begin_fork(fork_id)
                    await tx.steps.put_steps([replace(s, result=copies.get(s.result or b"", s.result)) for s in kept])
                    break
            for text in referred - copies.keys():  # the fork has its own, since the other may be gone before it
                content = await self._objects.load(text)
                copies[text] = await self._objects.stow("payload", content, fork_id, "step", view.task.namespace)
                contents[copies[text]] = content
        for text, content in contents.items():
            await self._objects.settle(text, content, fork_id)
        return fork_id


def _like(view: TaskView, fork_id: UUID, payload: bytes) -> Submission:
    """The same task once more, outside of any run; keys and deadlines were for the first one."""
    task = view.task
    return Submission(
        id=fork_id, kind=task.kind, payload=payload, queue=task.queue, namespace=task.namespace,
        priority=task.priority, concurrency_key=task.concurrency_key, policy=task.policy, requires=view.requires,
    )  # fmt: skip


def _checked_result(said: StepResult) -> StepResult:
    if not isinstance(said, StepResult):
        raise Invalid(f"must be the result of a step, not {type(said).__name__}", field="said")
    checked = checked_step(said, 0.0)
    assert isinstance(checked, StepResult), checked
    return checked
