"""Operations on DAGs: validate, plan, deploy, cut over, roll back, pause, retire, and emit from a source.

What is right is decided by the rules; here it is loaded and written. The row of a DAG is the lock under which its
deployments change: a cutover is one transaction, and takes the same time whatever the amount of data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from windlass.core.access import Principal, Role
from windlass.core.ids import derived_id
from windlass.core.states import Effect
from windlass.datasets.data.tables import DataTables, views_effect
from windlass.datasets.facts import load_facts
from windlass.datasets.read_yaml import read
from windlass.datasets.requests import Order, remember
from windlass.datasets.requests import known as known_request
from windlass.datasets.router import Router
from windlass.datasets.rules import deployment as rules
from windlass.datasets.rules.check import Report, check
from windlass.datasets.rules.dag import Dag, ExecutionStrategy
from windlass.datasets.rules.dag_form import Reading
from windlass.datasets.rules.deployed import Deployed, deploy, job_id_of
from windlass.datasets.rules.deployment import Actor, Cutover, Deployment, DeploymentState, deployment_id
from windlass.datasets.rules.fact import Facts
from windlass.datasets.rules.fingerprint import fingerprints, nonces, pointers
from windlass.datasets.rules.plan import Definition, Owed, Plan, Stored, counts, plan
from windlass.datasets.runtime_queues import make_queues, missing_queues
from windlass.datasets.sources import locked_dag, no_dag, take_over_sources
from windlass.datasets.tables.dags import DagRow, DagTable, DagView, DeploymentRow, NewDeployment
from windlass.datasets.tables.jobs import JobTable
from windlass.datasets.tables.purge import PurgeTable
from windlass.engine.engine import Engine
from windlass.errors import DagInvalid, Invalid, InvalidState, NotFound, PlanChanged
from windlass.store.notify import PendingNotifications
from windlass.store.transaction import Transaction

OWNER = Principal("windlass", Role.ADMIN)  # the caller of a program that has the database
LEAVE = "leave_jobs"  # the effect that cancels the tasks of jobs that no live deployment has
PAGE_DEFAULT = 50


class Validation(msgspec.Struct, frozen=True):
    """What is wrong with a file. A file with warnings only is valid."""

    name: str
    report: Report

    @property
    def valid(self) -> bool:
        return self.report.valid


class _Candidate(msgspec.Struct, frozen=True):
    """A file that could be deployed, with all that follows from it. `known` is its deployment, if it has one."""

    id: UUID
    yaml_sha256: str
    nonces: str
    deployed: Deployed
    plan: Plan
    known: DeploymentRow | None


class Dags:
    """The DAGs of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._store, self._randomness = engine, engine.parts.store, engine.parts.randomness

    # ----------------------------------------------------------------------------------------- files

    async def validate(self, yaml: str, *, namespace: str = "default", caller: Principal = OWNER) -> Validation:
        """Check a file against its namespace. Writes nothing. A dataset that the caller may not read is unknown."""
        reading = read(yaml)
        name = "" if reading.draft is None else reading.draft.name
        async with self._store.begin() as tx:
            facts = await load_facts(tx, namespace, name, caller)
        return Validation(name, check(reading, facts))

    async def plan(
        self,
        dag: str,
        yaml: str,
        *,
        namespace: str = "default",
        rebuild: Sequence[str] = (),
        caller: Principal = OWNER,
    ) -> Plan:
        """What a deploy of this file would do. Writes nothing."""
        reading = read(yaml)
        async with self._store.begin() as tx:
            known = await DagTable(tx.session).get(namespace, dag) or DagRow(namespace, dag)
            return (await self._candidate(tx, known, yaml, reading, rebuild, caller)).plan

    async def deploy(
        self,
        dag: str,
        yaml: str,
        *,
        namespace: str = "default",
        plan_hash: str | None = None,
        auto_cutover: bool = True,
        rebuild: Sequence[str] = (),
        caller: Principal = OWNER,
        order: Order | None = None,
    ) -> tuple[DeploymentRow, bool]:
        """Deploy a file. Returns the deployment, and whether it is new: the same file is the same deployment, which is
        brought back if another one is active. Raises DagInvalid and PlanChanged."""
        if (earlier := await self._earlier(namespace, dag, order)) is not None:
            return earlier, False
        reading = read(yaml)
        missing = await missing_queues(self._engine, reading, namespace)
        if missing:  # a deploy that is refused leaves no queues
            planned = await self.plan(dag, yaml, namespace=namespace, rebuild=rebuild, caller=caller)
            if plan_hash in (None, planned.plan_hash):
                await make_queues(self._engine, missing, namespace)
        async with self._store.begin() as tx:
            dags = DagTable(tx.session)
            row = await dags.lock(namespace, dag, make=True)
            assert row is not None, dag
            if (subject := await known_request(tx, namespace, order)) is not None:
                return await _deployment(tx, namespace, dag, subject), False
            candidate = await self._candidate(tx, row, yaml, reading, rebuild, caller, missing)
            known = candidate.known
            live = known is not None and known.state in rules.LIVE
            if not live and plan_hash not in (None, candidate.plan.plan_hash):
                raise PlanChanged(f"the plan is {candidate.plan.plan_hash} now", plan_hash=candidate.plan.plan_hash)
            if known is None:
                await self._insert(tx, row, candidate, yaml, auto_cutover, caller.name)
            else:
                await self._deploy_again(tx, row, known, auto_cutover)
            await self._revive(tx, candidate)
            if row.retired_at is not None:
                await self._bring_back(tx, row)
            await remember(tx, namespace, order, candidate.id)
            self._engine.service(Router).has_dags = True
            await tx.wake(PendingNotifications(effects=True))
            tx.wakes.everything = True  # a job may have a shorter lease than its queue
            found = await dags.deployment(namespace, dag, candidate.id)
        assert found is not None, dag
        await self._engine.service(DataTables).make_soon(candidate.id)
        return found, known is None

    async def _earlier(self, namespace: str, dag: str, order: Order | None) -> DeploymentRow | None:
        """What an earlier deploy with the same key has made."""
        async with self._store.begin() as tx:
            subject = await known_request(tx, namespace, order)
            return None if subject is None else await _deployment(tx, namespace, dag, subject)

    async def _bring_back(self, tx: Transaction, row: DagRow) -> None:
        """Take back that a DAG is retired: its active deployment has sources again, and catches up."""
        dags = DagTable(tx.session)
        await dags.update(replace(row, retired_at=None))
        if row.active_version is not None:
            target = await _deployment(tx, row.namespace, row.name, row.active_version)
            await self._take_over_sources(tx, row, target, paused=row.paused)
            await dags.mark_behind([job.job_id for job in await dags.jobs(target.id)])

    async def _take_over_sources(self, tx: Transaction, row: DagRow, target: DeploymentRow, *, paused: bool) -> None:
        dag = read(await DagTable(tx.session).yaml(target.id)).dag
        assert dag is not None, target.id
        await take_over_sources(tx, row, target, dag, paused=paused)

    # ----------------------------------------------------------------------------------------- reads

    async def get(self, dag: str, *, namespace: str = "default") -> DagView:
        async with self._store.begin() as tx:
            found = await DagTable(tx.session).get(namespace, dag)
        if found is None:
            raise no_dag(namespace, dag)
        return found

    async def page(
        self, *, namespace: str = "default", after: str | None = None, limit: int = PAGE_DEFAULT
    ) -> list[DagView]:
        """DAGs by name."""
        async with self._store.begin() as tx:
            return await DagTable(tx.session).page(namespace, after, limit)

    async def deployment(self, dag: str, which: UUID | int, *, namespace: str = "default") -> DeploymentRow:
        """A deployment by its id or number."""
        async with self._store.begin() as tx:
            return await _deployment(tx, namespace, dag, which)

    async def deployments(
        self, dag: str, *, namespace: str = "default", before: int | None = None, limit: int = PAGE_DEFAULT
    ) -> list[DeploymentRow]:
        """The deployments of a DAG, newest first."""
        await self.get(dag, namespace=namespace)
        async with self._store.begin() as tx:
            return await DagTable(tx.session).deployments(namespace, dag, before, limit)

    async def yaml(self, deployment_id: UUID) -> str:
        async with self._store.begin() as tx:
            return await DagTable(tx.session).yaml(deployment_id)

    # ----------------------------------------------------------------------------------------- cutover

    async def activate(
        self,
        dag: str,
        which: UUID | int,
        *,
        namespace: str = "default",
        expect_active: UUID | None = None,
        order: Order | None = None,
    ) -> DagView:
        """Make a deployment the active one, at once. Raises InvalidState, and Conflict if another one than expected is
        active."""
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            if await known_request(tx, namespace, order) is None:
                target = await _deployment(tx, namespace, dag, which)
                await self.cut_over(tx, row, target, by=Actor.PERSON, expect_active=expect_active)
                await remember(tx, namespace, order, target.id)
        return await self.get(dag, namespace=namespace)

    async def rollback(
        self,
        dag: str,
        *,
        namespace: str = "default",
        expect_active: UUID | None = None,
        order: Order | None = None,
    ) -> DagView:
        """Go back to the deployment that was active before."""
        view = await self.get(dag, namespace=namespace)
        if view.previous_version is None:
            raise InvalidState(f"no other version of {dag} was active before", dag=dag)
        return await self.activate(
            dag, view.previous_version, namespace=namespace, expect_active=expect_active or view.active_version,
            order=order,
        )  # fmt: skip

    async def cut_over(
        self,
        tx: Transaction,
        row: DagRow,
        target: DeploymentRow,
        *,
        by: Actor,
        expect_active: UUID | None = None,
    ) -> None:
        """Make a deployment of a locked DAG the active one. Jobs that both have go on untouched."""
        dags = DagTable(tx.session)
        if await PurgeTable(tx.session).purged_pointers(target.id):
            raise InvalidState(f"data of version {target.number} was purged: deploy its file again", dag=row.name)
        live = [await _loaded(dags, each) for each in await dags.live_deployments(row.namespace, row.name)]
        active = next((each for each in live if each.id == row.active_version), None)
        decided = rules.cutover(
            await _loaded(dags, target), active, by=by, previous=row.previous_version,
            live=[each for each in live if each.id not in (target.id, row.active_version)], expect_active=expect_active,
        )  # fmt: skip
        if decided.changes:
            await self._write_cutover(tx, row, target, decided)

    async def _write_cutover(self, tx: Transaction, row: DagRow, target: DeploymentRow, decided: Cutover) -> None:
        dags = DagTable(tx.session)
        for id_, state in decided.changes:
            await dags.move(id_, state)
        await dags.update(
            replace(row, active_version=decided.active, previous_version=decided.previous, retired_at=None)
        )
        pointed = await dags.pointers(target.id)
        before = await dags.pointers(row.active_version) if row.active_version is not None else {}
        await self._take_over_sources(tx, row, target, paused=row.paused)
        await dags.retire_datasets(row.namespace, row.name, pointed)
        kept = {job_id_of(row.namespace, row.name, *consumer) for consumer in decided.untouched}
        if row.active_version is not None:
            changed = {id_: version for id_, version in before.items() if pointed.get(id_) != version}
            kept -= await dags.upgrade(row.active_version, target.id, changed)
        await dags.mark_behind({job.job_id for job in await dags.jobs(target.id)} - kept)
        await dags.mark_readers_behind([id_ for id_, version in pointed.items() if before.get(id_) != version])
        left = {job_id_of(row.namespace, row.name, *consumer) for consumer in decided.cancelled}
        await tx.outbox.insert_outbox([views_effect(self._randomness.new_id(), row.namespace, row.name, target.id)])
        await self._leave(tx, row, target.id, left)

    async def abandon(
        self, dag: str, which: UUID | int, *, namespace: str = "default", order: Order | None = None
    ) -> DeploymentRow:
        """Give up a deployment that is not active. Its own tasks are cancelled."""
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            target = await _deployment(tx, namespace, dag, which)
            if await known_request(tx, namespace, order) is not None:
                return target
            await remember(tx, namespace, order, target.id)
            rules.check_move(DeploymentState(target.state), DeploymentState.ABANDONED, Actor.PERSON)
            dags = DagTable(tx.session)
            await dags.move(target.id, DeploymentState.ABANDONED)
            live = [await _loaded(dags, each) for each in await dags.live_deployments(namespace, dag)]
            ended = rules.ending(await _loaded(dags, target), live)
            await self._leave(tx, row, target.id, {job_id_of(namespace, dag, *consumer) for consumer in ended})
        return await self.deployment(dag, target.id, namespace=namespace)

    # ----------------------------------------------------------------------------------------- pause and retire

    async def pause(
        self, dag: str, *, namespace: str = "default", paused: bool = True, order: Order | None = None
    ) -> DagView:
        """Stop (or resume) to make tasks. What is owed meanwhile stays owed."""
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            if await known_request(tx, namespace, order) is None:
                await self._pause(tx, row, paused)
                await remember(tx, namespace, order, derived_id("dag", namespace, dag))
        return await self.get(dag, namespace=namespace)

    async def _pause(self, tx: Transaction, row: DagRow, paused: bool) -> None:
        dags = DagTable(tx.session)
        await dags.update(replace(row, paused=paused))
        if row.active_version is None or row.retired_at is not None:
            return
        target = await _deployment(tx, row.namespace, row.name, row.active_version)
        await self._take_over_sources(tx, row, target, paused=paused)
        if not paused:
            await dags.mark_behind([job.job_id for job in await dags.jobs(target.id)])
            await tx.wake(PendingNotifications(effects=True))

    async def retire(self, dag: str, *, namespace: str = "default") -> DagView:
        """Stop a DAG for good: its sources stop, its tasks are cancelled, its data stays."""
        async with self._store.begin() as tx:
            row = await locked_dag(tx, namespace, dag)
            dags = DagTable(tx.session)
            await dags.update(replace(row, retired_at=row.retired_at or await tx.now()))
            if row.active_version is not None:
                target = await _deployment(tx, namespace, dag, row.active_version)
                await take_over_sources(tx, row, target, Dag(dag), paused=True)
                await self._leave(tx, row, target.id, {job.job_id for job in await dags.jobs(target.id)})
        return await self.get(dag, namespace=namespace)

    # ----------------------------------------------------------------------------------------- parts

    async def _candidate(
        self,
        tx: Transaction,
        row: DagRow,
        yaml: str,
        reading: Reading,
        rebuild: Sequence[str],
        caller: Principal,
        made: Collection[str] = (),
    ) -> _Candidate:
        """All that follows from a file. `made` are queues that this deploy makes: the plan is that of before. Raises
        DagInvalid."""
        dags = DagTable(tx.session)
        facts = await load_facts(tx, row.namespace, row.name, caller)
        facts = replace(facts, queues={name: known for name, known in facts.queues.items() if name not in made})
        report = check(reading, facts)
        dag = reading.dag
        if not report.valid or dag is None:
            raise DagInvalid(problems=msgspec.to_builtins(report.problems))
        if dag.name != row.name:
            raise Invalid(f"the file is of the DAG {dag.name}, not of {row.name}", field="name")
        old = await self._definition(tx, row)
        kept = {} if old is None else await _nonces(dags, row)
        made = nonces(dag, kept, rebuild, row.active_version)
        text = msgspec.json.encode(made, order="sorted").decode()
        sha256 = hashlib.sha256(yaml.encode()).hexdigest()
        known = await dags.find_deployment(row.namespace, row.name, sha256, text)
        id_ = deployment_id(row.namespace, row.name, sha256, made)
        new = Definition(dag, fingerprints(dag, rebuild=made, deployment_id=id_), id_)
        versions = pointers(dag, row.namespace, new.fingerprints)
        stored = await self._stored(tx, old, new, facts, versions)
        return _Candidate(
            id_, sha256, text, deploy(dag, facts, new.fingerprints.jobs, versions),
            plan(old, new, facts, stored, report.warnings), known,
        )  # fmt: skip

    async def _definition(self, tx: Transaction, row: DagRow) -> Definition | None:
        """The active deployment, as its file defines it."""
        if row.active_version is None:
            return None
        dags = DagTable(tx.session)
        dag = read(await dags.yaml(row.active_version)).dag
        assert dag is not None, row.active_version
        made = fingerprints(dag, rebuild=await _nonces(dags, row), deployment_id=row.active_version)
        return Definition(dag, made, row.active_version)

    async def _stored(
        self, tx: Transaction, old: Definition | None, new: Definition, facts: Facts, versions: Mapping[UUID, UUID]
    ) -> Stored:
        """What the store has of a plan: versions, partitions, and what is owed to jobs that are new."""
        dags, jobs = DagTable(tx.session), JobTable(tx.session)
        before = pointers(old.dag, facts.namespace, old.fingerprints) if old is not None else {}
        current = await dags.current_versions([known.dataset_uuid for known in facts.datasets.values()])
        existing = frozenset(await dags.known_versions({*versions.values(), *before.values()}))
        partitions = await dags.count_partitions({*versions.values(), *before.values(), *current.values()})
        owed: dict[str, Owed] = {}
        for count in counts(old, new, facts, existing):
            job_id = job_id_of(facts.namespace, new.dag.name, count.job, count.fingerprint)
            found = Owed()
            for given in count.reads:
                version = given.dataset_version or current.get(given.dataset_uuid)
                if version is None or not given.trigger:
                    continue
                if count.strategy is ExecutionStrategy.PER_PARTITION:
                    consumed = await jobs.count_consumed(job_id, given.index, version) if given.exists else 0
                    found = Owed(found.partitions + max(0, partitions.get(version, 0) - consumed), found.cursor)
                elif not given.exists or await jobs.owed_cursor(job_id, version) is not None:
                    found = Owed(found.partitions, cursor=True)
            owed[count.job] = found
        return Stored(existing, partitions, owed)

    async def _insert(
        self, tx: Transaction, row: DagRow, candidate: _Candidate, yaml: str, auto_cutover: bool, created_by: str
    ) -> None:
        """Write a new deployment. Names of datasets are taken at once, so that no other DAG takes them meanwhile."""
        dags = DagTable(tx.session)
        number = await dags.next_number(row.namespace, row.name)
        planned = msgspec.json.encode(candidate.plan).decode()
        await dags.insert_deployment(
            NewDeployment(
                candidate.id, row.namespace, row.name, number, yaml, candidate.yaml_sha256, candidate.nonces,
                auto_cutover, planned, candidate.plan.plan_hash, created_by,
            )
        )  # fmt: skip
        await dags.put_datasets(row.namespace, row.name, candidate.deployed.datasets)
        await dags.insert_parts(candidate.id, row.namespace, row.name, candidate.deployed)
        await self._fall_behind(dags, row, candidate.id)

    async def _deploy_again(self, tx: Transaction, row: DagRow, known: DeploymentRow, auto_cutover: bool) -> None:
        """Bring back a deployment that another one has replaced. What is owed since is caught up first."""
        state = DeploymentState(known.state)
        if state in rules.LIVE:
            return
        rules.check_move(state, DeploymentState.BUILDING, Actor.DEPLOY)
        dags = DagTable(tx.session)
        await dags.move(known.id, DeploymentState.BUILDING, auto_cutover=auto_cutover)
        await self._fall_behind(dags, row, known.id)

    async def _revive(self, tx: Transaction, candidate: _Candidate) -> None:
        """Let versions that were purged be built again. Raises InvalidState while their data is being deleted."""
        table, versions = PurgeTable(tx.session), candidate.deployed.pointers.values()
        if purging := await table.still_purging(versions):
            raise InvalidState(f"the data of version {purging[0]} is being deleted: deploy again soon", retry_after_s=5)
        if await table.revive(versions):
            await DagTable(tx.session).mark_behind([job.job_id for job in candidate.deployed.jobs])

    async def _fall_behind(self, dags: DagTable, row: DagRow, deployment_id: UUID) -> None:
        """Mark the jobs of a deployment that the active one does not have. If an earlier deployment had them, something
        may be owed since."""
        kept = {job.job_id for job in await dags.jobs(row.active_version)} if row.active_version else set()
        await dags.mark_behind({job.job_id for job in await dags.jobs(deployment_id)} - kept)

    async def _leave(self, tx: Transaction, row: DagRow, deployment_id: UUID, jobs: set[UUID]) -> None:
        """Cancel the tasks of jobs that leave, after the commit. A tick that is about to make one waits for the lock,
        and then sees that its job has left."""
        if jobs:
            await JobTable(tx.session).lock_jobs(jobs)
            body: dict[str, object] = {"jobs": [str(job) for job in sorted(jobs)]}
            id_ = self._randomness.new_id()
            await tx.outbox.insert_outbox([Effect(id_, LEAVE, row.namespace, deployment_id, 0, body)])
        await tx.wake(PendingNotifications(effects=True))


async def _loaded(dags: DagTable, row: DeploymentRow) -> Deployment:
    """A deployment, as far as a cutover needs it."""
    jobs = {job.name: job.fingerprint for job in await dags.jobs(row.id)}
    return Deployment(row.id, row.number, DeploymentState(row.state), jobs)


async def _nonces(dags: DagTable, row: DagRow) -> dict[str, str]:
    """The nonces of the active deployment."""
    if row.active_version is None:
        return {}
    active = await dags.deployment(row.namespace, row.name, row.active_version)
    assert active is not None, row
    return msgspec.json.decode(active.nonces, type=dict[str, str])


async def _deployment(tx: Transaction, namespace: str, dag: str, which: UUID | int) -> DeploymentRow:
    found = await DagTable(tx.session).deployment(namespace, dag, which)
    if found is None:
        raise NotFound(f"DAG {dag} has no version {which}", dag=dag)
    return found
