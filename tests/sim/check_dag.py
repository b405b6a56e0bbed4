"""What must hold for jobs and their data: one task for each thing that is owed, none for a DAG that is paused or a job
that is held, windows that follow each other without gap, revisions and cursors that only grow and that only the current
attempt commits, one active deployment, one task of a job that always runs, and in the end nothing that is still owed.

Most is checked with every commit, from the log of written rows. What is owed is compared once nothing moves any more.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.sim.check_task import require
from tests.sim.database import Change
from tests.sim.hold import HoldCommitChecker, HoldTaskChecker
from tests.sim.mirror import TERMINAL, Row, content, instant
from tests.sim.trace import short
from tests.sim.violation import Violation

from windlass.core.task import JOB
from windlass.datasets import sink
from windlass.datasets.dags import LEAVE
from windlass.datasets.rules.job import LEFT, SERVER_QUEUE
from windlass.datasets.rules.manifest import digest

if TYPE_CHECKING:
    from tests.sim.dag import DagSimulation

LIVE = frozenset({"active", "building", "ready"})
Place = tuple[str, str]  # a job and a version that it reads; or a version and a key
AT_ONCE = frozenset({SERVER_QUEUE, sink.QUEUE})  # whose tasks are claimed and completed in one write


class DagTaskChecker(HoldTaskChecker):
    """Tasks of jobs have no token of a client. What runs in the server is claimed and completed in one write."""

    def task(self, old: Row | None, new: Row | None, at: datetime) -> None:
        at_once = old is not None and new is not None and new["queue"] in AT_ONCE and new["state"] in TERMINAL
        if at_once and old is not None and new is not None and new["attempt"] == old["attempt"] + 1:
            begun = {**new, "state": "running", "outcome": None, "result": None, "error": None, "finished_at": None}
            super().task(old, begun, at)
            old = begun
        super().task(old, new, at)

    def _inserted(self, row: Row) -> None:
        require(row["job_id"] is not None or row["queue"] == sink.QUEUE, row, "belongs to no job")
        require(row["state"] in ("queued", "blocked") and row["attempt"] == 0, row, "begins in the middle of its life")

    def check_end(self) -> None:
        """The history counts each attempt that went wrong once, also one that was lost and then reported a failure."""
        for row in self.mirror.tasks.values():
            whats = {"lost", "failed", "timed_out"}
            recorded = {entry["attempt"] for entry in self.mirror.history.get(row["id"], []) if entry["what"] in whats}
            counted, last = row["failures"] + row["losses"], row["outcome"] in whats
            kept_since = self.world.now() - timedelta(seconds=self.world.plan.keep_finished_s)
            if instant(row["created_at"]) >= kept_since:
                require(
                    len(recorded) in (counted, counted - last), row, f"counts {counted}, its history has {recorded}"
                )

    def _counts(self, old: Row, new: Row) -> None:
        if not (new["policy"] or {}).get("unlimited"):
            super()._counts(old, new)

    def _results(self, old: Row, new: Row) -> None:
        by_engine = new["queue"] in AT_ONCE or content(new["result"]) == {"noop": True}
        if not (new["state"] == "succeeded" and by_engine):
            super()._results(old, new)


class DagCommitChecker(HoldCommitChecker):
    def _blocked(self, row: Row) -> None:
        """A task that waits for its turn waits for another task of its job, or for the effect of an end."""
        world: Any = self.world
        if row["id"] in world.dag_checker.waiting():
            return  # a backfill waits for a partition that nobody has made yet
        if row["job_id"] is None:
            super()._blocked(row)
            return
        mates = (mate for mate in self.mirror.tasks.values() if mate["job_id"] == row["job_id"])
        started = any(mate["state"] not in (*TERMINAL, "blocked") for mate in mates)
        ended = any(
            effect["kind"] == JOB and effect["body"]["job_id"] == row["job_id"] and effect["dead_at"] is None
            for effect in self.mirror.outbox.values()
        )
        if not started and not ended:
            raise Violation(f"task {short(row['id'])} waits for its turn, and no task of its job will end")


class DagChecker:
    def __init__(self, world: DagSimulation) -> None:
        self.world, self.mirror = world, world.mirror
        self.dags: dict[str, Row] = {}
        self.deployments: dict[str, Row] = {}
        self.jobs: dict[str, Row] = {}
        self.jobs_of: dict[str, set[str]] = defaultdict(set)  # by deployment
        self.cursors: dict[Place, int] = {}
        self.high_waters: dict[str, int] = {}
        self.partitions: dict[Place, int] = {}
        self.revisions: dict[Place, int] = {}
        self.owed: dict[tuple[str, str], str] = {}  # the task of each thing that a job was owed
        self.read: dict[Place, int] = {}  # how far the windows reach that were accepted
        self.replays: dict[str, str] = {}
        self.forgotten: set[str] = set()
        self.one_by_one: set[str] = set()  # jobs that read windows
        self.readied: list[Row] = []  # deployments that are built with this commit
        self.edges: dict[str, list[Row]] = defaultdict(list)  # that trigger jobs, by deployment
        self.given: set[tuple[str, str, str, int]] = set()  # job, version, key and revision
        self.unrouted: dict[str, Row] = {}  # events
        self.recorded: set[str] = set()  # tasks whose record is new in this commit
        self.always_on: dict[str, str] = {}  # the names of jobs that always run, by id
        self.backfills: dict[str, Row] = {}
        self.backfill_tasks: dict[str, Row] = {}
        self.invalidations: dict[str, Row] = {}
        self.committed: set[tuple[str, str]] = set()  # datasets, with the keys of partitions
        self.unfed_since: dict[str, int] = {}  # paused DAGs and held jobs, with the commit that made them so

    def before(self, changes: list[Change]) -> None:
        """What the checkers of tasks ask for."""
        for change in changes:
            if change.relation == "backfill_task" and change.new is None:
                self.backfill_tasks.pop(change.old["task_id"], None)
            elif change.relation == "backfill_task":
                self.backfill_tasks[change.new["task_id"]] = change.new

    def waiting(self) -> set[str]:
        return {id_ for id_, row in self.backfill_tasks.items() if row["waiting"]}

    def after(self, changes: list[Change], began_at_commit: int) -> None:
        """A commit is in the mirror: check what it says of jobs and data."""
        self.recorded.clear()
        self.readied.clear()
        for change in changes:
            if change.relation == "task" and change.old is None and change.new["job_id"] is not None:
                self._fed(change.new, began_at_commit)
        for change in changes:
            if (follow := getattr(self, f"_{change.relation}", None)) is not None:
                follow(change.old, change.new)
        relations = {change.relation for change in changes}
        if relations & {"dag", "deployment"}:
            self._one_is_active()
        if relations & {"partition", "partition_revision"}:
            self._current_is_committed(changes)
        for deployment in self.readied:
            self._is_built(deployment)
        for change in changes:
            if change.relation == "outbox" and change.new is None and change.old["kind"] == LEAVE:
                self._left(change.old["body"]["jobs"])
            if change.relation == "task" and change.old is None and change.new["job_id"] is not None:
                self._made(change.new)
            if change.relation == "task" and self._may_run_alone(change.new):
                self._alone(change.new)
            if change.relation in ("event", "partition_revision") and change.old is None:
                self._fenced(change.relation, change.new)

    # ----------------------------------------------------------------------------------------- rows as they come

    def _dag(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.dags[new["name"]] = new
            self._unfed(f"DAG {new['name']}", new["paused"])

    def _deployment(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.deployments[new["id"]] = new
            if old is not None and (old["state"], new["state"]) == ("building", "ready"):
                self.readied.append(new)
            self.world.say("deployment", f"{new['number']} {short(new['id'])} is {new['state']}")

    def _deployment_job(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.jobs_of[new["deployment_id"]].add(new["job_id"])
            if (new["definition"].get("source") or {}).get("kind") == "always_on":
                self.always_on[new["job_id"]] = new["name"]
            if new["definition"].get("execution_strategy") == "PerUpdate":
                self.one_by_one.add(new["job_id"])

    def _deployment_edge(self, old: Row | None, new: Row | None) -> None:
        if new is not None and new["trigger"]:
            self.edges[new["deployment_id"]].append(new)

    def _consumption(self, old: Row | None, new: Row | None) -> None:
        for row, change in ((old, self.given.discard), (new, self.given.add)):
            if row is not None:
                change((row["job_id"], row["dataset_version"], row["key"], row["revision"]))

    def _job(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.jobs[new["id"]] = new
            self._unfed(f"job {new['id']}", new["held"])

    def _unfed(self, what: str, is_so: bool) -> None:
        if is_so:
            self.unfed_since.setdefault(what, self.world.commits)
        else:
            self.unfed_since.pop(what, None)

    def _backfill(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.backfills[new["id"]] = new

    def _invalidation(self, old: Row | None, new: Row | None) -> None:
        if new is not None:
            self.invalidations[new["id"]] = new

    def _event(self, old: Row | None, new: Row | None) -> None:
        if new is not None and new["revision"] is not None:
            self.committed.add((new["dataset_uuid"], new["partition_key"]))
        if new is not None and new["declared"] and new["routed_at"] is None:
            self.unrouted[new["id"]] = new
        elif old is not None:
            self.unrouted.pop(old["id"], None)

    def _task(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            return
        if old is not None and new["state"] == "succeeded" != old["state"]:
            window = _window(new)
            if window is not None:
                self._window_read((new["job_id"], window["dataset_version"]), window["cursor"], new)

    def _job_task(self, old: Row | None, new: Row | None) -> None:
        """A record is removed if its task was cancelled when its job left: what it was made for is owed again."""
        if old is None and new is not None:
            self.recorded.add(new["task_id"])
        if new is None and old is not None and old["job_id"] not in self.always_on:
            if old["task_id"] in self.recorded:
                return  # taken back: its job is full
            row = self.mirror.ever(old["task_id"])
            if row is None or row["state"] == "succeeded" or (row["cancel"] or {}).get("reason") != LEFT:
                raise Violation(f"the record of {short(old['task_id'])} is gone: {row}")
            self.forgotten.add(old["task_id"])
            self.owed = {thing: id_ for thing, id_ in self.owed.items() if id_ != old["task_id"]}

    def _window_read(self, place: Place, to: int, row: Row) -> None:
        """Accepted windows are disjoint and without gap, in the order in which they are accepted."""
        reached = self.read.get(place)
        if content(row["result"]) == {"noop": True}:
            require(reached is not None and to <= reached, row, f"did nothing, its job has read up to {reached}")
            return
        if row["queue"] != SERVER_QUEUE:
            began = self.world.windows.get((row["id"], row["attempt"]), "nowhere")
            require(began == reached, row, f"read ({began}, {to}], though its job has read up to {reached}")
            require(reached is None or to > reached, row, f"read up to {to} after {reached}")
        self.read[place] = to if reached is None else max(to, reached)

    def _job_cursor(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            return
        place = new["job_id"], new["dataset_version"]
        if old is not None and new["cursor"] < old["cursor"]:
            raise Violation(f"job {short(place[0])} went back from {old['cursor']} to {new['cursor']}")
        reached = self.read.get(place)
        if reached is None or new["cursor"] > reached:
            raise Violation(f"the cursor of job {short(place[0])} is {new['cursor']}, though it has read to {reached}")
        self.cursors[place] = new["cursor"]

    def _high_water(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            return
        if old is not None and new["cursor"] < old["cursor"]:
            raise Violation(f"the high water went back from {old['cursor']} to {new['cursor']}")
        written = self.world.data_checker.reached(new["dataset_version"])
        if written is not None and new["cursor"] > written:
            raise Violation(f"the high water of a buffered dataset is {new['cursor']}, its table is at {written}")
        self.high_waters[new["dataset_version"]] = new["cursor"]

    def _partition_revision(self, old: Row | None, new: Row | None) -> None:
        if old is not None or new is None:
            raise Violation(f"a revision was changed: {old}")
        place = new["dataset_version"], new["key"]
        if new["revision"] != self.revisions.get(place, 0) + 1:
            raise Violation(f"partition {place[1]}: revision {new['revision']} follows {self.revisions.get(place, 0)}")
        self.revisions[place] = new["revision"]

    def _partition(self, old: Row | None, new: Row | None) -> None:
        if new is None:
            raise Violation(f"a partition is gone: {old}")
        self.partitions[new["dataset_version"], new["key"]] = new["revision"]

    # ----------------------------------------------------------------------------------------- after each commit

    def _one_is_active(self) -> None:
        for name, row in self.dags.items():
            active = [d["id"] for d in self.deployments.values() if d["dag"] == name and d["state"] == "active"]
            if active != ([] if row["active_version"] is None else [row["active_version"]]):
                raise Violation(f"DAG {name} points to {row['active_version']}, and {active} are active")

    def _current_is_committed(self, changes: list[Change]) -> None:
        for change in changes:
            if change.relation in ("partition", "partition_revision"):
                place = change.new["dataset_version"], change.new["key"]
                if self.partitions.get(place) != self.revisions.get(place):
                    raise Violation(
                        f"partition {place[1]} has revision {self.partitions.get(place)}, and "
                        f"{self.revisions.get(place)} are committed"
                    )

    def live_jobs(self) -> set[str]:
        return {id_ for d in self.deployments.values() if d["state"] in LIVE for id_ in self.jobs_of[d["id"]]}

    def _made(self, row: Row) -> None:
        """A task is made once for each thing, for a job that is live. Of those that always run there is one."""
        if row["job_id"] in self.always_on:
            self._one_runs(row)
        if row["replay_of"] is not None:
            self.replays[row["replay_of"]] = row["id"]
            return
        require(row["job_id"] in self.live_jobs(), row, "is made for a job that no live deployment has")
        if row["job_id"] in self.always_on:
            return
        thing = _thing(row)
        known = self.owed.setdefault((row["job_id"], thing), row["id"])
        require(known == row["id"], row, f"is made for {thing}, for which there is {short(known)} already")
        again = row["id"] in self.mirror.gone and row["id"] not in self.forgotten
        require(not again, row, f"is made for {thing} once more")

    def _fed(self, row: Row, began_at_commit: int) -> None:
        """Nothing is made for a DAG that is paused or a job that is held, by a transaction that began after that. A
        person may still replay a task."""
        if row["replay_of"] is not None:
            return
        for what in (f"DAG {self.jobs[row['job_id']]['dag']}", f"job {row['job_id']}"):
            since = self.unfed_since.get(what)
            fed = since is None or began_at_commit < since
            require(fed, row, f"is made for {what}, which is paused or held")

    def _one_runs(self, row: Row) -> None:
        name = self.always_on[row["job_id"]]
        for mate in self.mirror.unfinished():
            if mate["id"] != row["id"] and self.always_on.get(mate["job_id"]) == name:
                require(False, row, f"is made for {name}, of which {short(mate['id'])} has not ended")

    def _fenced(self, relation: str, row: Row) -> None:
        """Only the current attempt commits, while it runs or with its success."""
        task = self.mirror.tasks.get(row["task_id"])
        if task is None:
            raise Violation(f"{relation} of {short(row['task_id'])}, which is not there")
        good = task["attempt"] == row["attempt"] and task["state"] in ("running", "succeeded")
        require(good, task, f"committed {relation} as attempt {row['attempt']}")
        if relation == "partition_revision" and row["dataset_version"] in _in_lake(task):
            self._files(task, row)

    def _files(self, task: Row, row: Row) -> None:
        """Files are committed with the success of the attempt that wrote them, and are there."""
        require(row["location"] is not None, task, f"has committed {row['key']} without its files")
        require(task["state"] == "succeeded", task, "has committed files before its end")
        folder = f"/{row['dataset_version']}/{row['task_id']}/{row['attempt']}/"
        require(folder in row["location"], task, f"has committed files of another attempt: {row['location']}")
        key = row["location"].removeprefix(f"{self.world.lake.url}/")
        manifest = self.world.lake.objects.get(f"{key}_manifest.json", b"")
        require(digest(manifest) == row["manifest_sha256"], task, "has committed another manifest than the one there")

    def _may_run_alone(self, row: Row | None) -> bool:
        """Whether this is a task of a job that reads windows, and runs or may start."""
        return row is not None and row["job_id"] in self.one_by_one and row["state"] not in (*TERMINAL, "blocked")

    def _alone(self, row: Row) -> None:
        """No other task of its job runs or may start."""
        for mate in self.mirror.unfinished():
            if mate["id"] != row["id"] and mate["job_id"] == row["job_id"] and mate["state"] != "blocked":
                require(False, row, f"may run while {short(mate['id'])} of the same job is {mate['state']}")

    def _is_built(self, deployment: Row) -> None:
        """Nothing is owed to the new jobs of a deployment that is ready, but for what no tick has seen yet."""
        active = {id_ for row in self.dags.values() for id_ in self.jobs_of[row["active_version"] or ""]}
        coming = {(row["dataset_version"], row["partition_key"]) for row in self.unrouted.values()}
        for edge in self.edges[deployment["id"]]:
            if edge["job_id"] in active or not edge["by_partition"]:
                continue
            for (version, key), revision in self.partitions.items():
                given = (edge["job_id"], version, key, revision) in self.given or (version, key) in coming
                if version == edge["dataset_version"] and not given:
                    what = f"revision {revision} of {key} is owed to {short(edge['job_id'])}"
                    raise Violation(f"deployment {deployment['number']} is ready, and {what}")

    def _left(self, jobs: list[str]) -> None:
        """The tasks of jobs that left are cancelled: each has a cancel. A person may replay one all the same."""
        for row in self.mirror.unfinished():
            if row["job_id"] in jobs and row["job_id"] not in self.live_jobs() and row["replay_of"] is None:
                require(row["cancel"] is not None, row, "goes on, though no live deployment has its job")

    # ----------------------------------------------------------------------------------------- what is there

    def has_state(self, *states: str) -> bool:
        return any(row["state"] in states for row in self.deployments.values())

    def open_invalidations(self) -> list[Row]:
        return [row for row in self.invalidations.values() if row["processed_at"] is None]

    def active_always_on(self) -> set[str]:
        active = {row["active_version"] for row in self.dags.values()}
        return {id_ for version in active if version for id_ in self.jobs_of[version] if id_ in self.always_on}

    def always_on_is_right(self) -> bool:
        """Whether each job that always runs has its task, and none has one that it should not have."""
        if any(row["paused"] for row in self.dags.values()):
            return False
        running = {row["job_id"] for row in self.mirror.unfinished() if row["job_id"] in self.always_on}
        return running == self.active_always_on()

    # ----------------------------------------------------------------------------------------- at the end

    def unsettled(self) -> list[str]:
        """What has still to happen, if nobody does anything."""
        found = [f"job {row['name']} {short(row['id'])} is behind" for row in self.jobs.values() if row["behind"]]
        for row in self.deployments.values():
            if row["state"] == "building" or (row["state"] == "ready" and row["auto_cutover"]):
                found.append(f"deployment {row['number']} is {row['state']}")
        live = self.live_jobs()
        found += [f"job {row['name']} is held" for row in self.jobs.values() if row["held"] and row["id"] in live]
        found += [f"backfill {short(id_)} is open" for id_, row in self.backfills.items() if row["ended_at"] is None]
        found += [f"invalidation {short(row['id'])} waits" for row in self.open_invalidations() if not row["routed_at"]]
        if not self.always_on_is_right():
            found.append("a job that always runs does not")
        return found

    async def check_end(self, connection: Any) -> None:
        """Nothing moves any more: nothing is owed to a live job, and all that was committed was routed."""
        rows = await connection.fetch("select id from windlass.event where declared and routed_at is null")
        if rows:
            raise Violation(f"{len(rows)} events were never routed")
        await self._tasks_are_recorded(connection)
        for edge in await connection.fetch(_LIVE_EDGES):
            if edge["by_partition"]:
                await self._partitions_were_given(connection, edge)
            else:
                self._windows_were_read(edge)

    async def _tasks_are_recorded(self, connection: Any) -> None:
        rows = await connection.fetch("select task_id::text, job_id::text from windlass.job_task")
        recorded = {row[0] for row in rows if row[1] not in self.always_on}
        if recorded != set(self.owed.values()):
            raise Violation(f"tasks and records of tasks differ: {sorted(recorded ^ set(self.owed.values()))[:3]}")

    async def _partitions_were_given(self, connection: Any, edge: Any) -> None:
        rows = await connection.fetch(
            """select p.key, p.revision, c.task_id::text from windlass.partition p
                 left join windlass.consumption c
                   on c.job_id = $1 and c.input_index = $3 and c.dataset_version = $2 and c.key = p.key
                      and c.revision = p.revision
                where p.dataset_version = $2 order by p.key""",
            edge["job_id"], edge["dataset_version"], edge["input_index"],
        )  # fmt: skip
        for row in rows:
            what = f"revision {row['revision']} of {row['key']} to job {edge['name']} {short(edge['job_id'])}"
            if row["task_id"] is None:
                raise Violation(f"nobody gave {what}")
            self._was_not_dropped(row["task_id"], what)

    def _windows_were_read(self, edge: Any) -> None:
        version = str(edge["dataset_version"])
        high = self.high_waters.get(version)
        place = str(edge["job_id"]), version
        if high is None or self.cursors.get(place, high - 1) >= high:
            return
        what = (
            f"the window to {high} of job {edge['name']} {short(edge['job_id'])}, which is at {self.cursors.get(place)}"
        )
        task_id = self.owed.get((place[0], f"cursor {version} {high}"))
        if task_id is None:
            raise Violation(f"there is no task for {what}")
        if self._was_not_dropped(task_id, what) == "succeeded":
            raise Violation(f"the cursor did not move after {what}")

    def _was_not_dropped(self, task_id: str, what: str) -> str:
        """It succeeded, failed, or a person has cancelled it; its last replay counts."""
        while task_id in self.replays:
            task_id = self.replays[task_id]
        row = self.mirror.ever(task_id)
        if row is None:
            raise Violation(f"{short(task_id)} was made for {what}, and is not there")
        if row["state"] == "cancelled" and (row["cancel"] or {}).get("reason") == LEFT:
            raise Violation(f"{short(task_id)} was made for {what}, and was cancelled with a deployment that is back")
        return str(row["state"])


def _window(row: Row) -> Row | None:
    window: Row | None = (content(row["wire"]) or {}).get("window")
    return window


def _in_lake(row: Row) -> set[str]:
    """The versions that a task writes to the lake."""
    return {output["dataset_version"] for output in content(row["wire"])["outputs"] if output["storage"] == "s3"}


def _thing(row: Row) -> str:
    """What a task is owed for, as its holder gets it."""
    wire = content(row["wire"])
    trigger = wire["trigger"]
    if trigger["kind"] == "invalidation":
        return f"invalidation {trigger['invalidation_id']}"
    if trigger["kind"] == "backfill":
        keys = {given["partition_key"] for given in wire["inputs"] if given.get("mode") == "partition"}
        return f"backfill {trigger['backfill_id']} {sorted(keys)}"
    for given in wire["inputs"]:
        if given.get("mode") == "cursor":
            return f"cursor {given['dataset_version']} {given['cursor_to']}"
        if given.get("mode") == "partition" and given["revision"] is not None:
            return f"partition {given['dataset_version']} {given['partition_key']} {given['revision']}"
    return f"source {row['id']}"


# A job that two deployments share reads what the active one reads.
_LIVE_EDGES = """
select distinct on (e.job_id, e.input_index) e.job_id, j.name, e.input_index, e.dataset_version, e.by_partition
  from windlass.deployment d
  join windlass.dag g on g.namespace = d.namespace and g.name = d.dag and not g.paused and g.retired_at is null
  join windlass.deployment_edge e on e.deployment_id = d.id and e.trigger
  join windlass.job j on j.id = e.job_id
 where d.state in ('active', 'building', 'ready')
 order by e.job_id, e.input_index, d.state = 'active' desc, d.id
"""
