"""Plans: with generic plans and statistics from when the table was empty, no query walks the whole table of tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from windlass.serve import load_servers
from windlass.store.queries import QUERIES

pytestmark = pytest.mark.slow

load_servers()  # the rooms of contracts register their queries too

TASKS = 20_000

# For these a walk through all tasks is what was asked for, or the price was accepted.
WALKS = {
    "count_tasks": "counts every task that is kept",
}

FILL = """
insert into windlass.task (id, namespace, queue, kind, state, available_at, priority, concurrency_key, created_at,
                           lease_id, finished_at, timer_at, run_id, payload)
select windlass.new_id(), 'default', 'queue ' || n % 3, 'kind ' || n % 5, s.state, windlass.now(), n % 3,
       'key ' || n % 7, windlass.now(), case s.state when 'running' then md5((n % 50)::text)::uuid end,
       case s.state when 'succeeded' then windlass.now() end,
       case when n % 100 = 0 then windlass.now() + n * interval '1 second' end,
       case when n % 10 = 0 then md5((n % 200)::text)::uuid end, 'null'
  from generate_series(1, $1) as n,
       lateral (select case n % 10 when 0 then 'running' when 1 then 'queued' else 'succeeded' end) as s(state)
"""


@pytest.fixture
async def filled(other_connection: asyncpg.Connection) -> asyncpg.Connection:
    """A database whose statistics were taken when it was empty."""
    await other_connection.execute("alter table windlass.task set (autovacuum_enabled = false)")
    await other_connection.execute("analyze windlass.task")
    await other_connection.execute("set plan_cache_mode = force_generic_plan")
    await other_connection.execute(FILL.replace("$1", str(TASKS)))
    return other_connection


async def plan_of(connection: asyncpg.Connection, name: str) -> dict[str, Any]:
    """The generic plan of a named query."""
    await connection.execute(f"prepare {name} as {QUERIES[name]}")
    count = max((int(number) for number in re.findall(r"\$(\d+)", QUERIES[name])), default=0)
    arguments = f"({', '.join(['null'] * count)})" if count else ""
    [[text]] = await connection.fetch(f"explain (format json) execute {name} {arguments}")
    return dict(json.loads(text)[0]["Plan"])


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def scans(plan: dict[str, Any]) -> set[tuple[str, str | None]]:
    """How the table of tasks is read: kinds of scan, and by which index."""
    found: set[tuple[str, str | None]] = set()
    for node in nodes(plan):
        if (
            node.get("Relation Name") == "task"
            and "Scan" in node["Node Type"]
            and node["Node Type"] != "Bitmap Heap Scan"
        ):
            found.add((node["Node Type"], node.get("Index Name")))
        if node["Node Type"] == "Bitmap Index Scan" and str(node.get("Index Name")).startswith("task_"):
            found.add((node["Node Type"], node["Index Name"]))
    return found


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("load_tasks", "task_pkey"),
        ("lock_tasks", "task_pkey"),
        ("start_tasks", "task_pkey"),
        ("complete_tasks", "task_pkey"),
        ("update_tasks", "task_pkey"),
        ("existing_tasks", "task_pkey"),
        ("same_tasks", "task_pkey"),
        ("claimed_tasks", "task_pkey"),
        ("attempt_statuses", "task_pkey"),
        ("mark_upstream", "task_pkey"),
        ("claim_at_once", "task_pkey"),
        ("finish_at_once", "task_pkey"),
        ("extend_held_leases", "task_pkey"),
        ("load_claimable", "task_pkey"),
        ("load_live_leases", "task_pkey"),
        ("claim_tasks", "task_ready"),
        ("open_claim", "task_ready"),
        ("next_due", "task_ready"),
        ("queue_running", "task_running"),
        ("lease_tasks", "task_running"),
        ("due_timers", "task_timer"),
        ("due_work", "task_timer"),
        ("cancelling_tasks", "task_cancelling"),
        ("has_pending_cancel", "task_cancelling"),
        ("run_task_ids", "task_run"),
    ],
)
async def test_a_hot_query_is_driven_by_its_index(filled: asyncpg.Connection, query: str, index: str) -> None:
    used = scans(await plan_of(filled, query))
    assert {name for _, name in used} == {index}, used


async def test_a_claim_at_once_reads_its_lane_and_then_writes_by_id(filled: asyncpg.Connection) -> None:
    plan = await plan_of(filled, "start_due")
    assert {name for _, name in scans(plan)} == {"task_ready", "task_pkey"}
    assert not any(node["Node Type"] == "Sort" for node in nodes(plan))


async def test_a_completion_at_once_goes_by_ids_alone(filled: asyncpg.Connection) -> None:
    assert {name for _, name in scans(await plan_of(filled, "complete_at_once"))} == {"task_pkey"}


@pytest.mark.parametrize("statistics", ["stale", "fresh"])
async def test_no_query_walks_the_whole_table_of_tasks(filled: asyncpg.Connection, statistics: str) -> None:
    if statistics == "fresh":
        await filled.execute("analyze windlass.task")
    reading = [name for name, text in QUERIES.items() if "windlass.task" in text and name not in WALKS]
    walking = [name for name in reading if any(index is None for _, index in scans(await plan_of(filled, name)))]
    assert walking == [], "see WALKS above if that is meant"


async def test_a_claim_reads_its_lane_in_order_and_sorts_nothing(filled: asyncpg.Connection) -> None:
    plan = await plan_of(filled, "claim_tasks")
    assert not any(node["Node Type"] == "Sort" for node in nodes(plan))
    [scan] = [node for node in nodes(plan) if node.get("Index Name") == "task_ready"]
    for bound in ("namespace", "queue", "priority", "concurrency_key", "available_at >= ", "available_at <= "):
        assert bound in scan["Index Cond"], bound


async def test_retention_reads_old_tasks_by_their_age_and_deletes_them_by_id(filled: asyncpg.Connection) -> None:
    plan = await plan_of(filled, "delete_finished")
    assert {name for _, name in scans(plan)} == {"task_created", "task_pkey"}
    bounds = [node["Index Cond"] for node in nodes(plan) if node.get("Index Name") == "task_created"]
    assert any("created_at < " in bound and "ROW(" in bound for bound in bounds), bounds


@pytest.mark.parametrize(
    ("query", "index", "bound"),
    [
        ("list_tasks", "task_created", "created_at"),
        ("list_schedule_tasks", "task_schedule", "created_at"),
        ("run_task_ids", "task_run", "created_at"),
        ("list_runs", "run_list", "created_at"),
        ("list_schedules", "schedule_list", "created_at"),
        ("list_workers", "worker_list", "created_at"),
        ("list_dead_messages", "dead_message_newest", "dead_at"),
    ],
)
async def test_a_page_is_read_in_order_from_where_it_begins(
    filled: asyncpg.Connection, query: str, index: str, bound: str
) -> None:
    """Nothing is sorted, and nothing before the page is read."""
    await filled.execute("set enable_seqscan = off; set enable_bitmapscan = off")  # as if the small tables were large
    plan = await plan_of(filled, query)
    assert not any("Sort" in node["Node Type"] for node in nodes(plan))
    [scan] = [node for node in nodes(plan) if node.get("Index Name") == index]
    assert re.search(rf"ROW\((\w+\.)?{bound}, (\w+\.)?id\)", scan["Index Cond"]), scan["Index Cond"]


async def test_the_clock_bounds_the_scan_for_timers(filled: asyncpg.Connection) -> None:
    """A VOLATILE clock would be a filter on every row."""
    [scan] = [node for node in nodes(await plan_of(filled, "due_timers")) if node.get("Index Name") == "task_timer"]
    assert "statement_timestamp()" in scan["Index Cond"]
