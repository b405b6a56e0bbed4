"""`windlass doctor`: what is wrong with a database or about to be, and what to do about each finding.

The questions are in `app.examine`; here they are asked and told. Exit code 1 if something needs a person.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from windlass.app import examine, has_embedded, open_embedded
from windlass.cli.option import NO_DATABASE, DatabaseOptions
from windlass.cli.output import Exit, say, show
from windlass.cli.process import run_async
from windlass.contracts.lease.examine import examine_certificates
from windlass.engine.doctor import Finding, Level
from windlass.queues.option import CarrierOptions
from windlass.settings import Settings

NO_DATABASE_YET = "give --database-url or DATABASE_URL; `windlass dev` makes a database to try things"
MARKS = {Level.OK: "[green]ok[/green]     ", Level.NOTE: "[yellow]note[/yellow]   ", Level.WRONG: "[red]wrong[/red]  "}


def doctor(*, database: DatabaseOptions = NO_DATABASE) -> int:
    """Examine the database: reachable, version, schema, LISTEN, clock, dead rows, leases; the carriers of wake-ups
    and the functions that queues use; the blob store; how secrets are kept; the certificates of the internal port;
    with what to do. Nothing is made or changed."""
    settings = database.settings()
    findings = run_async(_examine(settings)) + _certificates(settings)
    show(findings, database.json, lambda: _tell(findings))
    return Exit.FAILED if any(finding.level is Level.WRONG for finding in findings) else Exit.OK


async def _examine(settings: Settings) -> list[Finding]:
    if settings.database_url is not None:
        return await _asked(settings, settings.database_url, pooled=settings.pooled)
    if not has_embedded(settings.data_dir):
        return [
            Finding("database", Level.WRONG, f"none is set, and there is none in {settings.data_dir}", NO_DATABASE_YET)
        ]
    async with open_embedded(settings.data_dir) as url:
        return await _asked(settings, url, pooled=False)


async def _asked(settings: Settings, url: str, *, pooled: bool) -> list[Finding]:
    carriers = CarrierOptions.of(settings)
    return await examine(
        url,
        local_s=time.time(),
        pooled=pooled,
        carriers=carriers,
        blobs=settings.blobs_url,
        secret_keys=settings.secret_keys,
    )


def _certificates(settings: Settings) -> list[Finding]:
    if settings.internal is None:
        return []
    files = settings.internal_certificate, settings.internal_key, settings.internal_ca
    return examine_certificates(*files, datetime.now(UTC))


def _tell(findings: list[Finding]) -> None:
    for finding in findings:
        say(f"{MARKS[finding.level]}[bold]{finding.name:<12}[/bold] {finding.message}")
        if finding.advice:
            say(f"                    → {finding.advice}")
    wrong = sum(finding.level is Level.WRONG for finding in findings)
    notes = sum(finding.level is Level.NOTE for finding in findings)
    if wrong:
        say(f"{wrong} to mend{f', {notes} to look at' if notes else ''}.")
    else:
        say(f"Nothing is wrong, {notes} to look at." if notes else "All is well.")
