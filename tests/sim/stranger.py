"""Somebody who does not belong: it speaks for attempts that others run, on every wire of this world, and must never be
believed.

It has read our code and sees what people see, such as the ids of tasks and workers, so it computes tokens. It also has
true ones, as a thief would, and shows them with a key or a certificate of another namespace, or on a wire where
attempts of that delivery do not report.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
from tests.sim.host import Gone
from tests.sim.mirror import Row
from tests.sim.violation import Violation

from windlass.contracts.lease.claim_by_id import Holders
from windlass.contracts.lease.rules import Caller, LeaseCredential, LeaseReport
from windlass.contracts.session.server.calls import answer
from windlass.contracts.session.server.namespaces import AttemptAccess
from windlass.contracts.session.server.stream import answers_to
from windlass.contracts.session.wire.messages import report_message
from windlass.core.access import Principal, Role
from windlass.core.command import Complete
from windlass.core.ids import derived_id
from windlass.core.lease_token import TOKEN_BITS, delivery_of, lease_token
from windlass.core.progress import Amount, ProgressReport
from windlass.core.states import State
from windlass.core.task import Outcome
from windlass.engine.engine import Engine
from windlass.errors import Unavailable, WindlassError

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

OWN, ELSEWHERE = Principal("own", Role.SUBMITTER, "default"), Principal("stranger", Role.SUBMITTER, "elsewhere")
ANYWHERE, BOUND = Caller("CN=anywhere", "f" * 64), Caller("CN=stranger", "e" * 64, (), ("elsewhere",))

Said = Callable[[Engine], Awaitable[bool]]


class Stranger:
    def __init__(self, world: Simulation) -> None:
        self.world = world
        self.stream = world.seed.stream("stranger")

    async def run(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(self.stream.around(0.25))
            running = [row for row in self.world.mirror.unfinished() if row["state"] == "running" and row["lease_id"]]
            if running:
                await self._try(self.stream.choice(running))

    async def _try(self, row: Row) -> None:
        how = self.stream.choice([self._guess, self._leak, self._steal, self._steal, self._other_wire])
        host = self.stream.choice(self.world.hosts)
        with contextlib.suppress(Gone, Unavailable):
            said = await host.ask(lambda engine: how(engine, row))
            if said is not None and await host.ask(said):
                raise Violation(f"a stranger spoke for attempt {row['attempt']} of {row['id']} and was believed")

    # ----------------------------------------------------------------------------------------- what it shows

    async def _guess(self, engine: Engine, row: Row) -> Said:
        """A token that is computed from what everybody can see."""
        task_id = UUID(row["id"])
        seeds = [task_id, derived_id("attempt", task_id, row["attempt"]), derived_id("attempt", task_id)]
        seeds += [derived_id("lease", worker_id) for worker_id in await self._workers(engine, row)]
        guess, delivery = self.stream.choice(seeds), delivery_of(UUID(row["lease_id"]))
        marked = computed_token(guess, delivery or "pull")
        return self._said(row, marked if self.stream.often(0.8) else guess, OWN, ANYWHERE)

    async def _workers(self, engine: Engine, row: Row) -> list[UUID]:
        page = await engine.workers.page(limit=100)
        return sorted(worker.id for worker in page.workers if worker.name == row["worker"])

    async def _leak(self, engine: Engine, row: Row) -> Said | None:
        """What is told of its worker, and of the task."""
        told = set(await self._workers(engine, row))
        body = msgspec.msgpack.encode({"task_id": row["id"]})
        try:
            task = msgspec.msgpack.decode(await answer(engine, OWN, AttemptAccess(engine), "Wait", body))
        except WindlassError:
            return None
        told |= {UUID(task["lease_id"])} if task["lease_id"] else set()
        return self._said(row, self.stream.choice(sorted(told)), OWN, ANYWHERE) if told else None

    async def _steal(self, _: Engine, row: Row) -> Said:
        """The true one, from another namespace."""
        return self._said(row, UUID(row["lease_id"]), ELSEWHERE, BOUND)

    async def _other_wire(self, _: Engine, row: Row) -> Said:
        """The true one, where attempts of its delivery do not report."""
        token = UUID(row["lease_id"])
        if delivery_of(token) == "pull":
            return partial(self._finish, row, token, ANYWHERE)
        return self.stream.choice([partial(self._report, row, token, OWN), partial(self._note, row, token, OWN)])

    # ----------------------------------------------------------------------------------------- on which wire

    def _said(self, row: Row, token: UUID, principal: Principal, caller: Caller) -> Said:
        return self.stream.choice(
            [
                partial(self._finish, row, token, caller),
                partial(self._beat, row, token, caller),
                partial(self._report, row, token, principal),
                partial(self._note, row, token, principal),
                partial(self._lose, row, token, principal),
            ]
        )

    async def _finish(self, row: Row, token: UUID, caller: Caller, engine: Engine) -> bool:
        shown = LeaseCredential(UUID(row["id"]), attempt=row["attempt"], token=token, caller=caller)
        finish = LeaseReport(shown, Outcome.SUCCEEDED, _result(row))
        return await _accepted(engine.service(Holders).finish(finish)) is State.SUCCEEDED

    async def _beat(self, row: Row, token: UUID, caller: Caller, engine: Engine) -> bool:
        shown = LeaseCredential(UUID(row["id"]), attempt=row["attempt"], token=token, caller=caller)
        return await _accepted(engine.service(Holders).extend(shown)) is not None

    async def _report(self, row: Row, token: UUID, principal: Principal, engine: Engine) -> bool:
        said = report_message(1, Complete(UUID(row["id"]), row["attempt"], token, _result(row)))
        refusals = partial(AttemptAccess(engine).refusals, principal)
        return bool((await answers_to(engine, [said], token, refusals)).accepted)

    async def _note(self, row: Row, token: UUID, principal: Principal, engine: Engine) -> bool:
        note = ProgressReport(UUID(row["id"]), row["attempt"], token, Amount(1.0))
        body = msgspec.msgpack.encode({"notes": [note]})
        told = await _accepted(answer(engine, principal, AttemptAccess(engine), "WriteNotes", body))
        return told is not None and msgspec.msgpack.decode(told) == [None]

    async def _lose(self, _: Row, token: UUID, principal: Principal, engine: Engine) -> bool:
        lease = await _accepted(AttemptAccess(engine).lease(principal, token))
        return lease is not None


def _result(row: Row) -> bytes:
    return msgspec.json.encode({"task": row["id"], "attempt": row["attempt"], "by": "a stranger"})


def computed_token(seed: UUID, delivery: str) -> UUID:
    """A token without any chance in it."""
    return lease_token(seed.int & (1 << TOKEN_BITS) - 1, delivery)


async def _accepted(asked: Awaitable[Any]) -> Any:
    """None if it was refused."""
    try:
        return await asked
    except Unavailable:
        raise
    except WindlassError:
        return None
