"""Records and contexts by type: each type is written once for a batch, and only contexts that are needed are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.kernel.core.given import running

from windlass.core.command import Cancel
from windlass.core.context import CommandContext, CommandWithContext
from windlass.core.states import Instant, Transition, Verb
from windlass.core.task import Task
from windlass.store import contexts, writers
from windlass.store.contexts import load_contexts, register_loader
from windlass.store.writers import register_writer, write_records

SESSION: Any = None  # nobody here asks the database


class First(msgspec.Struct, frozen=True):
    number: int


class Second(msgspec.Struct, frozen=True):
    number: int


class Numbers(CommandContext):
    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self.numbers = list(numbers)


class Count(CommandWithContext, frozen=True):
    context = Numbers

    task_id: UUID
    number: int

    def decide_with(self, task: Task, context: Numbers, now: Instant) -> Transition:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_WRITERS", {})
    monkeypatch.setattr(contexts, "_LOADERS", {})


def noted(*writes: object) -> Transition:
    task = running()
    return Transition(Verb.NOTE, task, task, writes=writes)


async def test_each_type_is_written_once_in_the_order_of_registration() -> None:
    calls: list[Sequence[object]] = []

    async def write(_: Any, records: Sequence[object]) -> None:
        calls.append(records)

    register_writer(First, write)
    register_writer(Second, write)
    await write_records(SESSION, [noted(Second(1), First(2)), noted(), noted(First(3))])

    assert calls == [[First(2), First(3)], [Second(1)]]


async def test_a_record_that_nobody_writes_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="no writer is registered for First"):
        await write_records(SESSION, [noted(First(1))])


async def test_a_context_is_loaded_once_for_the_commands_that_need_it() -> None:
    calls: list[Sequence[Count]] = []

    async def load(_: Any, commands: Sequence[Count]) -> Numbers:
        calls.append(commands)
        return Numbers([command.number for command in commands])

    register_loader(Numbers, load)
    task_id = running().id
    found = await load_contexts(SESSION, [Count(task_id, 1), Cancel(task_id), Count(task_id, 2)])

    assert len(calls) == 1
    assert {kind: vars(context) for kind, context in found.items()} == {Numbers: {"numbers": [1, 2]}}
    assert await load_contexts(SESSION, [Cancel(task_id)]) == {}
    assert len(calls) == 1


def test_a_type_has_one_writer_and_one_loader() -> None:
    async def nothing(*_: Any) -> Any: ...

    register_writer(First, nothing)
    register_loader(Numbers, nothing)
    with pytest.raises(AssertionError, match="First has a writer already"):
        register_writer(First, nothing)
    with pytest.raises(AssertionError, match="Numbers has a loader already"):
        register_loader(Numbers, nothing)
