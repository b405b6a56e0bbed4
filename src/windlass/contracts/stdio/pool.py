"""A handler for all kinds of a queue: each attempt is a task of a child process that speaks the stdio protocol.

Decides which process runs an attempt, and what happens to both when an attempt is cancelled or a process dies. Updates
of a script become progress and log lines of its attempt.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from windlass.contracts.stdio.delivery import Stdio
from windlass.contracts.stdio.protocol.call import IMPORTED, function_inputs
from windlass.contracts.stdio.protocol.environment import Environment
from windlass.contracts.stdio.protocol.service import Service
from windlass.contracts.stdio.protocol.task import Task, TaskError, Update
from windlass.core.command import Claimed, Release, Report
from windlass.core.environment import installer_variables, program_variables
from windlass.core.failure import Category, Failure
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.progress import checked_amount
from windlass.core.task import Task as Claim
from windlass.core.text import words_of
from windlass.errors import Invalid, WindlassError
from windlass.sdk.context import cancel_requests
from windlass.sdk.processes.pool import RemoteFailure
from windlass.sdk.signals import Cancel, failure_of
from windlass.sdk.worker.progress import AttemptProgress, ProgressSender
from windlass.sdk.workflow.exits import WorkflowExit

log = logging.getLogger("windlass.stdio")

KILL_EARLY_S = 1.0  # before the engine would turn the cancel into a failure
GIVE_UP_S = 1.0  # for a script to end by itself after the engine has ended its attempt
LINES_WAIT_S, POLL_S = 0.05, 0.001


class Released(WorkflowExit):
    """The process of an attempt was killed because of another attempt: release it, at no cost to its budgets."""

    def report(self, task: Claim, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)


class Slot:
    """A process, and the attempts that run in it."""

    def __init__(self, environment: Environment, **options: Any) -> None:
        self.running: dict[Task, AttemptProgress] = {}
        self.service = Service(environment, on_stderr=self._on_stderr, **options)
        self.closing = False

    def _on_stderr(self, line: str) -> None:
        """Called by the thread that reads stderr. With several attempts, a line belongs to none of them."""
        running = list(self.running.values())
        if len(running) == 1:
            running[0].line("INFO", line)
        else:
            log.info("%s", line)

    @property
    def usable(self) -> bool:
        return not self.closing and self.service.is_alive()


class StdioPool:
    """The processes of one queue: at most `workers`, each with at most `tasks_per_worker` attempts."""

    def __init__(self, delivery: Stdio, progress: ProgressSender, variables: Mapping[str, str]) -> None:
        """`variables` are those of this process; a program gets a few of them."""
        self._delivery, self._progress, self._variables = delivery, progress, variables
        self._environment: Environment | None = None
        self._slots: list[Slot] = []
        self._choosing = asyncio.Lock()

    @property
    def capacity(self) -> int:
        return self._delivery.workers * self._delivery.tasks_per_worker

    async def open(self) -> None:
        """Make the environment and start a first process, so that no task is claimed that cannot run."""
        self._environment = await asyncio.to_thread(_make_environment, self._delivery, self._variables)
        self._slots.append(await asyncio.to_thread(self._new_slot))

    async def close(self) -> None:
        """End all processes."""
        for slot in self._slots:
            slot.closing = True
            slot.service.close()
            if slot.running:
                slot.service.kill()
        for slot in self._slots:
            await asyncio.to_thread(slot.service.__exit__, None)

    # ----------------------------------------------------------------------------------------- one attempt

    async def run(self, claimed: Claimed) -> bytes:
        script, inputs = self._work(claimed)
        progress = self._progress.attempt(claimed)
        try:
            slot = await self._slot()
            task = slot.service.task(script, inputs).listen(partial(_forward, progress))
            task.traceparent = claimed.task.trace
            slot.running[task] = progress
            try:
                await self._wait(slot, task.start(), claimed.task)
            finally:
                await _last_lines(slot)
                del slot.running[task]
            return _result(task)
        except TaskError as error:
            return _result(error.task)  # it could not even be sent
        finally:
            await progress.close()

    def failure(self, error: BaseException) -> Failure:
        return error.failure if isinstance(error, RemoteFailure) else failure_of(error)

    def _work(self, claimed: Claimed) -> tuple[str, dict[str, Any]]:
        """The script and its inputs: a payload that is no object becomes the input `value`."""
        payload = msgspec.json.decode(claimed.payload)
        inputs = payload if isinstance(payload, dict) else {"value": payload}
        handler = self._delivery.handlers.get(claimed.task.kind)
        if handler is None and not self._delivery.kinds_are_scripts:
            message = f"the queue {claimed.task.queue} has no handler for {claimed.task.kind}"
            raise RemoteFailure(Failure(Category.CONFIGURATION, message, "NO_HANDLER", retryable=False))
        if handler is not None and handler.function is not None:
            return IMPORTED, function_inputs(handler.function, (), inputs)
        return (claimed.task.kind if handler is None or handler.script is None else handler.script), inputs

    async def _wait(self, slot: Slot, task: Task, claim: Claim) -> None:
        """Wait for the end. A script that is cancelled has its grace period; after that, its process is killed. If the
        engine has ended the attempt (a forced cancel, a timeout), it has a second, since others need its slot."""
        try:
            with suppress(TaskError):
                await task
        except asyncio.CancelledError:
            grace_s = claim.policy.cancel_grace_s
            wait_s = max(grace_s - KILL_EARLY_S, grace_s / 2)
            if (claim.id, claim.attempt) not in cancel_requests:
                wait_s = min(wait_s, GIVE_UP_S)
            task.cancel()
            try:
                with suppress(TaskError, TimeoutError):
                    async with asyncio.timeout(wait_s):  # no thread: those are few, and another cancel would need one
                        await task
            finally:  # also if this wait is cancelled
                if not task.is_finished:
                    slot.closing = True
                    slot.service.kill()
                    await asyncio.to_thread(slot.service.wait_for)
            if task.status in ("CANCELED", "CRASHED") or (claim.id, claim.attempt) not in cancel_requests:
                raise

    async def _slot(self) -> Slot:
        """The least busy process; a new one if all are busy and more are allowed."""
        async with self._choosing:
            self._slots = [slot for slot in self._slots if slot.usable or slot.running]
            usable = [slot for slot in self._slots if slot.usable]
            slot = min(usable, key=lambda each: len(each.running), default=None)
            if slot is None or (slot.running and len(usable) < self._delivery.workers):
                slot = await asyncio.to_thread(self._new_slot)
                self._slots.append(slot)
            return slot

    def _new_slot(self) -> Slot:
        assert self._environment is not None
        delivery = self._delivery
        base_env = program_variables(self._variables, delivery.secrets)
        slot = Slot(self._environment, init=delivery.init, cwd=delivery.cwd, env=dict(delivery.env), base_env=base_env)
        slot.service.start()
        return slot


def _make_environment(delivery: Stdio, variables: Mapping[str, str]) -> Environment:
    if delivery.command is not None:
        return Environment.of(*delivery.command)
    if delivery.requirements:
        variables = installer_variables(variables)
        return Environment.uv(delivery.requirements, python=delivery.python, base_env=variables)
    return Environment.python(delivery.python)


def _forward(progress: AttemptProgress, update: Update) -> None:
    """Called by the thread that reads the process. A message is a log line too, also beside a number."""
    if update.response_type != "UPDATE":
        return
    message = "" if update.message is None else str(update.message)
    if _is_number(update.current):
        with suppress(Invalid):
            maximum = update.maximum if _is_number(update.maximum) else None
            progress.progress(checked_amount(update.current, maximum, message))
    if message:
        progress.line("INFO", message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


async def _last_lines(slot: Slot) -> None:
    """Wait for lines on stderr. A script's end comes by another pipe, and may arrive before them."""
    polls = int(LINES_WAIT_S / POLL_S)
    while polls > 0 and slot.service.has_errors_to_read():
        polls -= 1
        await asyncio.sleep(POLL_S)


def _result(task: Task) -> bytes:
    """The result to store: the output `result` if there is no other, else all outputs. Raises if there is none."""
    if task.status == "CANCELED":
        raise Cancel(task.error or "the script ended itself as cancelled")
    error = task.error or ""
    if task.status == "FAILED":
        lines = [line for line in error.splitlines() if line.strip()]
        message = lines[-1] if lines else "the script failed"
        raise RemoteFailure(Failure(Category.USER_CODE, message, "SCRIPT_FAILED", error))
    if task.status == "CRASHED":
        how, _, last = error.partition("\n")
        if task.service.killed:
            raise Released(how)
        message = how or "the process died"
        raise RemoteFailure(Failure(Category.INFRASTRUCTURE, message, "PROCESS_DIED", last.strip()))
    outputs = task.outputs
    value = outputs.get("result") if outputs.keys() <= {"result"} else outputs
    try:
        return write_json(value)
    except (*UNWRITABLE, WindlassError) as problem:
        _dispose(outputs)
        message = f"the result cannot be written as JSON: {words_of(problem)}"
        raise RemoteFailure(Failure(Category.DATA_QUALITY, message, "RESULT_NOT_JSON", retryable=False)) from None


def _dispose(value: Any) -> None:
    """Free shared memory of a result that cannot be stored."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            _dispose(each)
    elif hasattr(type(value), "dispose"):
        value.dispose()
