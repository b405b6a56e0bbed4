"""`windlass doctor`: diagnoses a database and prints advice for each finding.

The checks are in `windlass.doctor`; this module runs them and prints the findings. Exit code 1 if one needs a person.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from windlass.cli.database import open_url
from windlass.cli.options import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Exit, say, show
from windlass.cli.process import run_async
from windlass.contracts.lease.tls.doctor import examine_certificates
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.doctor import examine
from windlass.engine.read.doctor import Finding, Level
from windlass.serve import has_embedded
from windlass.settings import Settings

NO_DATABASE_YET = "give --database-url or DATABASE_URL; `windlass dev` creates one for development"
MARKS = {Level.OK: "[green]ok[/green]     ", Level.NOTE: "[yellow]note[/yellow]   ", Level.WRONG: "[red]wrong[/red]  "}


def doctor(*, database: DatabaseOptions = NO_DATABASE) -> int:
    """Check the database (connection, version, schema, LISTEN, clock, dead rows, leases), the carriers of wake-ups, the
    functions that queues call, the data database and its sinks, the blob store, the lake, the encryption of secrets,
    and the certificates of the internal port. Print advice for each finding. Changes nothing, but writes an object to
    the lake and deletes it. Exit code 1 if something is wrong."""
    settings = database.settings()
    findings = run_async(_examine(settings))
    if settings.internal is not None:
        files = settings.internal_certificate, settings.internal_key, settings.internal_ca
        findings += examine_certificates(*files, datetime.now(UTC))
    show(findings, database.json, lambda: _print(findings))
    return Exit.FAILED if any(finding.level is Level.WRONG for finding in findings) else Exit.OK


async def _examine(settings: Settings) -> list[Finding]:
    embedded = settings.database_url is None
    if embedded and not has_embedded(settings.data_dir):
        message = f"no database URL is set, and there is no database in {settings.data_dir}"
        return [Finding("database", Level.WRONG, message, NO_DATABASE_YET)]
    async with open_url(settings, migrate=False) as url:
        return await examine(
            url,
            local_s=time.time(),
            pooled=settings.pooled and not embedded,
            carriers=CarrierOptions.of(settings),
            blobs=settings.blobs_url,
            lake=settings.lake_url,
            secret_keys=settings.secret_keys,
            data_database_url=settings.data_database_url,
        )


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        say(f"{MARKS[finding.level]}[bold]{finding.name:<12}[/bold] {finding.message}")
        if finding.advice:
            say(f"                    → {finding.advice}")
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    notes = sum(finding.level is Level.NOTE for finding in findings)
    if wrong:
        say(f"{wrong} to fix{f', {notes} to review' if notes else ''}.")
    else:
        say(f"Nothing is wrong, {notes} to review." if notes else "All is well.")
