"""`windlass doctor`: each fault that it knows, found on a real database where one can be made, and told with advice."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace
from tests.cli.command import windlass
from tests.kit.pooler import Pooler

from windlass.cli import doctor
from windlass.engine.read.doctor import Finding, Level, diagnose
from windlass.store.health import ServerVitals, TableVitals, Vitals, WorkVitals, read_vitals

pytestmark = pytest.mark.slow

NOW_S = 1_800_000_000.0
SERVER = ServerVitals("18.1", False, True, True, True, 100, 10, 1.0, NOW_S)
WORK = WorkVitals(2, 0, 0, 0, 0, ())
WELL = Vitals(SERVER, True, None, (TableVitals("task", 1000, 50),), WORK)


def found(vitals: Vitals, *, pooled: bool = False, local_s: float = NOW_S) -> dict[str, Level]:
    findings = diagnose(vitals, pooled=pooled, local_s=local_s)
    assert [f.name for f in findings if f.level is not Level.OK and not f.advice] == [], "say what to do"
    return {finding.name: finding.level for finding in findings}


def test_nothing_is_wrong_with_a_database_that_is_well() -> None:
    assert set(found(WELL).values()) == {Level.OK}


@pytest.mark.parametrize(
    ("name", "level", "vitals"),
    [
        ("standby", "wrong", replace(WELL, server=replace(SERVER, standby=True))),
        ("durability", "wrong", replace(WELL, server=replace(SERVER, fsync=False))),
        ("durability", "wrong", replace(WELL, server=replace(SERVER, synchronous_commit=False))),
        ("autovacuum", "wrong", replace(WELL, server=replace(SERVER, autovacuum=False))),
        ("connections", "note", replace(WELL, server=replace(SERVER, connections=90))),
        ("transaction", "wrong", replace(WELL, server=replace(SERVER, oldest_transaction_s=3600.0))),
        ("schema", "wrong", replace(WELL, schema="the schema is at version 1")),
        ("listen", "wrong", replace(WELL, receives_notifications=False)),
        ("dead_rows", "note", replace(WELL, tables=(TableVitals("task", 1000, 50_000),))),
        ("leases", "wrong", replace(WELL, work=replace(WORK, leases_overdue=3))),
        ("effects", "wrong", replace(WELL, work=replace(WORK, effects_overdue=3))),
        ("dead_effects", "note", replace(WELL, work=replace(WORK, effects_dead=3))),
        ("parked", "note", replace(WELL, work=replace(WORK, parked=3))),
        ("unattended", "note", replace(WELL, work=replace(WORK, unattended=("mail",)))),
    ],
)
def test_each_fault_is_found_and_nothing_else(name: str, level: str, vitals: Vitals) -> None:
    assert {n: str(lv) for n, lv in found(vitals).items() if lv is not Level.OK} == {name: level}


@pytest.mark.parametrize(("local_s", "level"), [(NOW_S + 4, "ok"), (NOW_S + 60, "note"), (NOW_S - 60, "note")])
def test_a_clock_that_is_off_is_noticed(local_s: float, level: str) -> None:
    assert str(found(WELL, local_s=local_s)["clock"]) == level


def test_without_listen_all_is_well_where_a_pooler_is_known() -> None:
    assert found(replace(WELL, receives_notifications=False), pooled=True)["listen"] is Level.OK


# ----------------------------------------------------------------------------------------------- a real database


async def ask(*arguments: str, **more: str) -> tuple[int, dict[str, Any]]:
    done = await asyncio.to_thread(windlass, "doctor", "--json", *arguments, **more)
    assert done.stderr == ""
    return done.returncode, {finding["name"]: finding for finding in json.loads(done.stdout)}


async def test_a_migrated_database_is_well_and_work_without_a_worker_is_noted(
    database: str, other_connection: asyncpg.Connection
) -> None:
    await other_connection.execute("select windlass.submit('send', queue => 'mail')")
    await other_connection.execute(
        "insert into windlass.lease values (windlass.new_id(), 'default', 'w', '{other}', null, '{}', 1,"
        " windlass.now() - interval '1 hour', windlass.now())"
    )
    code, findings = await ask("--database-url", database)

    assert code == 1
    levels = {name: finding["level"] for name, finding in findings.items() if finding["level"] != "ok"}
    # the servers of tests do without fsync
    assert levels.pop("durability", "wrong") == "wrong"
    assert levels == {"unattended": "note", "leases": "wrong"}
    assert findings["unattended"]["advice"] == "windlass worker module:app -q mail"


async def test_a_database_without_a_schema_is_told_what_to_run(bare_database: str) -> None:
    done = await asyncio.to_thread(windlass, "doctor", "--database-url", bare_database)

    assert done.returncode == 1
    assert "wrong  schema       this database has no Windlass schema" in done.stdout
    assert "→ `windlass migrate`" in done.stdout


async def test_a_pooler_is_noticed_by_the_notify_that_does_not_come_back(database: str) -> None:
    assert (await read_vitals(database)).receives_notifications
    async with Pooler(database) as pooler:
        assert not (await read_vitals(pooler.dsn)).receives_notifications


def test_a_database_that_does_not_answer_is_unreachable(tmp_path: Any) -> None:
    done = windlass("doctor", "--json", "--database-url", f"postgresql://a:very-secret@/none?host={tmp_path}")

    assert (done.returncode, done.stdout) == (3, "")
    assert json.loads(done.stderr)["error"]["code"] == "store_busy"
    assert "very-secret" not in done.stderr


def test_doctor_creates_nothing(tmp_path: Path, database: str) -> None:
    done = windlass("doctor", cwd=tmp_path)

    assert done.returncode == 1
    assert f"no database URL is set, and there is no database in {Path('.windlass')}" in done.stdout
    assert "All is well" not in done.stdout
    windlass("doctor", "--database-url", database, cwd=tmp_path, WINDLASS_BLOBS=str(tmp_path / "blobs"))
    assert list(tmp_path.iterdir()) == []


async def test_doctor_does_not_make_the_folder_of_a_blob_store_that_is_not_there(
    tmp_path: Path, database: str, other_connection: asyncpg.Connection
) -> None:
    await other_connection.execute(
        "insert into windlass.blob_store (id, url, created_at) values (gen_random_uuid(), 'file:///elsewhere', now())"
    )
    _, findings = await ask("--database-url", database, WINDLASS_BLOBS=str(tmp_path / "blobs"))

    assert findings["blobs"]["level"] == "wrong"
    assert not os.listdir(tmp_path)  # noqa: PTH208


@pytest.mark.parametrize(
    ("levels", "says"),
    [
        ([Level.OK], "All is well."),
        ([Level.OK, Level.NOTE], "Nothing is wrong, 1 to review."),
        ([Level.WRONG, Level.NOTE], "1 to fix, 1 to review."),
        ([Level.WRONG], "1 to fix."),
    ],
)
def test_all_is_said_to_be_well_only_if_it_is(
    levels: list[Level], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    doctor._print([Finding("clock", level, "so it is") for level in levels])

    assert capsys.readouterr().out.splitlines()[-1] == says


async def test_secrets_in_the_clear_are_noted_and_encrypted(
    database: str, other_connection: asyncpg.Connection
) -> None:
    secret = base64.b64encode(b"0" * 32).decode()
    await other_connection.execute(
        "insert into windlass.queue (namespace, name, signing_secret) values ('default', 'mail', $1)", f"whsec_{secret}"
    )
    keys = {"WINDLASS_SECRET_KEYS": base64.b64encode(b"1" * 32).decode()}
    _, findings = await ask("--database-url", database)
    assert (findings["secrets"]["level"], "in clear text" in findings["secrets"]["message"]) == ("note", True)

    without = await asyncio.to_thread(windlass, "secrets", "encrypt", "--database-url", database)
    assert without.returncode == 2
    assert "WINDLASS_SECRET_KEYS" in without.stderr
    done = await asyncio.to_thread(windlass, "secrets", "encrypt", "--database-url", database, **keys)
    assert (done.returncode, done.stdout) == (0, "1 encrypted, 0 already used the first key.\n")
    kept = await other_connection.fetchval("select signing_secret from windlass.queue")
    assert secret not in kept
    assert (await ask("--database-url", database, **keys))[1]["secrets"]["level"] == "ok"
    assert (await ask("--database-url", database))[1]["secrets"]["level"] == "wrong"
