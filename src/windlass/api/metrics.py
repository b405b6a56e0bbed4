"""The counters and gauges of an engine in the format of Prometheus.

Metric families are made for each scrape; no Prometheus object is touched while tasks run. Labels are names that
operators and programs chose (queue, kind), never ids or namespaces, so that there are few series.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from windlass.api.framework.application import Application
from windlass.api.framework.problem import PROBLEMS
from windlass.api.framework.request import Request
from windlass.api.framework.route import Route
from windlass.datasets.freshness import DataGaugeReader, DataGauges
from windlass.datasets.lake import Lake
from windlass.datasets.pressure import PressureGauges, Pressures
from windlass.datasets.router import Router
from windlass.datasets.sink_metrics import SinkLag, SinkRows
from windlass.engine.engine import Engine
from windlass.engine.read.metrics import BUCKETS_S, Histogram, Snapshot, Tally
from windlass.net.asgi import Response

log = logging.getLogger("windlass.http")

CONTENT_TYPE = CONTENT_TYPE_LATEST


async def metrics_text(engine: Engine) -> bytes:
    """The answer to GET /metrics. Without a tally it has only gauges."""
    families = [*gauges(await engine.parts.gauges.read()), *dataset_gauges(await engine.service(Pressures).read())]
    families += data_gauges(await engine.service(DataGaugeReader).read())
    families.append(sink_gauge(await engine.service(SinkLag).read()))
    if engine.tally is not None:
        families += [*counters(engine.tally), *dataset_counters(engine.service(Router), engine.service(Lake))]
        families.append(sink_counter(engine.service(SinkRows)))
    return generate_latest(_Families(families))


def tally_app(tally: Tally, sink: SinkRows | None = None) -> Application:
    """Serves only the counters of one engine, for workers and sinks, of which there are many on one database."""

    async def scrape(_request: Request[None, None]) -> Response:
        more = () if sink is None else (sink_counter(sink),)
        return Response(generate_latest(_Families([*counters(tally), *more])), media=CONTENT_TYPE)

    return Application([Route("GET", "/metrics", scrape, "metrics", "")], tally, PROBLEMS, log=log)


def gauges(snapshot: Snapshot) -> Iterable[Metric]:
    depth = GaugeMetricFamily("windlass_queue_depth", "Tasks that have not ended.", labels=["queue", "state"])
    age = GaugeMetricFamily(
        "windlass_queue_oldest_age_seconds", "For how long the first in line has been due.", labels=["queue"]
    )
    workers = GaugeMetricFamily("windlass_workers", "Workers by state.", labels=["state"])
    for gauge in snapshot.queues:
        depth.add_metric([gauge.queue, gauge.state], gauge.depth)
        if gauge.state == "queued":
            age.add_metric([gauge.queue], gauge.oldest_s)
    for state, count in snapshot.workers.items():
        workers.add_metric([state], count)
    lag = GaugeMetricFamily("windlass_scheduler_lag_seconds", "For how long the first schedule has been due.")
    lag.add_metric([], snapshot.schedule_lag_s)
    dead = GaugeMetricFamily("windlass_dead_letters", "Messages to workers that were given up.", labels=["queue"])
    for queue, count in snapshot.dead_letters.items():
        dead.add_metric([queue], count)
    return depth, age, workers, lag, dead


def counters(tally: Tally) -> Iterable[Metric]:
    ended = CounterMetricFamily("windlass_tasks", "Tasks that ended.", labels=["queue", "kind", "outcome"])
    for series, count in tally.ended.copy().items():
        ended.add_metric(series, count)
    expired = CounterMetricFamily(
        "windlass_leases_expired", "Attempts lost because their lease ran out.", labels=["queue"]
    )
    for queue, count in tally.leases_expired.copy().items():
        expired.add_metric([queue], count)
    late = CounterMetricFamily("windlass_late_results", "Reports of superseded attempts, refused.")
    late.add_metric([], tally.late_results)
    skew = CounterMetricFamily("windlass_worker_clock_skew", "Reports of workers whose clock is off by over 5 minutes.")
    skew.add_metric([], tally.clock_skews)
    duration = HistogramMetricFamily(
        "windlass_task_duration_seconds", "The last attempt, from its claim to the end.", labels=["queue", "kind"]
    )
    for names, histogram in tally.durations.copy().items():
        duration.add_metric(names, _buckets(histogram), histogram.sum_s)
    latency = HistogramMetricFamily(
        "windlass_task_start_latency_seconds", "From when a task was due to its claim.", labels=["queue"]
    )
    for queue, histogram in tally.latencies.copy().items():
        latency.add_metric([queue], _buckets(histogram), histogram.sum_s)
    fires = CounterMetricFamily("windlass_schedule_fires", "Fires of schedules.", labels=["outcome"])
    for outcome, count in tally.fires.copy().items():
        fires.add_metric([outcome], count)
    lateness = HistogramMetricFamily("windlass_schedule_lateness_seconds", "From when a fire was due to its task.")
    lateness.add_metric([], _buckets(tally.lateness), tally.lateness.sum_s)
    return ended, duration, latency, expired, late, skew, fires, lateness


def dataset_gauges(found: PressureGauges) -> Iterable[Metric]:
    held = GaugeMetricFamily(
        "windlass_dataset_held", "Jobs that get no tasks because too many wait: 1.", labels=["dag", "job"]
    )
    owed = GaugeMetricFamily(
        "windlass_dataset_owed", "Partitions and updates that jobs have no task for yet.", labels=["dag", "job"]
    )
    for label, is_held in found.held.items():
        held.add_metric(label, int(is_held))
    for label, count in found.owed.items():
        owed.add_metric(label, count)
    return held, owed


def data_gauges(found: DataGauges) -> Iterable[Metric]:
    age = GaugeMetricFamily(
        "windlass_dataset_freshness_seconds", "Time since the newest event of a dataset.", labels=["dataset"]
    )
    for name, seconds in found.freshness_s.items():
        age.add_metric([name], seconds)
    staging = GaugeMetricFamily(
        "windlass_dataset_staging_bytes", "Data in the lake that is not committed, at the last look."
    )
    if found.staging_bytes is not None:
        staging.add_metric([], found.staging_bytes)
    return age, staging


def dataset_counters(router: Router, lake: Lake) -> Iterable[Metric]:
    events = CounterMetricFamily("windlass_dataset_events", "Events by what became of them.", labels=["routing"])
    for routing, count in router.routed.copy().items():
        events.add_metric([routing], count)
    tasks = CounterMetricFamily("windlass_dataset_routed_tasks", "Tasks of jobs that were made for new data.")
    tasks.add_metric([], router.tasks_made)
    commits = HistogramMetricFamily(
        "windlass_dataset_commit_seconds", "Completions with files in the lake, from the request to the commit."
    )
    commits.add_metric([], _buckets(lake.commits), lake.commits.sum_s)
    return events, tasks, commits


def sink_gauge(lag_s: float) -> Metric:
    lag = GaugeMetricFamily("windlass_dataset_sink_lag_seconds", "For how long the oldest batch has waited for a sink.")
    lag.add_metric([], lag_s)
    return lag


def sink_counter(sink: SinkRows) -> Metric:
    rows = CounterMetricFamily(
        "windlass_dataset_sink_rows", "Rows of buffered datasets by what became of them.", labels=["dataset", "outcome"]
    )
    for labels, count in sink.rows.copy().items():
        rows.add_metric(labels, count)
    return rows


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts, as Prometheus wants them: each bucket includes the smaller ones."""
    bounds = [*(f"{bound:g}" for bound in BUCKETS_S), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(histogram.counts), strict=True)]


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
