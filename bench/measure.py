"""The measurements: each takes a stage and a contestant, and returns figures or raises `Failed`.

All subjects go through the same functions. Rates are tasks per second; a drain lasts from the first start of a handler
until the store shows all tasks as done. Costs are processor time of workers and server per task in the same interval,
so that they do not include the start of a process.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace

from bench import process, recorder
from bench.datasets import many_partitions, plan_jobs, routed_chain, routed_wide, sink_batches
from bench.export import export_mods
from bench.harness import Contestant, Crew, Failed, Figures, Place, Query, Stage
from bench.idle_many import idle_polls, idle_sessions
from bench.lake import commit_files
from bench.ours import Pooled, Remote

WARM_UP = 10


def submit_one(stage: Stage, contestant: Contestant) -> Figures:
    return _submit(stage, contestant, "one", seconds=stage.scale.seconds)


def submit_crowd(stage: Stage, contestant: Contestant) -> Figures:
    return _submit(stage, contestant, "crowd", seconds=stage.scale.seconds)


def submit_batch(stage: Stage, contestant: Contestant) -> Figures:
    return _submit(stage, contestant, "batch", count=stage.scale.batched)


def _submit(stage: Stage, contestant: Contestant, how: str, **options: float) -> Figures:
    with stage.place(contestant) as place:
        # A subject that does not park tasks accepts none without a worker.
        with nullcontext() if contestant.subject.parks else stage.crew(contestant, place, 1, capacity=200_000):
            done = stage.agent(contestant, how, place.url, **options)
        stored = place.count(contestant.subject.stored_sql)
    if stored not in (None, done["stored"]):
        raise Failed(f"{done['stored']} submitted, {stored} in the store")
    return {"rate": done["timed"] / done["wall_s"], "client_cpu_us": 1e6 * done["cpu_s"] / done["timed"]}


def drain_1(stage: Stage, contestant: Contestant) -> Figures:
    return _drain(stage, contestant, workers=1)


def drain_2(stage: Stage, contestant: Contestant) -> Figures:
    return _drain(stage, contestant, workers=2)


def drain_pooled(stage: Stage, contestant: Contestant) -> Figures:
    """Ours behind a transaction-mode pooler."""
    return _drain(stage, replace(contestant, subject=Pooled()), workers=1)


def drain_remote(stage: Stage, contestant: Contestant) -> Figures:
    """Ours with a worker that reaches its queue through a server."""
    return _drain(stage, replace(contestant, subject=Remote()), workers=1)


def flow_1(stage: Stage, contestant: Contestant) -> Figures:
    """Workflows with three durable steps, one worker."""
    return _drain(
        stage, contestant, workers=1, tasks=int(contestant.subject.flow_tasks * stage.scale.share), unit="flow"
    )


def _drain(
    stage: Stage, contestant: Contestant, *, workers: int, tasks: int | None = None, unit: str = "noop", **marks: int
) -> Figures:
    count = tasks or int(contestant.subject.drain_tasks * stage.scale.share)
    with stage.place(contestant) as place:
        if not contestant.subject.parks:
            return _stream(stage, contestant, place, workers, count, unit)
        stage.agent(contestant, "fill", place.url, count=count, unit=unit)
        place.flush()
        with stage.crew(contestant, place, workers, capacity=count) as crew:
            return _watch(contestant, place, crew, count, **marks)


def _stream(stage: Stage, contestant: Contestant, place: Place, workers: int, count: int, unit: str) -> Figures:
    """Send tasks to live workers; the time counts from the first send to the last start."""
    with stage.crew(contestant, place, workers, capacity=count) as crew:
        stage.agent(contestant, "warm", place.url, count=WARM_UP)
        crew.await_started(WARM_UP)
        meter = Meter(crew, place)
        meter.begin()
        started_at = stage.agent(contestant, "fill", place.url, count=count, unit=unit)["started_at"]
        crew.await_started(WARM_UP + count)
        hits = crew.hits()
        _require_exact(hits.fault(range(count)))
        return {"rate": count / (max(hits.started) - started_at), **meter.end(count)}


def _watch(contestant: Contestant, place: Place, crew: Crew, count: int, *, already: int = 0, **marks: int) -> Figures:
    """Wait until the workers have started all tasks and the store shows them as done; `already` were done before."""
    meter = Meter(crew, place, **marks)
    crew.await_started(count, meter.notice)
    if "lead" in marks:
        # To count millions of rows would cost more than what is compared, so count after the costs are taken.
        time.sleep(0.5)
        costs = meter.end(count)
        done_at = _await_done(contestant, place, already + count)
    else:
        done_at = _await_done(contestant, place, count)
        costs = meter.end(count)
    hits = crew.hits()
    _require_exact(hits.fault(range(count)))
    return {"rate": count / (done_at - min(hits.started)), **costs}


def _await_done(contestant: Contestant, place: Place, count: int) -> float:
    deadline = time.monotonic() + 30
    while (done := place.count(contestant.subject.done_sql)) != count:
        if time.monotonic() > deadline:
            raise Failed(f"all {count} tasks started, but {done} are done in the store")
        time.sleep(0.005)
    return time.monotonic()


def _require_exact(fault: str | None) -> None:
    if fault is not None:
        raise Failed(f"not exact: {fault}")


Sample = tuple[int, float, float]  # tasks started, processor seconds of the workers and of the server


@dataclass
class Meter:
    """Processor time of workers and server, from the first start on, or from when `lead` tasks have started."""

    crew: Crew
    place: Place
    lead: int = 1
    head: int = 0  # the first tasks, which ran while nearly all were still queued, are also accounted for alone
    begun: Sample | None = field(default=None, init=False)
    headed: Sample | None = field(default=None, init=False)

    def notice(self, started: int) -> None:
        if self.begun is None and started >= self.lead:
            self.begun = self._sample(started)
        elif self.headed is None and self.head and started >= self.head:
            self.headed = self._sample(started)

    def begin(self) -> None:
        self.begun = self._sample(0)

    def end(self, count: int) -> Figures:
        figures = self._cost(self._sample(count))
        return figures | ({"head_cpu_us": self._cost(self.headed)["cpu_us"]} if self.headed else {})

    def _sample(self, started: int) -> Sample:
        return started, self.crew.cpu_s(), process.cpu_s(self.place.server_pid)

    def _cost(self, now: Sample) -> Figures:
        assert self.begun is not None, "ended before it began"
        tasks = now[0] - self.begun[0]
        worker, server = (1e6 * (now[i] - self.begun[i]) / tasks for i in (1, 2))
        return {"cpu_us": worker + server, "worker_cpu_us": worker, "server_cpu_us": server}


def latency(stage: Stage, contestant: Contestant) -> Figures:
    """From just before the submit call to the handler's first line, on a worker that is otherwise idle."""
    count = stage.scale.samples
    with stage.place(contestant) as place, stage.crew(contestant, place, 1, capacity=count) as crew:
        stage.agent(contestant, "warm", place.url, count=WARM_UP)
        crew.await_started(WARM_UP)
        time.sleep(1)
        stage.agent(contestant, "pace", place.url, count=count, rate=stage.scale.rate)
        crew.await_started(WARM_UP + 1 + count)
        hits = crew.hits()
    _require_exact(hits.fault(range(count)))
    return recorder.quantiles(hits.latencies_s())


def idle(stage: Stage, contestant: Contestant) -> Figures:
    """The cost of a worker that has worked and is now idle."""
    scale = stage.scale
    with stage.place(contestant) as place, stage.crew(contestant, place, 1, capacity=WARM_UP) as crew:
        stage.agent(contestant, "warm", place.url, count=WARM_UP)
        crew.await_started(WARM_UP)
        time.sleep(scale.settle_s)
        before = (crew.cpu_s(), process.cpu_s(place.server_pid), stage.transactions(place))
        time.sleep(scale.window_s)
        after = (crew.cpu_s(), process.cpu_s(place.server_pid), stage.transactions(place))
        memory = crew.pss_mb()
    worker, server, queries = ((b - a) / scale.window_s for a, b in zip(before, after, strict=True))
    figures = {"pss_mb": memory, "worker_cpu_percent": 100 * worker, "server_cpu_percent": 100 * server}
    return figures | ({"queries_per_s": queries} if place.query is not None else {})


def few_queued(stage: Stage, contestant: Contestant) -> Figures:
    lead = _lead(stage)
    return _drain(stage, contestant, workers=1, tasks=stage.scale.few + lead, lead=lead)


def many_queued(stage: Stage, contestant: Contestant) -> Figures:
    return _drain(stage, contestant, workers=1, tasks=stage.scale.many, lead=_lead(stage), head=stage.scale.many // 10)


def _lead(stage: Stage) -> int:
    """Tasks that a new worker runs before its costs are counted. The first ones cost more; counting them would make few
    tasks look expensive."""
    return stage.scale.few // 2


def many_snapshot(stage: Stage, contestant: Contestant) -> Figures:
    """The same while another session holds a snapshot, so that vacuum cannot remove dead rows."""
    count = stage.scale.many
    with stage.place(contestant) as place:
        stage.agent(contestant, "fill", place.url, count=count)
        place.flush()
        with closing(Query(place.url)) as other:
            other.execute("begin isolation level repeatable read")
            other.count("select count(*) from pg_class")
            with stage.crew(contestant, place, 1, capacity=count) as crew:
                return _watch(contestant, place, crew, count, lead=_lead(stage))


def many_finished(stage: Stage, contestant: Contestant) -> Figures:
    """`few_queued` in a store with many finished tasks, which is filled once for all repetitions."""
    lead = _lead(stage)
    count = stage.scale.few + lead
    with stage.kept_place(contestant) as place:
        already = place.count(contestant.subject.done_sql) or 0
        if already < stage.scale.finished:
            stage.agent(contestant, "fill_finished", place.url, count=stage.scale.finished - already)
            already = stage.scale.finished
        stage.agent(contestant, "fill", place.url, count=count)
        place.flush()
        with stage.crew(contestant, place, 1, capacity=count) as crew:
            return _watch(contestant, place, crew, count, already=already, lead=lead)


def hand_off(stage: Stage, contestant: Contestant) -> Figures:
    """Start latency with client, engine and worker in one process."""
    with stage.place(contestant) as place:
        return stage.agent(contestant, "hand_off", place.url, count=stage.scale.samples, rate=stage.scale.rate)


def heartbeats(stage: Stage, contestant: Contestant) -> Figures:
    """Heartbeats that take effect, one server process, beside a plain echo of the same size."""
    with stage.place(contestant) as place:
        return stage.child(
            contestant.python, "bench.heartbeats", "rate", place.url,
            tasks=int(5000 * stage.scale.share), seconds=stage.scale.seconds, database_pid=place.server_pid,
        )  # fmt: skip


def leases(stage: Stage, contestant: Contestant) -> Figures:
    """Claim and complete over the lease contract, one server process, with client certificates and without."""
    with stage.place(contestant) as place:
        return stage.child(
            contestant.python, "bench.leases", "rate", place.url,
            tasks=int(20_000 * stage.scale.share), database_pid=place.server_pid,
        )  # fmt: skip


_IMPORT = "import time; t = time.perf_counter(); {}; t = time.perf_counter() - t; import sys; print(t, *sys.modules)"
_SERVER_SIDE = {"asyncpg", "uvloop", "rich", "cyclopts", "windlass.engine", "windlass.store", "windlass.cli"}


def importing(stage: Stage, contestant: Contestant) -> Figures:
    """The import time of a worker beside that of any asyncio program."""
    times: dict[str, list[float]] = {"from windlass import Worker": [], "import asyncio, ssl": []}
    modules: set[str] = set()
    environment = {name: value for name, value in stage.environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(stage.folder / "compiled")
    for _ in range(16):
        for statement, found in times.items():
            command = [sys.executable, "-c", _IMPORT.format(statement)]
            words = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True, cwd=stage.code
            ).stdout.split()
            found.append(float(words[0]))
            modules |= set(words[1:])
    # The first round compiles the modules, which an installed package has compiled already.
    ours, base = (1e3 * statistics.median(found[1:]) for found in times.values())
    return {"import_ms": ours, "base_ms": base, "server_modules": len(modules & _SERVER_SIDE)}


def stdio(stage: Stage, contestant: Contestant) -> Figures:
    """Client and worker of the stdio contract, without a store."""
    # With PYTHONUNBUFFERED the reference loses answers and hangs.
    environment = {name: value for name, value in stage.environment().items() if name != "PYTHONUNBUFFERED"}
    command = [str(contestant.python), "-m", "bench.stdio", contestant.name, str(stage.scale.share)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=stage.code, timeout=300
    )
    if done.returncode:
        raise Failed(done.stderr.strip()[-400:])
    figures: Figures = json.loads(done.stdout)
    return figures


KINDS: dict[str, Callable[[Stage, Contestant], Figures]] = {measure.__name__: measure for measure in (
    submit_one, submit_crowd, submit_batch, drain_1, drain_2, drain_pooled, drain_remote, flow_1, latency, hand_off,
    idle, idle_polls, idle_sessions, few_queued, many_queued, many_snapshot, many_finished, heartbeats, leases,
    importing, stdio, export_mods, routed_chain, routed_wide, many_partitions, sink_batches, plan_jobs, commit_files,
)}  # fmt: skip


def limit(stage: Stage, name: str) -> Figures:
    """A raw limit, in the size of the measurement that it is compared with."""
    scale = stage.scale
    options: dict[str, dict[str, float]] = {
        "insert_one": {"seconds": scale.seconds},
        "insert_unnest": {"count": scale.batched},
        "claim_complete": {"count": int(100_000 * scale.share)},
        "notify_chain": {"count": scale.samples, "rate": scale.rate},
    }
    return stage.limit(name, **options[name])
