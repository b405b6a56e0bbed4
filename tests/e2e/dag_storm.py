"""Two servers, wrappers and the database killed at random while a DAG of three jobs runs. What must hold after that:
each partition is committed once, has one event, and made one task of the job that reads it.

`python -m tests.e2e.dag_storm --partitions 500 --kills 12` is the whole of it; a test runs it with fewer kills. All
are the real programs, as in `lease_soak`, whose fleet and plan of kills this uses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.dag_operator import BLOCK
from tests.e2e.lease_soak import CLI, COMMITTED_TWICE, Soak
from tests.kit.database import temporary_folder
from tests.kit.ports import free_port

from windlass import Engine
from windlass.datasets.dags import Dags
from windlass.datasets.sources import Sources
from windlass.errors import Unavailable

DAG = """\
name: storm
defaults: {max_attempts: 100}
jobs:
  - {name: source, activation: source, runtime: ecs_platform, operator: report, source: {kind: manual}, outputs: 1,
     update_strategy: replace, queue: soak}
  - {name: first, activation: reactive, runtime: ecs_platform, operator: pass_on, execution_strategy: PerPartition,
     inputs: [{from: {job: source}}], outputs: 1, update_strategy: replace, queue: soak}
  - {name: second, activation: reactive, runtime: ecs_platform, operator: pass_on, execution_strategy: PerPartition,
     inputs: [{from: {job: first}}], outputs: 1, update_strategy: replace, queue: soak}
"""
SERVERS = 2
COUNTS = """
select j.name, (select count(*) from windlass.task t where t.job_id = j.id),
       (select count(*) from windlass.task t where t.job_id = j.id and t.state = 'succeeded'),
       (select count(*) from windlass.job_task k where k.job_id = j.id),
       (select count(*) from windlass.event e join windlass.dataset s on s.id = e.dataset_uuid where s.job = j.name),
       (select count(*) from windlass.partition p join windlass.dataset_version v on v.id = p.dataset_version
          join windlass.dataset s on s.id = v.dataset_uuid where s.job = j.name),
       (select count(*) from windlass.partition_revision p join windlass.dataset_version v on v.id = p.dataset_version
          join windlass.dataset s on s.id = v.dataset_uuid where s.job = j.name and p.revision = 1),
       (select count(*) from windlass.partition_revision p join windlass.dataset_version v on v.id = p.dataset_version
          join windlass.dataset s on s.id = v.dataset_uuid where s.job = j.name and p.revision > 1)
  from windlass.job j order by j.name"""
GIVEN = """
select j.name, count(*), count(distinct (c.key, c.revision)), count(distinct c.task_id)
  from windlass.consumption c join windlass.job j on j.id = c.job_id group by j.name order by j.name"""
OPEN = "select count(*) from windlass.event e where e.routed_at is null and e.declared"


@dataclass(slots=True)
class DagStorm(Soak):
    """`tasks` follow from the partitions: one for each block of the source, and one for each partition and job."""

    partitions: int = 500
    emitted: set[int] = field(default_factory=set)

    @property
    def blocks(self) -> int:
        return self.partitions // BLOCK

    def _names(self) -> list[str]:
        return [*(f"dispatcher-{n}" for n in range(SERVERS)), *(f"worker-{n}" for n in range(self.workers))]

    def _command(self, name: str) -> list[str]:
        kind, _, number = name.partition("-")
        port = self.ports.setdefault(f"dispatcher-{int(number) % SERVERS}", free_port())
        if kind == "dispatcher":
            return [*CLI, "serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api-key", "soak",
                    "--internal", f"127.0.0.1:{port}"]  # fmt: skip
        functions = [word for n in ("report", "pass_on") for word in ("--function", f"{n}=tests.e2e.dag_operator:{n}")]
        return [*CLI, "wrapper", "--server", f"https://127.0.0.1:{port}", "-q", "soak",
                "--certificate", f"{self.folder}/wrapper.pem", "--key", f"{self.folder}/wrapper.key",
                "--ca", f"{self.folder}/ca.pem", *functions, "--concurrency", "8",
                "--state-dir", f"{self.folder}/state-{number}", "--log-level", "warning"]  # fmt: skip

    async def _kill(self, target: str) -> None:
        await Soak._kill(self, f"dispatcher-{self.randomness.randrange(SERVERS)}" if target == "dispatcher" else target)

    async def _submit(self, engine: Engine, ended: int) -> None:
        """Deploy, and start the source for another block whenever some more tasks have ended. To repeat either is to
        do nothing: the same file is the same version, the same key the same task."""
        for block in range(self.blocks):
            if block in self.emitted or ended < block * 2 * BLOCK // 3:
                continue
            try:
                await engine.service(Dags).deploy("storm", DAG)
                if (await engine.service(Dags).get("storm")).active_version is None:
                    return
                await engine.service(Sources).emit("storm", "source", key=str(block), payload={"block": block})
            except Unavailable:
                return
            self.emitted.add(block)

    async def _drained(self) -> None:
        until = asyncio.get_running_loop().time() + 150
        while left := await self.ask(lambda c: c.fetchval(OPEN)):
            assert asyncio.get_running_loop().time() < until, self.report(f"{left} events are not routed")
            await asyncio.sleep(0.05)
        await Soak._drained(self)

    async def _examine(self) -> dict[str, Any]:
        rows = {row[0]: tuple(row)[1:] for row in await self.ask(lambda c: c.fetch(COUNTS))}
        n, blocks = self.partitions, self.blocks
        # tasks, of them succeeded, keys of tasks; events, partitions, first revisions, later ones
        expected = {"first": (n, n, n, n, n, n, 0), "second": (n, n, n, n, n, n, 0),
                    "source": (blocks, blocks, blocks, n, n, n, 0)}  # fmt: skip
        assert rows == expected, self.report(f"{rows}, and not {expected}")
        given = [tuple(row) for row in await self.ask(lambda c: c.fetch(GIVEN))]
        assert given == [("first", n, n, n), ("second", n, n, n)], self.report(str(given))
        twice = await self.ask(lambda c: c.fetch(COMMITTED_TWICE))
        assert not twice, twice[:5]
        losses = await self.ask(lambda c: c.fetchval("select sum(losses) from windlass.task"))
        return {"partitions": n, "tasks": self.tasks, "killed": dict(self.killed), "losses": losses}


def storm_of(folder: Path, *, partitions: int, kills: int, seed: int, workers: int = 2) -> DagStorm:
    tasks = partitions // BLOCK + 2 * partitions
    return DagStorm(
        folder, "postgres", tasks, kills, random.Random(seed), workers=workers, hurried=True, partitions=partitions
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=500)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    given = parser.parse_args()
    sys.stderr.write(f"seed {given.seed}\n")
    with temporary_folder(Path(tempfile.gettempdir())) as folder:
        storm = storm_of(folder, partitions=given.partitions, kills=given.kills, seed=given.seed)
        print(json.dumps(asyncio.run(storm.run())), flush=True)


if __name__ == "__main__":
    main()
