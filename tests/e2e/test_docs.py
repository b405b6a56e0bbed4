"""The quickstart and the how-to pages are true: their programs and their SQL are run. Links: see `tests/shape`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest
from tests.kit.database import temporary_folder
from tests.kit.pooler import Pooler

from windlass.store.embedded.host import find_software

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RUN = sorted([ROOT / "docs/quickstart.md", *(ROOT / "docs/howto").glob("*.md")])
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of code on a page, and what the page says that it prints."""

    language: str
    code: str
    prints: str | None


def blocks_of(page: Path) -> list[Block]:
    parts = re.split(r"^```(\w+)\n(.*?)^```\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = []
    for i in range(1, len(parts), 3):
        language, code, after = parts[i : i + 3]
        said = re.match(r"\s*It prints `([^`]*)`", after)
        follows = re.match(r"\s*It prints\s*$", after) and parts[i + 4]
        found.append(Block(language, code, said[1] if said else follows or None))
    return found


@asynccontextmanager
async def database_of(page: Path, database: str) -> AsyncIterator[str]:
    """What the page means by DATABASE_URL."""
    if page.stem != "run-behind-a-pooler":
        yield database
        return
    async with Pooler(database) as pooler:
        yield pooler.dsn


@pytest.mark.parametrize("page", [page for page in RUN if "```python" in page.read_text()], ids=name_of)
async def test_every_program_on_the_page_runs_and_prints_what_the_page_says(page: Path, database: str) -> None:
    async with database_of(page, database) as url:
        for block in blocks_of(page):
            if block.language == "python":
                printed = await asyncio.to_thread(run_program, block.code, url)
                if block.prints is not None:
                    assert words(printed) == words(block.prints)


def run_program(code: str, url: str) -> str:
    with temporary_folder() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder, env={**os.environ, "DATABASE_URL": url, "WINDLASS_SIGNING_SECRET": SECRET,
                             "WINDLASS_BLOBS": f"file://{folder}/blobs"},
            capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(text: str) -> list[str]:
    """Without the spaces at the ends of lines, which nobody can see."""
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize("page", [page for page in RUN if "```sql" in page.read_text()], ids=name_of)
async def test_all_sql_on_the_page_runs(page: Path, database: str) -> None:
    script = "\n".join(block.code for block in blocks_of(page) if block.language == "sql")
    psql = [str(find_software(None).program("psql")), "-X", "-q", "-v", "ON_ERROR_STOP=1", database]
    script = script.replace(" shop", f" shop_{os.getpid()}")  # roles are common to all databases of a server
    done = await asyncio.to_thread(subprocess.run, psql, input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    if "create role" in script:
        await check_the_role(database, f"shop_{os.getpid()}")


async def check_the_role(database: str, role: str) -> None:
    """It may submit, as the page says, and do nothing else to a task."""
    connection = await asyncpg.connect(database)
    await connection.execute(f"set role {role}")
    await connection.fetchval("select windlass.submit('send_invoice', idempotency_key => 'by-the-shop')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("update windlass.task set state = 'succeeded'")
    await connection.execute(f"reset role; drop owned by {role}; drop role {role}")
    await connection.close()
