"""The commands as a person runs them: real processes, their output and their exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.kit import database as databases
from tests.kit.database import temporary_folder

from windlass.api.client import ApiClient
from windlass.serve import migrate_data_database
from windlass.store.embedded.host import find_software
from windlass.store.embedded.launch import process_mark, read_record

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WINDLASS = Path(sys.executable).with_name("windlass")
SOON_S = 120.0
STOP_S = 120.0
WARM_S = 4.0


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would lead a command to another database."""
    kept = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "MAKEFLAGS", "MAKELEVEL")}
    return {**kept, **more}


def windlass(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [str(WINDLASS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, env=environment(**more), check=False)


def until(what: str, moment: Callable[[], Any], deadline_s: float = SOON_S) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (answer := moment()):
        assert time.monotonic() < deadline, f"{what}: not within {deadline_s:g} s"
        time.sleep(0.01)
    return answer


# ----------------------------------------------------------------------------------------------- windlass dev


SHOP = """
from windlass import App
app = App("shop")

@app.task(kind="greet")
async def greet(name: str) -> str:
    return f"Hello, {name}!"
"""


@dataclass(slots=True)
class Dev:
    """`windlass dev` as a process, and what it has said so far."""

    data_dir: Path
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        (self.log.parent / "shop.py").write_text(SHOP)
        flags = ["--data-dir", str(self.data_dir), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--api-key", "k"]
        with self.log.open("wb") as log:
            command = [str(WINDLASS), "dev", "shop:app", *flags]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), cwd=self.log.parent)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def ready(self) -> bool:
        assert self.process.poll() is None, self.said
        return "Stop with Ctrl-C." in self.said

    def client(self) -> ApiClient:
        until("dev is ready", self.ready)
        return ApiClient(re.findall(r"api +(\S+)/api/v1", self.said)[0], "k")

    def first_sample(self) -> int:
        """Runs a task; how many have succeeded so far, on this data."""
        client = self.client()
        task_id = client.post("/tasks", {"kind": "greet", "payload": {"name": "Ada"}})["id"]
        ended = until("the task is done", lambda: client.get(f"/tasks/{task_id}")["state"] == "succeeded")
        assert ended
        return len(list(client.items("/tasks", {"state": "succeeded"}, 1000)))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(STOP_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


StartDev = Callable[[], Dev]


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    """Shared by the tests of `dev`: each start finds the data of those before it."""
    with temporary_folder() as folder:
        yield folder / "data"


@pytest.fixture
def start_dev(data_dir: Path) -> Iterator[StartDev]:
    started: list[Dev] = []

    def start() -> Dev:
        started.append(Dev(data_dir, data_dir.parent / f"dev-{len(started)}.log"))
        return started[-1]

    yield start
    for dev in started:
        dev.end()
    stop_postgresql(data_dir)


def postgresql(data_dir: Path) -> int | None:
    return read_record(data_dir / "control/process")


def stop_postgresql(data_dir: Path, how: signal.Signals = signal.SIGQUIT) -> None:
    pid = postgresql(data_dir)
    if pid is not None:
        os.kill(pid, how)
        until("PostgreSQL has ended", lambda: process_mark(pid) is None)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_dev_runs_a_sample_and_ends_with_code_0_when_it_is_told_to_stop(
    start_dev: StartDev, data_dir: Path, how: signal.Signals
) -> None:
    dev = start_dev()
    dev.first_sample()
    assert dev.stop(how) == 0, dev.said
    assert dev.said.rstrip().endswith("Stopped.")
    assert "Traceback" not in dev.said
    assert postgresql(data_dir) is None


def test_dev_started_again_goes_on_with_the_data_of_the_first_time(start_dev: StartDev) -> None:
    first = start_dev()
    done = first.first_sample()
    assert first.stop() == 0
    assert start_dev().first_sample() > done


def test_dev_starts_after_kill_9_while_its_postgresql_lives_on(start_dev: StartDev, data_dir: Path) -> None:
    first = start_dev()
    done = first.first_sample()
    first.end()
    assert postgresql(data_dir) is not None
    second = start_dev()
    assert second.first_sample() > done
    assert second.stop() == 0
    assert postgresql(data_dir) is None


def test_dev_starts_after_kill_9_of_everything(start_dev: StartDev, data_dir: Path) -> None:
    first = start_dev()
    done = first.first_sample()
    first.end()
    stop_postgresql(data_dir, signal.SIGKILL)
    assert start_dev().first_sample() > done


def test_two_dev_processes_share_one_data_directory_and_the_last_stops_postgresql(
    start_dev: StartDev, data_dir: Path
) -> None:
    one, other = start_dev(), start_dev()
    one.first_sample()
    other.first_sample()
    assert one.stop() == 0
    assert postgresql(data_dir) is not None
    assert other.stop() == 0
    assert postgresql(data_dir) is None


def test_dev_takes_tasks_from_psql_at_the_database_that_it_names(start_dev: StartDev) -> None:
    dev = start_dev()
    dev.client()
    password = (dev.data_dir / "control/password").read_text()
    url = re.findall(r"database +(\S+)", dev.said)[0]
    assert password not in dev.said
    submit = "select windlass.submit('greet', '{\"name\": \"you\"}')"
    psql = [str(find_software(None).program("psql")), url.replace("***", password), "-c", submit]
    done = subprocess.run(psql, env=environment(), capture_output=True, text=True, timeout=SOON_S, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-7", done.stdout)


def test_dev_is_ready_soon_after_a_warm_start(start_dev: StartDev) -> None:
    """2 s on an idle machine; here others may be at work, so that only its own work counts, and one start of a few."""
    took = []
    while len(took) < 5 and min(took[1:], default=WARM_S) >= WARM_S:
        dev = start_dev()
        dev.client()
        took.append(worked_s(dev.process.pid))
        assert dev.stop() == 0
    assert min(took[1:]) < WARM_S, took


def worked_s(pid: int) -> float:
    """For how long a process and those that it has seen end have used a core."""
    told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, told[11:15])) / os.sysconf("SC_CLK_TCK")


# ----------------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize("command", ["dev", "migrate"])
def test_a_url_that_is_none_is_refused_in_one_line(command: str) -> None:
    done = windlass(command, "--database-url", "nonsense")
    assert done.returncode == 2
    assert done.stderr == "error database_url: must begin with postgresql:// (set by --database-url)\n"


@pytest.mark.parametrize("command", ["dev", "migrate"])
def test_a_database_that_does_not_answer_has_an_exit_code_of_its_own(command: str, tmp_path: Path) -> None:
    done = windlass(command, DATABASE_URL=f"postgresql://windlass:very-secret@/none?host={tmp_path}")
    assert done.returncode == 3
    assert done.stderr.startswith("error the database is away: ")
    assert "very-secret" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# ----------------------------------------------------------------------------------------------- windlass migrate


def test_migrate_says_what_it_applied_and_the_second_time_that_nothing_was_missing(bare_database: str) -> None:
    first = windlass("migrate", DATABASE_URL=bare_database)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("applied 0001 schema\n")
    second = windlass("migrate", "--database-url", bare_database)
    assert (second.returncode, second.stdout) == (0, "The schema is up to date.\n")


def test_migrate_on_new_embedded_data_says_what_it_applied() -> None:
    with temporary_folder() as folder:
        first = windlass("migrate", "--data-dir", str(folder / "data"))
        assert (first.returncode, first.stderr) == (0, "")
        assert first.stdout.startswith("applied 0001 schema\n")
        second = windlass("migrate", "--data-dir", str(folder / "data"), "--json")
        assert (second.returncode, second.stdout) == (0, '{"applied":[]}\n')


def test_many_migrate_commands_at_once_apply_everything_once(bare_database: str) -> None:
    command = [str(WINDLASS), "migrate", "--database-url", bare_database]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(6)]
    said = [process.communicate(timeout=SOON_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    assert "".join(said).count("applied 0001 ") == 1


async def test_the_printed_sql_makes_the_same_schema_as_migrate(
    postgres: databases.Server, bare_database: str, database: str
) -> None:
    script = await asyncio.to_thread(windlass, "migrate", "--sql")
    assert script.returncode == 0
    psql = str(find_software(None).program("psql"))
    done = await asyncio.to_thread(
        subprocess.run, [psql, "-X", "-q", bare_database], input=script.stdout, text=True, capture_output=True
    )
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr
    assert schema_of(bare_database) == schema_of(database)
    assert await ledger_of(bare_database) == await ledger_of(database)


async def test_the_printed_sql_of_the_data_database_makes_what_migrate_makes(bare_database: str) -> None:
    script = await asyncio.to_thread(windlass, "migrate", "--sql", "--data")
    assert script.returncode == 0
    psql = str(find_software(None).program("psql"))
    command = [psql, "-X", "-q", bare_database]
    done = await asyncio.to_thread(subprocess.run, command, input=script.stdout, text=True, capture_output=True)
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stderr
    assert await migrate_data_database(bare_database) is False


def test_the_tables_of_datasets_are_not_migrated_alone() -> None:
    done = windlass("migrate", "--data")
    assert (done.returncode, "--data needs --sql" in done.stderr) == (2, True)


def schema_of(dsn: str) -> str:
    pg_dump = str(find_software(None).program("pg_dump"))
    dump = subprocess.run([pg_dump, "--schema-only", dsn], capture_output=True, text=True, check=True).stdout
    assert "CREATE TABLE windlass.task" in dump
    return re.sub(r"^\\(un)?restrict .*$", "", dump, flags=re.MULTILINE)  # a word that is drawn for each dump


async def ledger_of(dsn: str) -> list[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetch("select version, name, checksum from windlass.migration order by version")
    finally:
        await connection.close()


# ----------------------------------------------------------------------------------------------- make and examples


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_alone_prints_a_line_of_help_for_every_target() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, env=environment(), check=True)
    shown = set(re.findall(r"^  make ([a-z-]+) +\S", done.stdout, re.MULTILINE))
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert shown == targets >= {"help", "dev", "demo", "test", "lint", "sim", "bench"}


EXAMPLES = {
    "greet.py": "", "checkout.py": "shipped", "first.py": "Hello, Ada!", "schedule.py": "All is well in Rome.",
}  # fmt: skip
ELSEWHERE = {
    "callback_worker.py",
    "clocks.py",
    "csv_export.py",
    "demo.py",
    "lease_operators.py",
    "registry_conformance.py",
    "registry_worker.py",
}  # by tests of their own


def test_every_example_is_run_by_a_test() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES) | ELSEWHERE


@pytest.mark.parametrize("name", ["greet.py", "first.py", "checkout.py", "schedule.py"])
def test_the_example_runs_twice_and_says_what_it_should(name: str) -> None:
    with temporary_folder() as folder:
        for _ in range(2 if name == "first.py" else 1):
            done = subprocess.run(
                [sys.executable, str(ROOT / "examples" / name)],
                cwd=folder, env=environment(COLUMNS="80", NO_COLOR="1"), capture_output=True, text=True, timeout=200,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert EXAMPLES[name] in done.stdout
            assert max(map(len, done.stdout.splitlines()), default=0) <= 80


def test_the_first_program_in_the_readme_is_the_example() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = (ROOT / "examples/first.py").read_text()
    assert blocks
    assert program.partition('"""\n\n')[2] == blocks[0]
