"""Holders of tasks of jobs: they read what is fixed by their claim, publish batches, write files, report events."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from msgspec.structs import replace
from tests.sim.dag_data import LAKE_ROOT, SCRATCH, drawn_batch, lake_files
from tests.sim.hold import HeldJob, Holder
from tests.sim.host import Gone
from tests.sim.mirror import instant
from tests.sim.violation import Violation

from windlass.contracts.lease.claim_by_id import Held, Holders
from windlass.contracts.lease.rules import Invalidate, LeaseCredential, LeaseReport
from windlass.contracts.lease.server.service import Service
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.datasets.inputs import NOOP, JobInputs
from windlass.datasets.rules.events import BatchReport, EventReport, prefixes_of
from windlass.datasets.rules.invalidation import InvalidPart, Reason, Scope
from windlass.errors import Unavailable, WindlassError

if TYPE_CHECKING:
    from tests.sim.dag import DagSimulation


class JobHolder(Holder):
    """Holds tasks of jobs: what they read is fixed when they are claimed. Once the world is calm, it takes none of jobs
    that always run: they would go on for ever."""

    world: DagSimulation

    def _message(self) -> UUID | None:
        """Mostly of a task that is due, since each message costs."""
        task_id = super()._message()
        row = self.world.mirror.tasks.get(str(task_id))
        due = row is None or row["state"] != "queued" or instant(row["available_at"]) <= self.world.now()
        endless = self.world.calm and row is not None and row["job_id"] in self.world.dag_checker.always_on
        return task_id if not endless and (due or self.stream.often(0.05)) else None

    async def _take(self, task_id: UUID) -> None:
        with contextlib.suppress(Gone, Unavailable):
            held = await self.stream.choice(self.world.hosts).ask(lambda engine: self._claim(engine, task_id))
            if held is not None:
                self.world.promised[str(task_id), held.task.attempt] = held.expires_at
                await JobAttempt(self.world, self, held).run()

    async def _claim(self, engine: Any, task_id: UUID) -> Held | None:
        """As the claim of the lease contract does: a window that was read meanwhile is completed at once."""
        held = await engine.service(Holders).claim(task_id, self.name, self.caller)
        if not isinstance(held, Held) or held.wire is None:
            return None
        reading = await engine.service(JobInputs).begin(held.task, held.wire)
        if not reading.noop:
            return replace(held, wire=reading.wire)
        task = held.task
        shown = LeaseCredential(task.id, attempt=task.attempt, token=task.lease_id, caller=self.caller)
        with contextlib.suppress(WindlassError):  # its lease may have ended since
            await engine.service(Holders).finish(LeaseReport(shown, Outcome.SUCCEEDED, NOOP))
        return None


class JobAttempt(HeldJob):
    """One attempt of a job's task: it publishes, and reports events of its outputs, some of them before its end."""

    world: DagSimulation

    def __init__(self, world: DagSimulation, holder: Holder, held: Held) -> None:
        super().__init__(world, holder, held)
        assert held.wire is not None, held
        wire = msgspec.json.decode(held.wire)
        self.outputs: list[dict[str, Any]] = wire["outputs"]
        self.scope = _scope(wire)
        self.always_on = wire["trigger"].get("source") == "always_on"
        if self.always_on:
            self.scope = {"cursor": world.number()}
        self.events = tuple(
            EventReport(UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), **self.scope)
            for output in self.outputs
            if self.scope
        )
        for given in wire["inputs"]:
            if given.get("mode") == "cursor":
                world.windows[str(self.id), self.attempt] = given["cursor_from"]

    async def tell(self) -> None:
        """Batches, events and invalidations before its end."""
        for output in self.outputs:
            if output["write_mode"] == "buffered":
                for number in range(self.stream.pick({1: 3, 2: 3, 3: 1})):
                    await self._publish(output, number)
                if self.stream.often(0.1):
                    await self._lie_about(output)
        if self.events and self.stream.often(0.3):
            cursor = self.scope.get("cursor", 0)
            steps = [cursor - 2, cursor - 1] if cursor > 2 and self.stream.often(0.7) else [cursor]
            await asyncio.gather(*(self._emit(step) for step in steps))  # at the same time, by different engines
        if self.scope.get("partition_key") and self.stream.often(0.03):
            await self._invalidate(self.stream.choice(self.outputs) if self.outputs else {})
        if self.always_on and not self.cancelled:
            await asyncio.sleep(self.stream.around(3.0))

    async def _emit(self, cursor: int) -> None:
        events = [replace(event, cursor=cursor) if event.cursor is not None else event for event in self.events]
        await self.say(lambda engine: engine.service(Holders).emit(self.credential, tuple(events)))

    async def complete(self, cursor: int | None = None) -> None:
        if any(output["storage"] == "s3" for output in self.outputs) and "partition_key" in self.scope:
            succeeded = await self._commit_files()
        else:
            state = await self.finish(Outcome.SUCCEEDED, result=self.result, events=self.events)
            succeeded = state is State.SUCCEEDED
        if succeeded:
            self.world.model.result_accepted(self.id, self.attempt, self.result)

    # ----------------------------------------------------------------------------------------- batches

    async def _publish(self, output: dict[str, Any], number: int) -> None:
        """Write a batch and publish it. Its object may come late, or never."""
        world, dataset = self.world, UUID(output["dataset_uuid"])
        prefixes = prefixes_of(SCRATCH, dataset, self.id, self.attempt)
        uri = f"{prefixes[0]}b{number}.jsonl"
        first = world.number(size := self.stream.randint(1, 3))
        batch = world.batches.setdefault(uri, drawn_batch(self.stream, uri, range(first, first + size)))
        report = BatchReport(dataset, UUID(output["dataset_version"]), uri, batch.count)
        late = self.stream.often(0.2)
        if batch.uploaded and not late:
            world.scratch.objects[uri.removeprefix(f"{SCRATCH}/")] = batch.content
        for _ in range(self.stream.pick({1: 5, 2: 1})):  # also twice
            await self.say(lambda engine: engine.service(Holders).publish(self.credential, report, prefixes))
        if batch.uploaded and late:
            world.start(self._upload(uri, batch.content))

    async def _lie_about(self, output: dict[str, Any]) -> None:
        """Say that more is in the table than is. Only sinks know."""
        event = EventReport(UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), 1000)
        await self.say(lambda engine: engine.service(Holders).emit(self.credential, (event,)))

    async def _upload(self, uri: str, content: bytes) -> None:
        await asyncio.sleep(self.stream.around(0.5))
        self.world.scratch.objects[uri.removeprefix(f"{SCRATCH}/")] = content

    # ----------------------------------------------------------------------------------------- files

    async def _commit_files(self) -> bool:
        """Write the files of outputs, some of them without their marker at first, and report them."""
        key = self.scope["partition_key"]
        for output in self.outputs:
            folder = output["staging_uri"].removeprefix(f"{LAKE_ROOT}/").rstrip("/")
            files = lake_files(output, self.id, self.attempt, key)
            for name in files if self.stream.often(0.9) else ("part.parquet", "_manifest.json"):
                self.world.lake.objects[f"{folder}/{name}"] = files[name]
            if f"{folder}/_SUCCESS" not in self.world.lake.objects:
                if await self._report() and f"{folder}/_SUCCESS" not in self.world.lake.objects:
                    raise Violation(f"an output of {self.id} was committed without its marker")
                self.world.lake.objects[f"{folder}/_SUCCESS"] = files["_SUCCESS"]
        return await self._report()

    async def _report(self) -> bool:
        ids = ("output_index", "dataset_uuid", "dataset_version")
        body = msgspec.json.encode(
            {
                "task_id": str(self.id), "attempt": self.attempt, "lease_token": str(self.credential.token),
                "status": "Completed", "result": msgspec.Raw(self.result),
                "outputs": [{**{name: o[name] for name in ids}, **self.scope, "row_count": 3} for o in self.outputs],
            }
        )  # fmt: skip
        answer = await self.say(lambda engine: Service(engine, SCRATCH).complete(body, self.caller))
        return answer is not None and answer.status == "Completed"

    # ----------------------------------------------------------------------------------------- invalidations

    async def _invalidate(self, output: dict[str, Any]) -> None:
        if output:
            part = InvalidPart(Scope.PARTITION, Reason.REORG, self.scope["partition_key"])
            order = Invalidate(self.credential, UUID(output["dataset_uuid"]), UUID(output["dataset_version"]), part)
            await self.say(lambda engine: engine.service(Holders).invalidate(order))


def _scope(wire: Any) -> dict[str, Any]:
    """A source reports what it was asked for, any other job what it has read."""
    scope: dict[str, Any] = {}
    for given in [wire["trigger"], *wire["inputs"]]:
        if given.get("mode") == "partition":
            scope = {"partition_key": given["partition_key"], "start": given["start"], "end": given["end"]}
        elif given.get("mode") == "cursor":
            scope = {"cursor": given["cursor_to"]}
        elif given.get("cursor") is not None:
            scope = {"cursor": given["cursor"]}
    return scope
