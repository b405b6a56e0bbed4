"""`windlass demo`: the main job from end to end, without a person.

Starts a PostgreSQL of its own, an engine and three worker processes, submits a run of some hundred tasks, kills one of
the workers while it holds tasks, and checks that everything ended and every effect is there once. Ends by itself after
about 15 seconds: exit code 0 if all is as promised, 1 if not. Leaves nothing behind.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from windlass import Engine, Policy, State, Submission, Worker, open_engine
from windlass.app import migrate_database, open_embedded
from windlass.cli.option import Json
from windlass.cli.output import Exit, print_json

ORDERS = 600
WORKERS = 3
CONCURRENCY = 8
LEASE_TTL_S = 2.0
KILL_AT = ORDERS * 2 // 5
DEADLINE_S = 60.0
RETRY_SOON = Policy(retry_delay_s=0.3)

SCHEMA = """
create schema demo;
-- Every time that a handler begins: may happen more than once per order, since a worker can die half-way.
create table demo.execution (order_no integer, worker text);
-- What a handler does: the key makes it happen once, however often the handler runs.
create table demo.receipt (order_no integer primary key, cents integer, worker text);
-- A witness that does not trust the engine: one row for every result that was accepted.
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
    """Runs until its standard input ends, which it also does when the demo itself is killed."""
    async with (
        open_engine(os.environ["DATABASE_URL"]) as engine,
        asyncpg.create_pool(os.environ["DATABASE_URL"], min_size=1, max_size=4) as pool,
    ):

        async def charge(payload: dict[str, int]) -> int:
            order_no = payload["order"]
            await pool.execute("insert into demo.execution values ($1, $2)", order_no, name)
            tries = await pool.fetchval("select count(*) from demo.execution where order_no = $1", order_no)
            if order_no % 10 == 3 and tries == 1:
                raise RuntimeError("the card reader is busy")  # one in ten fails at first; the engine tries again
            await asyncio.sleep(random.uniform(0.1, 0.4))  # noqa: S311
            await pool.execute(
                "insert into demo.receipt values ($1, $2, $3) on conflict do nothing", order_no, price(order_no), name
            )
            return price(order_no)

        async def total(_: None) -> int:
            return int(await pool.fetchval("select sum(cents) from demo.receipt"))

        worker = Worker(
            engine,
            {"charge": charge, "total": total},
            name=name,
            concurrency=CONCURRENCY,
            lease_ttl_s=LEASE_TTL_S,
        )
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
        worker.stop()
        await running


@contextlib.contextmanager
def worker_processes(url: str, log: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Real processes in sessions of their own, so that Ctrl-C reaches only us, and we stop them. What they log would
    run through the screen."""
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


class Promise(Exception):
    """Something is not as promised."""


class Demo:
    def __init__(self, console: Console, engine: Engine, database: asyncpg.Connection) -> None:
        self.console, self.engine, self.database = console, engine, database
        self.began = time.monotonic()
        self.run_id = uuid4()
        self.total_id = uuid4()

    def say(self, text: str) -> None:
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {text}", highlight=False)

    async def submit(self) -> None:
        """One transaction: all orders, and one task that waits for every one of them."""
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

    async def ended(self) -> int:
        return (await self.engine.views.run_totals(self.run_id)).get(State.SUCCEEDED, 0)

    async def kill_one(self, processes: dict[str, subprocess.Popen[bytes]]) -> tuple[str, list[UUID]]:
        """kill -9 for a worker that holds tasks: nobody runs them now, and nobody has said so."""
        for name, process in processes.items():
            process.kill()
            process.wait()
            held = await self.database.fetch(
                "select id from windlass.task where state = 'running' and worker = $1", name
            )
            self.say(f"[red]kill -9[/red] {name} (pid {process.pid}): it held [bold]{len(held)}[/bold] tasks.")
            if held:
                return name, [row["id"] for row in held]
        raise Promise("no worker held a task when it was killed")

    async def until(self, what: str, moment: Callable[[], Awaitable[bool]]) -> None:
        while not await moment():
            if time.monotonic() - self.began > DEADLINE_S:
                raise Promise(f"{what}: not within {DEADLINE_S:.0f} s")
            await asyncio.sleep(0.1)

    async def recovered(self, victim: str, held: list[UUID]) -> None:
        """The lease of the dead worker runs out, and its tasks go back in line."""
        query = "select count(*) from windlass.task where id = any($1) and state = 'running' and worker = $2"

        async def free() -> bool:
            return bool(await self.database.fetchval(query, held, victim) == 0)

        await self.until("the killed worker's tasks are back in line", free)
        self.say(f"The lease of {victim} ran out ({LEASE_TTL_S:g} s): its {len(held)} tasks are back in line.")

    async def watch(self, show: Callable[[int], None]) -> None:
        async def all_ended() -> bool:
            ended = await self.ended()
            show(ended)
            return ended == ORDERS + 1

        await self.until("every task ends", all_ended)

    # ----------------------------------------------------------------------------------------- what was promised

    async def check(self, victim: str, held: list[UUID]) -> None:
        ask = self.database.fetchval
        expected = sum(map(price, range(ORDERS)))
        others = await ask(
            "select count(*) from windlass.task where id = any($1) and state = 'succeeded' and worker <> $2",
            held, victim,
        )  # fmt: skip
        executions = await ask("select count(*) from demo.execution")
        retried = await ask("select count(*) from windlass.task where run_id = $1 and failures > 0", self.run_id)
        total = (await self.engine.views.get(self.total_id)).task.result
        checks = [
            ("tasks ended with success", await self.ended(), ORDERS + 1),
            (f"tasks of {victim} were finished by others", others, len(held)),
            ("results were accepted", await ask("select count(*) from demo.accepted"), ORDERS + 1),
            ("orders have a receipt", await ask("select count(*) from demo.receipt"), ORDERS),
            ("cents are on the receipts", await ask("select sum(cents) from demo.receipt"), expected),
            ("cents is what the last task computed", int(total or b"0"), expected),
            ("tasks are still running", await ask("select count(*) from windlass.task where state = 'running'"), 0),
        ]
        self.console.print("[bold]Was everything done once?[/bold]", highlight=False)
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        rows.add_column(justify="right")
        for what, found, wanted in checks:
            verdict = "[green]ok[/green]" if found == wanted else f"[red]NO[/red], {wanted:,}"
            rows.add_row(f"  {verdict}", f"{found:,}", what)
        self.console.print(rows)
        self.console.print(
            f"Handlers began {executions:,} times for {ORDERS} orders: {retried} failed once and were tried again,"
            f" and what {victim} left half-done was done again by others.",
            highlight=False,
        )
        broken = [what for what, found, wanted in checks if found != wanted]
        if broken:
            raise Promise("not as promised: " + "; ".join(broken))

    async def show_timeline(self, held: list[UUID]) -> None:
        """Of a task to which nothing else has happened, if there is one."""
        query = "select id from windlass.task where id = any($1) order by failures, id limit 1"
        task_id = await self.database.fetchval(query, held)
        self.console.print(f"[bold]One of them[/bold], {task_id}:", highlight=False)
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(justify="right")
        timeline = await self.engine.views.timeline(task_id)
        for line in timeline:
            seconds = (line.at - timeline[0].at).total_seconds()
            detail = (line.detail or {}).get("reason")
            what = f"{line.what} ({detail})" if detail else line.what
            attempt = f"attempt {line.attempt}" if line.attempt else ""
            rows.add_row(f"  {seconds:.1f} s", attempt, what, line.worker or "")
        self.console.print(rows, highlight=False)


@contextlib.contextmanager
def progress_of(demo: Demo) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere a line for every fifth of the way."""
    if demo.console.is_terminal:
        columns = (TextColumn("         tasks"), BarColumn(40), MofNCompleteColumn())
        with Progress(*columns, console=demo.console, transient=True) as progress:
            bar = progress.add_task("tasks", total=ORDERS + 1)
            yield lambda ended: progress.update(bar, completed=ended)
        return
    told = 0

    def tell(ended: int) -> None:
        nonlocal told
        if ended * 5 // (ORDERS + 1) > told:
            told = ended * 5 // (ORDERS + 1)
            demo.say(f"{ended} of {ORDERS + 1} tasks have ended.")

    yield tell


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="windlass-demo-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # root's server runs as somebody else, who has to pass through
        yield folder


@contextlib.asynccontextmanager
async def migrated(folder: Path) -> AsyncIterator[str]:
    """A database of the demo's own, whatever the settings say."""
    async with open_embedded(folder) as url:
        await migrate_database(url)
        yield url


async def run(console: Console, folder: Path, log: Path) -> None:
    console.print("[bold]Windlass[/bold]: kill a worker, lose nothing.", highlight=False)
    began = time.monotonic()
    async with migrated(folder) as url, open_engine(url) as engine:
        database = await asyncpg.connect(url)
        await database.execute(SCHEMA)
        demo = Demo(console, engine, database)
        demo.began = began
        demo.say("PostgreSQL and an engine are running.")
        with worker_processes(url, log) as processes:
            for process in processes.values():
                assert process.stdout is not None
                if await asyncio.to_thread(process.stdout.readline) != b"ready\n":
                    raise Promise("a worker did not start")
            demo.say(f"{WORKERS} worker processes are running, each with {CONCURRENCY} places.")
            await demo.submit()
            await tell_the_story(demo, processes)
        await database.close()
    console.print(f"[green]Everything finished once.[/green] {time.monotonic() - began:.0f} s.", highlight=False)


async def tell_the_story(demo: Demo, processes: dict[str, subprocess.Popen[bytes]]) -> None:
    async def in_the_middle() -> bool:
        show(ended := await demo.ended())
        return ended >= KILL_AT

    with progress_of(demo) as show:
        await demo.until("the first tasks end", in_the_middle)
        victim, held = await demo.kill_one(processes)
        recovery = asyncio.create_task(demo.recovered(victim, held))
        await demo.watch(show)
        await recovery
    demo.say(f"All {ORDERS + 1} tasks have ended.")
    await demo.check(victim, held)
    await demo.show_timeline(held)


def demo(*, json: Json = False) -> int:
    """Submit work, kill a worker in the middle, show that everything finished once: about 15 seconds, then all is gone.

    Parameters
    ----------
    json
        Print nothing but `{"ok": true}` or what is not as promised.
    """
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    shown = Console(quiet=json)
    broken = ""
    try:
        with temporary_folder() as folder:
            log = folder / "log.txt"
            logging.basicConfig(filename=log)
            broken = _run(shown, folder / "data", log)
    except KeyboardInterrupt:
        shown.print("Interrupted. Everything was stopped and removed.")
        return Exit.INTERRUPTED
    if json:
        print_json({"ok": not broken, **({"broken": broken} if broken else {})})
    return Exit.FAILED if broken else Exit.OK


def _run(shown: Console, data: Path, log: Path) -> str:
    """What is not as promised; empty if all is."""
    try:
        asyncio.run(run(shown, data, log))
    except Promise as error:
        shown.print(f"[red]The demo failed:[/red] {error}", highlight=False)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        shown.print("\n".join(["What was logged last:", *lines]), markup=False, highlight=False)
        return str(error)
    return ""


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
