"""A handler for all kinds of a queue: each attempt is a task of a child process that speaks the stdio contract.

Owns which process runs which attempt, and what becomes of both when an attempt is cancelled or a process dies. What a
script says on the way becomes progress and log lines of its attempt.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from windlass.core.command import Claimed, Release, Report
from windlass.core.delivery import Stdio
from windlass.core.environment import installer_variables, program_variables
from windlass.core.error import Invalid, WindlassError
from windlass.core.failure import Category, Failure
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.note import checked_amount
from windlass.core.task import Task as Claim
from windlass.core.text import words_of
from windlass.sdk.context import told_to_cancel
from windlass.sdk.leaving import Leaving
from windlass.sdk.note import AttemptNotes, Notes
from windlass.sdk.process import RemoteFailure
from windlass.sdk.signals import Cancel, failure_of
from windlass.stdio import Environment, Service, Task, TaskError, Update
from windlass.stdio.call import IMPORTED, function_inputs

log = logging.getLogger("windlass.stdio")

KILL_EARLY_S = 1.0  # before the engine would call the cancel a failure
GIVEN_UP_S = 1.0  # for a script to end by itself that nobody waits for
LINES_WAIT_S, LOOK_S = 0.05, 0.001


class GivenBack(Leaving):
    """Its process was killed because of somebody else: another one may run it, and no budget was used."""

    def report(self, task: Claim, lease_id: UUID) -> Report:
        return Release(task.id, task.attempt, lease_id)


class Seat:
    """A process, and the attempts that run in it."""

    def __init__(self, make: Callable[[Callable[[str], object]], Service]) -> None:
        self.running: dict[Task, AttemptNotes] = {}
        self.service = make(self._said)
        self.doomed = False

    def _said(self, line: str) -> None:
        """From the thread that reads stderr. A line that may be anybody's is nobody's."""
        running = list(self.running.values())
        if len(running) == 1:
            running[0].line("INFO", line)
        else:
            log.info("%s", line)

    @property
    def usable(self) -> bool:
        return not self.doomed and self.service.is_alive()


class StdioPool:
    """The processes of one queue. At most `workers`, each with at most `tasks_per_worker` attempts."""

    def __init__(self, delivery: Stdio, notes: Notes, variables: Mapping[str, str]) -> None:
        """`variables` are those of this process, of which a program sees a few."""
        self._delivery, self._notes, self._variables = delivery, notes, variables
        self._environment: Environment | None = None
        self._seats: list[Seat] = []
        self._seated = asyncio.Lock()

    @property
    def capacity(self) -> int:
        return self._delivery.workers * self._delivery.tasks_per_worker

    async def open(self) -> None:
        """Make the environment and start a first process, so that nothing is claimed that cannot be run."""
        self._environment = await asyncio.to_thread(_environment_of, self._delivery, self._variables)
        self._seats.append(await asyncio.to_thread(self._new_seat))

    async def close(self) -> None:
        """End what is left."""
        for seat in self._seats:
            seat.doomed = True
            seat.service.close()
            if seat.running:
                seat.service.kill()
        for seat in self._seats:
            await asyncio.to_thread(seat.service.__exit__, None)

    # ----------------------------------------------------------------------------------------- one attempt

    async def run(self, claimed: Claimed) -> bytes:
        script, inputs = self._work(claimed)
        notes = self._notes.of(claimed)
        try:
            seat = await self._seat()
            task = seat.service.task(script, inputs).listen(partial(_note, notes))
            task.traceparent = claimed.task.trace
            seat.running[task] = notes
            try:
                await self._ended(seat, task.start(), claimed.task)
            finally:
                await _last_lines(seat)
                del seat.running[task]
            return _result(task)
        except TaskError as error:
            return _result(error.task)  # it could not even be sent
        finally:
            await notes.close()

    def failure(self, error: BaseException) -> Failure:
        return error.failure if isinstance(error, RemoteFailure) else failure_of(error)

    def _work(self, claimed: Claimed) -> tuple[str, dict[str, Any]]:
        """The script and its inputs: payloads that are no objects are the input `value`."""
        payload = msgspec.json.decode(claimed.payload)
        inputs = payload if isinstance(payload, dict) else {"value": payload}
        handler = self._delivery.handlers.get(claimed.task.kind)
        if handler is None and not self._delivery.kinds_are_scripts:
            message = f"the queue {claimed.task.queue} has no handler for {claimed.task.kind}"
            raise RemoteFailure(Failure(Category.CONFIGURATION, message, "NO_HANDLER", retryable=False))
        if handler is not None and handler.function is not None:
            return IMPORTED, function_inputs(handler.function, (), inputs)
        return (claimed.task.kind if handler is None or handler.script is None else handler.script), inputs

    async def _ended(self, seat: Seat, task: Task, claim: Claim) -> None:
        """Wait for the end. Told to stop, a script has its grace; after that, its process is killed. One that the
        engine has given up (a forced cancel, a timeout) has a moment: nobody waits for it, others want its place."""
        try:
            with suppress(TaskError):
                await task
        except asyncio.CancelledError:
            grace_s = claim.policy.cancel_grace_s
            left_s = max(grace_s - KILL_EARLY_S, grace_s / 2)
            if (claim.id, claim.attempt) not in told_to_cancel:
                left_s = min(left_s, GIVEN_UP_S)
            try:
                await _finished(task, left_s)
            finally:  # also when there is no more time to wait
                if not task.is_finished:
                    await self._kill(seat)
            if task.status in ("CANCELED", "CRASHED") or (claim.id, claim.attempt) not in told_to_cancel:
                raise

    async def _kill(self, seat: Seat) -> None:
        seat.doomed = True
        seat.service.kill()
        await asyncio.to_thread(seat.service.wait_for)

    async def _seat(self) -> Seat:
        """The least busy process with room, a new one while there may be more."""
        async with self._seated:
            self._seats = [seat for seat in self._seats if seat.usable or seat.running]
            usable = [seat for seat in self._seats if seat.usable]
            seat = min(usable, key=lambda each: len(each.running), default=None)
            if seat is None or (seat.running and len(usable) < self._delivery.workers):
                seat = await asyncio.to_thread(self._new_seat)
                self._seats.append(seat)
            return seat

    def _new_seat(self) -> Seat:
        assert self._environment is not None
        delivery, environment = self._delivery, self._environment
        base_env = program_variables(self._variables, delivery.secrets)
        seat = Seat(
            lambda said: Service(
                environment, init=delivery.init, cwd=delivery.cwd, env=dict(delivery.env), base_env=base_env,
                on_stderr=said,
            )
        )  # fmt: skip
        seat.service.start()
        return seat


def _environment_of(delivery: Stdio, variables: Mapping[str, str]) -> Environment:
    if delivery.command is not None:
        return Environment.of(*delivery.command)
    if delivery.requirements:
        variables = installer_variables(variables)
        return Environment.uv(delivery.requirements, python=delivery.python, base_env=variables)
    return Environment.python(delivery.python)


def _note(notes: AttemptNotes, update: Update) -> None:
    """From the thread that reads the process. What is said beside a number is a line of the log too."""
    if update.response_type != "UPDATE":
        return
    message = "" if update.message is None else str(update.message)
    if _is_number(update.current):
        with suppress(Invalid):
            maximum = update.maximum if _is_number(update.maximum) else None
            notes.progress(checked_amount(update.current, maximum, message))
    if message:
        notes.line("INFO", message)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


async def _finished(task: Task, within_s: float) -> None:
    """Asks to stop, which is harmless to repeat, and waits."""
    task.cancel()
    with suppress(TaskError, TimeoutError):
        async with asyncio.timeout(within_s):  # no thread: those are few, and another cancel would wait for one
            await task


async def _last_lines(seat: Seat) -> None:
    """What a script printed came by another pipe than its end, and may still be on its way."""
    looks = int(LINES_WAIT_S / LOOK_S)
    while looks > 0 and seat.service.has_errors_to_read():
        looks -= 1
        await asyncio.sleep(LOOK_S)


def _result(task: Task) -> bytes:
    """What the engine keeps: `result` where there is nothing else. Or why there is nothing to keep."""
    if task.status == "CANCELED":
        raise Cancel(task.error or "the script ended itself as cancelled")
    if task.status == "FAILED":
        raise RemoteFailure(_script_failure(task.error or ""))
    if task.status == "CRASHED":
        raise _crashed(task)
    outputs = task.outputs
    value = outputs.get("result") if outputs.keys() <= {"result"} else outputs
    try:
        return write_json(value)
    except (*UNWRITABLE, WindlassError) as error:
        _dispose(outputs)
        message = f"the result cannot be kept: {words_of(error)}"
        raise RemoteFailure(Failure(Category.DATA_QUALITY, message, "RESULT_NOT_JSON", retryable=False)) from None


def _script_failure(error: str) -> Failure:
    lines = [line for line in error.splitlines() if line.strip()]
    return Failure(Category.USER_CODE, lines[-1] if lines else "the script failed", "SCRIPT_FAILED", error)


def _crashed(task: Task) -> BaseException:
    how, _, last = (task.error or "").partition("\n")
    if task.service.killed:
        return GivenBack(how)
    return RemoteFailure(Failure(Category.INFRASTRUCTURE, how or "the process died", "PROCESS_DIED", last.strip()))


def _dispose(value: Any) -> None:
    """Memory that came with a result nobody can have."""
    if isinstance(value, dict):
        for each in value.values():
            _dispose(each)
    elif isinstance(value, list):
        for each in value:
            _dispose(each)
    elif hasattr(type(value), "dispose"):
        value.dispose()
