"""Clients: submit in every way there is, repeat themselves, change their minds, and cancel."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec.structs import replace
from tests.sim.flow import SIGNAL
from tests.sim.host import Gone
from tests.sim.plan import drawn_run, drawn_submission, payload
from tests.sim.seed import SeededChance
from tests.sim.violation import Violation

from windlass.core.ids import derived_id
from windlass.core.retry import Policy
from windlass.core.states import Effect
from windlass.core.submission import Submission
from windlass.errors import Conflict, InvalidState, NotFound, Rejected, Unavailable, WindlassError

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

OPERATIONS = {
    "one": 4.0, "burst": 2.0, "many": 2.0, "keyed": 3.0, "run": 4.0, "join": 1.0, "cancel": 4.0, "cancel_run": 0.5,
    "effect": 1.0, "wait": 0.7, "flow": 6.0, "signal": 8.0,
}  # fmt: skip


class Client:
    def __init__(self, world: Simulation, name: str) -> None:
        self.world, self.name = world, name
        self.stream = world.seed.stream("client", name)
        self._ids = SeededChance(world.seed.stream("client-ids", name), world.epoch_ms)
        self._count = 0
        self.flows: list[UUID] = []
        # Each client has its own habits, so that one seed is full of cancels and another of runs.
        self._habits = {what: rate * self.stream.pick({0.3: 1, 1.0: 2, 5.0: 1}) for what, rate in OPERATIONS.items()}

    async def run(self) -> None:
        plan = self.world.plan
        pause_s = 0.5 * plan.chaos_s / plan.operations
        for _ in range(plan.operations // plan.clients):
            await asyncio.sleep(self.stream.around(pause_s))
            if self.world.calm:
                return
            await getattr(self, f"_{self.stream.pick(self._habits)}")()

    async def calmly(self) -> None:
        """In calm, too, there is something to do: for those who wait."""
        for _ in range(3):
            await asyncio.sleep(self.stream.around(1.5))
            await getattr(self, f"_{self.stream.pick({'one': 2, 'many': 1, 'run': 1, 'flow': 1})}")()

    def _token(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"

    def _drawn(self, **fields: Any) -> Submission:
        """With an id of its own a client may ask again; without one it may not."""
        if "id" not in fields and self.stream.often(0.6):
            fields["id"] = self._ids.new_id()
        return drawn_submission(self.stream, self.world.plan, self._token(), self.world.now(), **fields)

    async def _ask(self, what: Any, tries: int = 1) -> Any:
        """None when there was no answer in all these tries."""
        for _ in range(tries):
            host = self.stream.choice(self.world.hosts)
            try:
                return await host.ask(what)
            except (Gone, Unavailable):
                await asyncio.sleep(self.stream.around(0.5))
            except Rejected as error:
                return error
        return None

    # ----------------------------------------------------------------------------------------- submit

    async def _one(self) -> None:
        submission = self._drawn()
        await self._submit([submission], repeats=submission.id is not None and self.stream.often(0.3))

    async def _burst(self) -> None:
        """At the same time: by one engine they share a transaction, by several they meet in the database."""
        queue = self.stream.choice(self.world.plan.queues)
        plain = [
            Submission(kind="a", queue=queue, payload=payload(self._token())) for _ in range(self.stream.randint(2, 5))
        ]
        await asyncio.gather(*(self._submit([submission]) for submission in plain))

    async def _many(self) -> None:
        await self._submit([self._drawn() for _ in range(self.stream.randint(2, 6))])

    async def _flow(self) -> None:
        """A workflow, and perhaps a signal that it may ask for."""
        task_id = self._ids.new_id()
        drawn = self._drawn(id=task_id)
        made = replace(drawn, payload=payload(self._token(), flow=True), policy=self._patient(drawn.policy))
        if isinstance(await self._submit([made]), list):
            self.flows.append(task_id)
            if self.stream.often(0.5):
                await self._signal()

    def _patient(self, policy: Policy) -> Policy:
        """A workflow needs more than one attempt to get anywhere."""
        return replace(policy, max_attempts=6, max_losses=6, timeout_s=None)

    async def _signal(self) -> None:
        if not self.flows:
            return
        asleep = [id_ for id_ in self.flows if self.world.mirror.state(id_) == "sleeping"]
        task_id = self.stream.choice(asleep if asleep and self.stream.often(0.7) else self.flows)
        signal_id = self._ids.new_id()
        said = payload(self._token())
        answer = await self._ask(lambda engine: engine.signal(task_id, SIGNAL, said, signal_id=signal_id), 3)
        if answer is not None and not isinstance(answer, WindlassError):
            self.world.step_checker.heard(task_id, signal_id)

    async def _submit(self, submissions: list[Submission], *, repeats: bool = False) -> Any:
        """All or none. Whoever repeats itself gets the same answer."""
        for submission in submissions:
            self.world.model.intends(submission)
        tries = 4 if all(s.id is not None for s in submissions) else 1
        if len(submissions) == 1:
            answer = await self._ask(lambda engine: engine.submit(submissions[0]), tries)
            answer = [answer] if isinstance(answer, UUID) else answer
        else:
            answer = await self._ask(lambda engine: engine.submit_many(submissions), tries)
        if isinstance(answer, list):
            for submission, task_id in zip(submissions, answer, strict=True):
                self.world.model.accepted(submission, task_id)
            if repeats:
                await self._submit(submissions)
        elif isinstance(answer, WindlassError):
            self._rejected(submissions, answer)
        return answer

    def _rejected(self, submissions: list[Submission], error: WindlassError) -> None:
        if submissions[0].run_id is None and submissions[0].idempotency_key is None:
            raise Violation(f"a good submission was rejected: {error}")

    async def _keyed(self) -> None:
        """Few keys, so that they meet; each with its own content, now and then with another one."""
        key = f"key{self.stream.randint(1, 4)}"
        other = self.stream.often(0.1)
        token = f"{key}-other-{self._token()}" if other else key
        submission = Submission(
            kind="a", queue=self.world.plan.queues[0], payload=payload(token), idempotency_key=key,
            id=self._ids.new_id() if self.stream.often(0.5) else None,
        )  # fmt: skip
        if self.stream.often(0.5):  # at the same time, perhaps by another engine
            await asyncio.gather(self._submit([submission]), self._submit([replace(submission, id=None)]))
            return
        with_others = self.stream.often(0.2)
        answer = await self._submit([submission, self._drawn()] if with_others else [submission])
        if isinstance(answer, Conflict) and not other:
            token_ids = self.world.task_checker.token_ids.get(key, set())
            if token_ids and not any(f"{key}-other" in t for t in self.world.task_checker.token_ids):
                raise Violation(f"the key {key} was refused though its content never changed: {answer}")

    async def _run(self) -> None:
        run_id = self._ids.new_id()
        ids = [self._ids.new_id() for _ in range(self.stream.pick({1: 1, 2: 1, 3: 2, 5: 2, 12: 1}))]
        group = [
            self._drawn(id=id_, run_id=run_id, after=after, after_any_outcome=self.stream.often(0.3))
            for id_, after in drawn_run(self.stream, ids)
        ]
        self.stream.shuffle(group)
        if isinstance(await self._submit(group), list):
            self.world.model.runs.append(run_id)

    async def _join(self) -> None:
        """One more task for a run that is under way or over."""
        members = [s for s in self.world.model.by_id.values() if s.run_id in self.world.model.runs and s.id is not None]
        if not members:
            return
        first = self.stream.choice(members)
        mates = [s.id for s in members if s.run_id == first.run_id and s.id is not None]
        after = tuple(self.stream.sample(mates, min(len(mates), self.stream.randint(1, 3))))
        fields: dict[str, Any] = {"run_id": first.run_id, "after": after, "after_any_outcome": self.stream.often(0.3)}
        await self._submit([self._drawn(id=self._ids.new_id(), **fields)])

    # ----------------------------------------------------------------------------------------- other wishes

    async def _cancel(self) -> None:
        if not self.world.model.known:
            return
        running = [UUID(row["id"]) for row in self.world.mirror.tasks.values() if row["state"] == "running"]
        task_id = self.stream.choice(running if running and self.stream.often(0.8) else self.world.model.known)
        force = self.stream.often(0.2)
        answer = await self._ask(lambda engine: engine.cancel(task_id, "changed my mind", force=force))
        if answer is not None and not isinstance(answer, WindlassError):
            self.world.model.cancel_accepted(answer)
        elif answer is not None and not isinstance(answer, InvalidState | NotFound):
            raise Violation(f"a cancel was answered with {answer!r}")

    async def _cancel_run(self) -> None:
        if self.world.model.runs:
            run_id = self.stream.choice(self.world.model.runs)
            await self._ask(lambda engine: engine.cancel_run(run_id, "all of it"))

    async def _effect(self) -> None:
        """An effect that hangs on a task, written as the engine writes its own."""
        if not self.world.model.known:
            return
        task_id = self.stream.choice(self.world.model.known)
        row = self.world.mirror.ever(task_id)
        attempt = 0 if row is None else row["attempt"]
        effect = Effect(derived_id("sim", self._token()), "deliver", "default", task_id, attempt, {"to": "outside"})

        async def write(engine: Any) -> bool:
            async with engine.store.begin() as tx:
                await tx.outbox.insert_outbox([effect])
            return True

        if await self._ask(write) is True:
            self.world.outside_system.promised[str(effect.id)] = effect

    async def _wait(self) -> None:
        if not self.world.model.known:
            return
        task_id = self.stream.choice(self.world.model.known)
        answer = await self._ask(lambda engine: engine.wait(task_id, self.stream.around(2.0)))
        if answer is not None and not isinstance(answer, NotFound):
            row = self.world.mirror.ever(task_id)
            if answer.task.terminal and row is not None and row["state"] != answer.task.state:
                raise Violation(f"{task_id} was told to be {answer.task.state}; it is {row['state']}")
