"""`windlass demo`: shows that no task is lost when a worker is killed.

Starts its own PostgreSQL, an engine and three worker processes, submits a run of several hundred tasks, kills a worker
that runs some of them, and checks that every task ended and took effect once. Takes about 15 seconds. Exit code 0 if
all checks pass, 1 if not. Leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from windlass import Engine, Policy, State, Submission, Worker, open_engine
from windlass.cli.database import open_url
from windlass.cli.options import Json
from windlass.cli.output import Exit, print_json
from windlass.settings import Settings

ORDERS = 600
WORKERS = 3
CONCURRENCY = 8
LEASE_TTL_S = 2.0
DEADLINE_S = 60.0
RETRY_SOON = Policy(retry_delay_s=0.3)

SCHEMA = """
create schema demo;
-- One row per execution of a handler. An order can have several, because a worker can die half-way.
create table demo.execution (order_no integer, worker text);
-- The effect of a handler. The primary key makes it happen once, however often the handler runs.
create table demo.receipt (order_no integer primary key, cents integer, worker text);
-- An independent check of the engine: one row per accepted result.
create table demo.accepted (task_id uuid);
create function demo.note() returns trigger language plpgsql as
$$ begin insert into demo.accepted values (new.id); return null; end $$;
create trigger note after update of result on windlass.task for each row
    when (new.result is not null) execute function demo.note();
"""


def price(order_no: int) -> int:
    return 100 + order_no * 7 % 900


# ----------------------------------------------------------------------------------------------- a worker process


async def work(name: str) -> None:
    """Runs until standard input ends, which also happens when the demo itself is killed."""
    async with (
        open_engine(os.environ["DATABASE_URL"]) as engine,
        asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=4) as pool,
    ):

        async def charge(payload: dict[str, int]) -> int:
            order_no = payload["order"]
            await pool.execute("insert into demo.execution values ($1, $2)", order_no, name)
            tries = await pool.fetchval("select count(*) from demo.execution where order_no = $1", order_no)
            if order_no % 10 == 3 and tries == 1:
                raise RuntimeError("the card reader is busy")  # one order in ten fails at first; the engine retries it
            await asyncio.sleep(random.uniform(0.1, 0.4))  # noqa: S311
            await pool.execute(
                "insert into demo.receipt values ($1, $2, $3) on conflict do nothing", order_no, price(order_no), name
            )
            return price(order_no)

        async def total(_: None) -> int:
            return int(await pool.fetchval("select sum(cents) from demo.receipt"))

        worker = Worker(
            engine, {"charge": charge, "total": total}, name=name, concurrency=CONCURRENCY, lease_ttl_s=LEASE_TTL_S
        )
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
        worker.stop()
        await running


@contextlib.contextmanager
def worker_processes(url: str, log: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Starts the workers in their own sessions, so that Ctrl-C reaches only the demo, which then stops them. They log
    to a file, to keep the screen clear."""
    processes = {}
    try:
        with log.open("ab") as logged:
            for name in (f"worker-{number}" for number in range(1, WORKERS + 1)):
                processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "windlass.cli.demo", name],
                    env={**os.environ, "DATABASE_URL": url},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=logged,
                    start_new_session=True,
                )
        yield processes
    finally:
        for process in processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


# ----------------------------------------------------------------------------------------------- the demo


class CheckFailed(Exception):
    """A check of the demo failed."""


class Story:
    """What a demo prints. `began` is when it began, by the monotonic clock."""

    def __init__(self, console: Console, began: float, deadline_s: float = DEADLINE_S) -> None:
        self.console, self.began, self._deadline_s = console, began, deadline_s

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {text}", highlight=False)

    async def wait_for(self, what: str, reached: Callable[[], Awaitable[object]]) -> None:
        while not await reached():
            if time.monotonic() - self.began > self._deadline_s:
                raise CheckFailed(f"{what}: not within {self._deadline_s:.0f} s")
            await asyncio.sleep(0.1)

    def show_checks(self, checks: Sequence[tuple[str, int, int]]) -> list[str]:
        """Prints what was found beside what must be. Returns the checks that failed."""
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        rows.add_column(justify="right")
        for what, found, wanted in checks:
            verdict = "[green]ok[/green]" if found == wanted else f"[red]NO[/red], {wanted:,}"
            rows.add_row(f"  {verdict}", f"{found:,}", what)
        self.console.print(rows)
        return [what for what, found, wanted in checks if found != wanted]


class Demo(Story):
    """Submits the tasks, kills a worker and checks the outcome."""

    def __init__(self, console: Console, engine: Engine, database: asyncpg.Connection, began: float) -> None:
        super().__init__(console, began)
        self.engine, self.database = engine, database
        self.run_id, self.total_id = uuid4(), uuid4()

    async def submit(self) -> None:
        """Submits all orders and one task that waits for all of them, in one transaction."""
        orders = [
            Submission(
                kind="charge",
                payload=msgspec.json.encode({"order": number}),
                id=uuid4(),
                run_id=self.run_id,
                policy=RETRY_SOON,
            )
            for number in range(ORDERS)
        ]
        after = tuple(order.id for order in orders if order.id is not None)
        total = Submission(kind="total", id=self.total_id, run_id=self.run_id, after=after, policy=RETRY_SOON)
        await self.engine.submit_many([*orders, total])
        self.say(f"Submitted a run: {ORDERS} tasks [cyan]charge[/cyan], and one [cyan]total[/cyan] that waits for all.")

    async def succeeded(self) -> int:
        return (await self.engine.tasks.run_totals(self.run_id)).get(State.SUCCEEDED, 0)

    async def kill_one(self, processes: dict[str, subprocess.Popen[bytes]]) -> tuple[str, list[UUID]]:
        """Kills a worker that has running tasks. Returns its name and the tasks."""
        for name, process in processes.items():
            process.kill()
            process.wait()
            held = await self.database.fetch(
                "select id from windlass.task where state = 'running' and worker = $1", name
            )
            self.say(f"[red]kill -9[/red] {name} (pid {process.pid}): it was running [bold]{len(held)}[/bold] tasks.")
            if held:
                return name, [row["id"] for row in held]
        raise CheckFailed("no worker had running tasks when it was killed")

    async def wait_for_recovery(self, victim: str, held: list[UUID]) -> None:
        """Waits until the lease of the killed worker has expired and its tasks are queued again."""
        query = "select count(*) = 0 from windlass.task where id = any($1) and state = 'running' and worker = $2"
        await self.wait_for(
            "the tasks of the killed worker are queued again", lambda: self.database.fetchval(query, held, victim)
        )
        self.say(f"The lease of {victim} expired ({LEASE_TTL_S:g} s): its {len(held)} tasks are queued again.")

    async def check(self, victim: str, held: list[UUID]) -> None:
        fetch = self.database.fetchval
        expected = sum(map(price, range(ORDERS)))
        others = await fetch(
            "select count(*) from windlass.task where id = any($1) and state = 'succeeded' and worker <> $2",
            held, victim,
        )  # fmt: skip
        executions = await fetch("select count(*) from demo.execution")
        retried = await fetch("select count(*) from windlass.task where run_id = $1 and failures > 0", self.run_id)
        total = (await self.engine.tasks.get(self.total_id)).task.result
        checks = [
            ("tasks ended with success", await self.succeeded(), ORDERS + 1),
            (f"tasks of {victim} finished by others", others, len(held)),
            ("results were accepted", await fetch("select count(*) from demo.accepted"), ORDERS + 1),
            ("orders have a receipt", await fetch("select count(*) from demo.receipt"), ORDERS),
            ("cents are on the receipts", await fetch("select sum(cents) from demo.receipt"), expected),
            ("cents is what the last task computed", int(total or b"0"), expected),
            ("tasks are still running", await fetch("select count(*) from windlass.task where state = 'running'"), 0),
        ]
        self.console.print("[bold]Did everything happen once?[/bold]", highlight=False)
        broken = self.show_checks(checks)
        self.console.print(
            f"Handlers started {executions:,} times for {ORDERS} orders: {retried} failed once and were retried,\n"
            f"and other workers redid what {victim} left unfinished.",
            highlight=False,
        )
        if broken:
            raise CheckFailed("failed checks: " + "; ".join(broken))

    async def show_timeline(self, held: list[UUID]) -> None:
        """Prints the history of a recovered task, preferably one that never failed."""
        query = "select id from windlass.task where id = any($1) order by failures, id limit 1"
        task_id = await self.database.fetchval(query, held)
        self.console.print(f"[bold]One of them[/bold], {task_id}:", highlight=False)
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        timeline = await self.engine.tasks.timeline(task_id)
        for line in timeline:
            seconds = (line.at - timeline[0].at).total_seconds()
            detail = (line.detail or {}).get("reason")
            what = f"{line.what} ({detail})" if detail else line.what
            attempt = f"attempt {line.attempt}" if line.attempt else ""
            rows.add_row(f"  {seconds:.1f} s", attempt, what, line.worker or "")
        self.console.print(rows, highlight=False)


@contextlib.contextmanager
def progress_of(demo: Demo) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal; elsewhere a line for every fifth of the tasks."""
    if demo.console.is_terminal:
        columns = (TextColumn("         tasks"), BarColumn(40), MofNCompleteColumn())
        with Progress(*columns, console=demo.console, transient=True) as progress:
            bar = progress.add_task("tasks", total=ORDERS + 1)
            yield lambda ended: progress.update(bar, completed=ended)
        return
    fifths = 0

    def print_progress(ended: int) -> None:
        nonlocal fifths
        if ended * 5 // (ORDERS + 1) > fifths:
            fifths = ended * 5 // (ORDERS + 1)
            demo.say(f"{ended} of {ORDERS + 1} tasks have ended.")

    yield print_progress


async def run(console: Console, folder: Path, log: Path) -> None:
    """Runs the demo on a database of its own, whatever the settings say."""
    console.print("[bold]Windlass[/bold]: kill a worker, lose nothing.", highlight=False)
    began = time.monotonic()
    async with open_url(Settings(data_dir=folder)) as url, open_engine(url) as engine:
        database = await asyncpg.connect(url)
        await database.execute(SCHEMA)
        demo = Demo(console, engine, database, began)
        demo.say("PostgreSQL and an engine are running.")
        with worker_processes(url, log) as processes:
            for process in processes.values():
                assert process.stdout is not None
                if await asyncio.to_thread(process.stdout.readline) != b"ready\n":
                    raise CheckFailed("a worker did not start")
            demo.say(f"{WORKERS} worker processes are running, each with {CONCURRENCY} slots.")
            await demo.submit()
            await kill_and_check(demo, processes)
        await database.close()
    console.print(f"[green]Everything finished once.[/green] {time.monotonic() - began:.0f} s.", highlight=False)


async def kill_and_check(demo: Demo, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    async def have_ended(count: int) -> bool:
        show(ended := await demo.succeeded())
        return ended >= count

    with progress_of(demo) as show:
        await demo.wait_for("the first tasks end", lambda: have_ended(ORDERS * 2 // 5))
        victim, held = await demo.kill_one(processes)
        recovery = asyncio.create_task(demo.wait_for_recovery(victim, held))
        await demo.wait_for("every task ends", lambda: have_ended(ORDERS + 1))
        await recovery
    demo.say(f"All {ORDERS + 1} tasks have ended.")
    await demo.check(victim, held)
    await demo.show_timeline(held)


def demo(*, datasets: bool = False, json: Json = False) -> int:
    """Submit tasks, kill a worker while it runs some, and show that every task finished once. Takes about 15 seconds
    and leaves nothing behind.

    Parameters
    ----------
    datasets
        Deploy a DAG instead, kill a worker and a sink, and count rows, partitions and events. Takes about 30 seconds.
    json
        Print only `{"ok": true}`, or the failed checks.
    """
    if not datasets:
        return play(run, json)
    from windlass.cli.demo_datasets import run as run_datasets

    return play(run_datasets, json)


Run = Callable[[Console, Path, Path], Coroutine[None, None, None]]


def play(run: Run, as_json: bool) -> int:
    """Runs a demo in a folder of its own, with a file for its log. Returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    console = Console(quiet=as_json)
    report: dict[str, object] = {"ok": True}
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-demo-") as name:
            folder = Path(name)
            folder.chmod(0o711)  # started as root, PostgreSQL runs as another user, which must enter the folder
            log = folder / "log.txt"
            log.touch()
            logging.basicConfig(filename=log)
            try:
                asyncio.run(run(console, folder / "data", log))
            except CheckFailed as error:
                report = {"ok": False, "broken": str(error)}
                console.print(f"[red]The demo failed:[/red] {error}", highlight=False)
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
                console.print("\n".join(["Last log lines:", *lines]), markup=False, highlight=False)
    except KeyboardInterrupt:
        console.print("Interrupted. Everything was stopped and removed.")
        return Exit.INTERRUPTED
    if as_json:
        print_json(report)
    return Exit.OK if report["ok"] else Exit.FAILED


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
