"""`windlass dev`: runs everything on one machine, for development.

Its API key is stored in the data folder, so that commands in the same folder need none. The first Ctrl-C or SIGTERM
stops it cleanly, the second at once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.markup import escape

from windlass import __version__
from windlass.cli.api import key_file
from windlass.cli.database import open_url
from windlass.cli.dev_wrapper import (
    dev_wrapper,
    find_operators,
    with_certificates,
    with_internal_port,
    wrapper_config,
    write_wrapper_file,
)
from windlass.cli.logs import set_up_logs
from windlass.cli.options import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions
from windlass.cli.output import command_to_type, print_json, say
from windlass.cli.process import run_async
from windlass.cli.serve import DEFAULT_SERVER, ServerOptions, check_ports, engine_options, print_addresses, servers
from windlass.cli.shutdown import stop_signal
from windlass.cli.worker import export_settings, find_app
from windlass.datasets.runtime_queues import make_all_queues
from windlass.engine.engine import Engine
from windlass.sdk import App
from windlass.serve import migrate_data_database, open_engine
from windlass.settings import Settings, without_password

# Example values for the hint that `windlass dev` prints.
EXAMPLES: dict[str, object] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {},
}  # fmt: skip


def dev(
    target: Annotated[
        str | None, Parameter(help="App to run a worker for, such as `shop.tasks:app`. Default: no worker.")
    ] = None,
    *,
    operators: Annotated[
        str | None,
        Parameter(help="Also run the operators of DAGs: a Python module with a function for each, or a TOML file."),
    ] = None,
    server: ServerOptions = DEFAULT_SERVER,
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Run everything on this machine, until Ctrl-C: PostgreSQL, the API, the internal port, an engine, the sink of
    buffered datasets, and, if they are given, a worker for an app and a wrapper with operators."""
    settings = with_internal_port(database.settings(**asdict(server), **asdict(log)))
    check_ports(settings)
    set_up_logs(settings)
    app = None if target is None else find_app(target)
    found = None if operators is None else find_operators(operators)
    run_async(run_dev(settings, app, found, as_json=database.json))


async def run_dev(settings: Settings, app: App | None, operators: Path | str | None, *, as_json: bool) -> None:
    stop = stop_signal()
    if not as_json:
        say(f"[bold]Windlass[/bold] {__version__} is starting …")
    settings = on_this_machine(settings)
    if settings.data_database_url is not None:
        await migrate_data_database(settings.data_database_url)
    async with open_url(settings) as url, open_engine(url, **engine_options(settings)) as engine:
        export_settings(replace(settings, database_url=url))
        key = settings.api_key or stored_key(settings)
        launchers = settings.launchers or "process"
        settings = with_certificates(
            replace(settings, api_key=key, push_loopback=True, stdio=True, launchers=launchers, sink=True)
        )
        async with (
            servers(engine, settings) as addresses,
            dev_operators(engine, settings, operators, addresses["internal"]) as names,
            dev_worker(app, engine) as worker,
        ):
            store_key(settings, key)
            summary = {**addresses, "key": key, "database": without_password(url)}
            if settings.internal_ca is not None:
                summary["certs"] = str(settings.internal_ca.parent)
            if as_json:
                print_json({**summary, "version": __version__, "worker": worker, "operators": names})
            else:
                print_summary(summary, app, worker, names)
            await stop.wait()
            if not as_json:
                say("Stopping: finishing running tasks …")
    if not as_json:
        say("Stopped.")


def on_this_machine(settings: Settings) -> Settings:
    """Objects, batches and the lake are in the data folder unless a store is set: every process is on this machine."""
    scratch_uri = settings.scratch_uri
    if scratch_uri == Settings().scratch_uri:
        scratch_uri = (settings.data_dir / "scratch").absolute().as_uri()
    blobs, lake = settings.blobs or settings.blobs_folder, settings.lake or settings.lake_folder
    return replace(settings, blobs=blobs, lake=lake, scratch_uri=scratch_uri)


def print_summary(summary: dict[str, str], app: App | None, worker: str | None, operators: list[str]) -> None:
    print_addresses(summary)
    handlers = {} if app is None else app.handlers
    if app is None:
        say("  worker    none; start one with `windlass dev module:app`")
    else:
        say(f"  worker    {worker}, runs {', '.join(sorted(handlers))}")
    if operators:
        say(f"  operators {', '.join(operators)}")
    command = escape(command_to_type())
    say("In another terminal, in this folder:")
    for kind in sorted(handlers)[:1]:
        payload = sample_payload(handlers[kind].schema.json_schema())
        say(f"  {command} submit {kind} --payload '{escape(payload)}' --wait")
    say(f"  {command} tasks list")
    say("Stop with Ctrl-C.")


def sample_payload(schema: dict[str, Any]) -> str:
    """An example payload with the required fields of the schema, as JSON quoted for a shell."""
    shown = msgspec.json.encode(_value(schema, schema.get("$defs", {}))).decode()
    return shown.replace("'", r"'\''")


def _value(schema: dict[str, Any], known: dict[str, Any]) -> object:
    if "$ref" in schema:
        return _value(known.get(schema["$ref"].rpartition("/")[2], {}), known)
    for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        return _value(choice, known)
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("type") == "object":
        needed = schema.get("required", ())
        return {name: _value(part, known) for name, part in schema.get("properties", {}).items() if name in needed}
    return EXAMPLES.get(str(schema.get("type")), {})


@asynccontextmanager
async def dev_operators(
    engine: Engine, settings: Settings, operators: Path | str | None, internal: str
) -> AsyncIterator[list[str]]:
    """Lets wrappers on this machine find the internal port at `internal`, and runs the operators that are given. Yields
    their names."""
    await make_all_queues(engine)
    write_wrapper_file(settings, internal)
    if operators is None:
        yield []
        return
    async with dev_wrapper(wrapper_config(settings, operators)) as names:
        yield names


@asynccontextmanager
async def dev_worker(app: App | None, engine: Engine) -> AsyncIterator[str | None]:
    """Runs a worker on the engine of this process. When the block ends, it finishes its running tasks."""
    if app is None:
        yield None
        return
    app.connect_by(lambda: nullcontext(engine))
    async with app:
        worker = app.worker()
        working = asyncio.create_task(worker.run())
        try:
            yield worker.name
        finally:
            worker.stop()
            await working


def stored_key(settings: Settings) -> str:
    """The API key of the last start, else a new one."""
    with suppress(OSError):
        if known := key_file(settings).read_text(encoding="utf-8").strip():
            return known
    return f"wl_dev_{secrets.token_urlsafe(24)}"


def store_key(settings: Settings, key: str) -> None:
    """Writes the API key to a file where the commands of this user look for it. Other users cannot read it."""
    file = key_file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(f"{key}\n")
