"""The rows of the performance table, in the order in which they are measured.

A row is a list of checks. Each compares one figure of ours with that of the best peer, with a raw limit, with another
figure of ours, or with a number.
"""

from __future__ import annotations

from dataclasses import dataclass

Figure = tuple[str, str]  # the measurement and the metric in it


@dataclass(frozen=True, slots=True)
class Check:
    """`ours` against the best peer's same figure (`peer`), a `limit`, another figure of `ourselves`, or a number."""

    text: str
    ours: Figure
    peer: bool = False
    limit: Figure | None = None
    ourselves: Figure | None = None
    at_least: float | None = None
    at_most: float | None = None

    @property
    def higher_is_better(self) -> bool:
        return self.at_least is not None


@dataclass(frozen=True, slots=True)
class Row:
    id: str
    what: str
    unit: str
    checks: tuple[Check, ...]

    @property
    def target(self) -> str:
        return ", ".join(check.text for check in self.checks)

    def ours(self) -> list[str]:
        """The names of our measurements that it needs."""
        named = [figure[0] for check in self.checks for figure in (check.ours, check.ourselves) if figure]
        return list(dict.fromkeys(named))

    def peers(self) -> list[str]:
        return list(dict.fromkeys(check.ours[0] for check in self.checks if check.peer))

    def limits(self) -> list[str]:
        return list(dict.fromkeys(check.limit[0] for check in self.checks if check.limit))


ROWS = (
    Row("P1", "submit, 64 concurrent single calls", "tasks/s", (
        Check("≥ 8 × the best peer", ("submit_crowd", "rate"), peer=True, at_least=8.0),
    )),
    Row("P2", "submit, one caller, one at a time", "tasks/s", (
        Check("≥ 0.7 × a raw insert", ("submit_one", "rate"), limit=("insert_one", "rate"), at_least=0.7),
    )),
    Row("P3", "submit, batch", "tasks/s", (
        Check("≥ 2 × the best peer", ("submit_batch", "rate"), peer=True, at_least=2.0),
        Check("≥ 0.6 × unnest", ("submit_batch", "rate"), limit=("insert_unnest", "rate"), at_least=0.6),
    )),
    Row("P4", "drain, one worker process", "tasks/s", (
        Check("≥ 2.5 × the best peer", ("drain_1", "rate"), peer=True, at_least=2.5),
        Check("≥ 0.45 × the guarded limit", ("drain_1", "rate"), limit=("claim_complete", "rate"), at_least=0.45),
        Check("the same behind a pooler", ("drain_pooled", "rate"), limit=("claim_complete", "rate"), at_least=0.45),
    )),
    Row("P5", "drain, two worker processes", "tasks/s", (
        Check("≥ 2.5 × the best peer", ("drain_2", "rate"), peer=True, at_least=2.5),
        Check("≥ 1.1 × our P4", ("drain_2", "rate"), ourselves=("drain_1", "rate"), at_least=1.1),
        Check("CPU per task ≤ 1.1 × P4's", ("drain_2", "cpu_us"), ourselves=("drain_1", "cpu_us"), at_most=1.1),
    )),
    Row("P6", "start latency on an idle worker", "ms", (
        Check("p50 ≤ 0.5 × the best peer", ("latency", "p50_ms"), peer=True, at_most=0.5),
        Check("p99 ≤ the best peer's", ("latency", "p99_ms"), peer=True, at_most=1.0),
        Check("handed off in one process p50 < the notify chain", ("hand_off", "p50_ms"),
              limit=("notify_chain", "p50_ms"), at_most=1.0),
    )),
    Row("P7", "three-step workflows, one worker", "flows/s", (
        Check("≥ 10 × the best peer", ("flow_1", "rate"), peer=True, at_least=10.0),
    )),
    Row("P8", "drain, one remote worker", "tasks/s", (
        Check("≥ 0.5 × our P4", ("drain_remote", "rate"), ourselves=("drain_1", "rate"), at_least=0.5),
    )),
    Row("P9", "HTTP heartbeats with their effect, one server process", "heartbeats/s", (
        Check("≥ 0.5 × a bare echo", ("heartbeats", "rate"), ourselves=("heartbeats", "echo_rate"), at_least=0.5),
    )),
    Row("L1", "claim and complete over the lease contract with client certificates, one server process", "tasks/s", (
        Check("≥ 0.8 × without TLS", ("leases", "rate"), ourselves=("leases", "plain_rate"), at_least=0.8),
    )),
    Row("L2", "the same: CPU of server and database per task", "µs", (
        Check("≤ 1.2 × without TLS", ("leases", "cpu_us"), ourselves=("leases", "plain_cpu_us"), at_most=1.2),
    )),
    Row("P10", "idle worker, direct (a part of P10)", "queries/s", (
        Check("< 1 query/s", ("idle", "queries_per_s"), at_most=0.999),
        Check("< 3 % of a core, worker", ("idle", "worker_cpu_percent"), at_most=3.0),
        Check("and server", ("idle", "server_cpu_percent"), at_most=3.0),
    )),
    Row("P10S", "1,000 idle workers on one server, by session stream", "queries/s per 100 workers", (
        Check("< 1 query/s per 100", ("idle_sessions", "queries_per_s_per_100"), at_most=0.999),
        Check("< 3 % of a core", ("idle_sessions", "server_cpu_percent"), at_most=3.0),
        Check("< 100 KB each", ("idle_sessions", "kb_per_worker"), at_most=100.0),
    )),
    Row("P10P", "1,000 idle workers on one server, by registry polls and heartbeats", "queries/s per 100 workers", (
        Check("< 1 query/s per 100", ("idle_polls", "queries_per_s_per_100"), at_most=0.999),
        Check("< 6 % of a core", ("idle_polls", "server_cpu_percent"), at_most=6.0),
        Check("< 100 KB each", ("idle_polls", "kb_per_worker"), at_most=100.0),
    )),
    Row("P11", "growth: CPU per task with many queued, many finished", "µs", (
        Check("many queued ≤ 1.2 × few", ("many_queued", "head_cpu_us"),
              ourselves=("few_queued", "cpu_us"), at_most=1.2),
        Check("many finished ≤ 1.2 × none", ("many_finished", "cpu_us"),
              ourselves=("few_queued", "cpu_us"), at_most=1.2),
    )),
    Row("P12", "drain of many while a snapshot is held open", "tasks/s", (
        Check("≥ 0.8 × without", ("many_snapshot", "rate"), ourselves=("many_queued", "rate"), at_least=0.8),
    )),
    Row("P13", "stdio beside the reference", "round trips/s", (
        Check("≥ 2 × one by one", ("stdio", "rate"), peer=True, at_least=2.0),
        Check("≥ 4 × with 16 in flight", ("stdio", "in_flight_rate"), peer=True, at_least=4.0),
        Check("≥ 50 × in the queue main", ("stdio", "main_rate"), peer=True, at_least=50.0),
        Check("start-up ≤ 0.7 ×", ("stdio", "start_up_ms"), peer=True, at_most=0.7),
        Check("256 MB handed over in ≤ 1 ×", ("stdio", "hand_over_ms"), peer=True, at_most=1.0),
    )),
    Row("P14", "idle worker, memory of all its processes (PSS)", "MB", (
        Check("≤ the smallest peer's", ("idle", "pss_mb"), peer=True, at_most=1.0),
    )),
    Row("P15", "import of windlass for a worker", "ms", (
        Check("≤ 2 × asyncio and ssl", ("importing", "import_ms"), ourselves=("importing", "base_ms"), at_most=2.0),
        Check("nothing of the server", ("importing", "server_modules"), at_most=0.0),
    )),
    Row("P16", "export of 2,000 entities as MODS, 5 MB of text in one of them", "MB", (
        Check("machine < 150 MB", ("export_mods", "machine_mb"), at_most=150.0),
        Check("server grows by < 50 MB", ("export_mods", "server_growth_mb"), at_most=50.0),
    )),
    Row("D1", "chain of two jobs, events routed", "tasks/s", (
        Check("≥ 0.6 × plain tasks", ("routed_chain", "rate"), ourselves=("routed_chain", "plain_rate"), at_least=0.6),
    )),
    Row("D2", "one event to 1,000 jobs", "tasks/s", (
        Check("≥ 0.5 × submit in batches", ("routed_wide", "rate"), ourselves=("routed_wide", "submit_rate"),
              at_least=0.5),
    )),
    Row("D3", "reconcile of ten jobs with many partitions, nothing owed", "s", (
        Check("all jobs behind ≤ 2 s", ("many_partitions", "reconcile_s"), at_most=2.0),
        Check("none behind ≤ 2 × with few partitions", ("many_partitions", "idle_ms"),
              ourselves=("many_partitions", "idle_few_ms"), at_most=2.0),
        Check("a page of partitions ≤ 50 ms", ("many_partitions", "page_ms"), at_most=50.0),
    )),
    Row("D4", "rows of buffered batches, written by one sink", "rows/s", (
        Check("batches of 10,000 ≥ 0.4 × COPY", ("sink_batches", "rate_10000"),
              ourselves=("sink_batches", "copy_rate_10000"), at_least=0.4),
        Check("batches of 1,000 ≥ 0.2 × COPY", ("sink_batches", "rate_1000"),
              ourselves=("sink_batches", "copy_rate_1000"), at_least=0.2),
    )),
    Row("D6", "plan of 500 jobs; cutover and rollback with many partitions", "ms", (
        Check("plan ≤ 1 s", ("plan_jobs", "plan_ms"), at_most=1000.0),
        Check("cutover ≤ 100 ms", ("many_partitions", "cutover_ms"), at_most=100.0),
        Check("rollback ≤ 100 ms", ("many_partitions", "rollback_ms"), at_most=100.0),
    )),
    Row("D7", "commit of 1,000 files in S3", "ms", (
        Check("≤ 1.3 × the HEADs alone", ("commit_files", "commit_ms"), ourselves=("commit_files", "heads_ms"),
              at_most=1.3),
    )),
)  # fmt: skip
