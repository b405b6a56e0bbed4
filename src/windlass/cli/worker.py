"""`windlass worker`: runs the handlers of an app until a signal stops it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windlass import sdk
from windlass.cli.logs import set_up_logs
from windlass.cli.options import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions, load
from windlass.cli.output import Exit, Unusable, console, print_json
from windlass.cli.process import end_now, end_remaining_threads, run_user_code
from windlass.cli.reload import run_with_reload
from windlass.cli.shutdown import on_stop
from windlass.cli.supervise import Supervisor, report_end, report_lease
from windlass.sdk.handler.options import WorkerOptions
from windlass.sdk.worker.worker import reach_of
from windlass.settings import Address, Settings

Names = Annotated[tuple[str, ...], Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class IdentityOptions:
    """How the worker describes itself."""

    name: Annotated[str | None, Parameter(help="Name of the worker in histories. Default: host and process id.")] = None
    namespace: Annotated[str | None, Parameter(help="Namespace to claim from. Default: that of the app.")] = None
    label: Annotated[
        Names, Parameter(name=("--label", "-l"), help="Label of this worker, for tasks that require it; repeatable.")
    ] = ()
    version: Annotated[str, Parameter(name="--app-version", help="Version of your program, shown with the worker.")] = (
        ""
    )


ANONYMOUS = IdentityOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class RemoteOptions:
    """Flags of a worker without access to the database."""

    server: Annotated[str | None, Parameter(help="gRPC server to connect to, as http://HOST:PORT.")] = None
    api_key: Annotated[str | None, Parameter(help="API key for that server. Default: WINDLASS_API_KEY.")] = None


DIRECT = RemoteOptions()


def worker(
    target: str,
    *,
    queue: Annotated[Names, Parameter(name=("--queue", "-q"))] = (),
    kind: Annotated[Names, Parameter(name=("--kind", "-k"))] = (),
    concurrency: Annotated[int, Parameter(name=("--concurrency", "-c"))] = 32,
    prefetch: int = 0,
    identity: IdentityOptions = ANONYMOUS,
    lease: Annotated[float, Parameter(name="--lease")] = 30.0,
    reload: Annotated[bool, Parameter(show_default=False)] = False,
    supervised: Annotated[bool, Parameter(show_default=False)] = False,
    remote: RemoteOptions = DIRECT,
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Run the handlers of an app: `windlass worker shop.tasks:app -q mail -c 32`.

    Ctrl-C or SIGTERM drains the worker: it claims no more tasks, finishes the running ones, and gives prefetched ones
    back. A second signal stops it at once and gives the running tasks back. Neither uses up a retry.

    Parameters
    ----------
    target
        Module and name of the app, such as `shop.tasks:app`.
    queue
        Queue to claim from; repeatable, or separated by commas. Default: all queues of the app's handlers.
    kind
        Kind of handler to run; repeatable. Default: all handlers of the app.
    concurrency
        Maximum number of tasks that run at the same time.
    prefetch
        Number of further tasks to claim in advance.
    lease
        Seconds after the last heartbeat until its tasks are given to other workers.
    reload
        Restart when a source file below the current folder changes. The old code finishes the running tasks.
    supervised
        Run the worker in a child process. If it crashes, keep its last output, recover its tasks and restart it.
    """
    settings = database.settings(server=remote.server, api_key=remote.api_key, **asdict(log))
    export_settings(settings)
    if reload:
        run_with_reload()
        return
    if supervised:
        sys.exit(Supervisor().run())
    set_up_logs(settings)
    console.quiet = database.json
    options: WorkerOptions = {
        "queues": split(queue) or None, "kinds": split(kind) or None, "concurrency": concurrency, "prefetch": prefetch,
        "name": identity.name, "labels": split(identity.label), "version": identity.version, "lease_ttl_s": lease,
    }  # fmt: skip
    if identity.namespace is not None:
        options["namespace"] = identity.namespace
    if not run_user_code(run_worker(target, options)):
        end_now(Exit.INTERRUPTED)  # a thread that nothing can interrupt would keep the interpreter from ending
    end_remaining_threads()


def split(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(","))


def export_settings(settings: Settings) -> None:
    """Passes the server and the database of this command to apps that name none, through the environment."""
    os.environ["WINDLASS_DATA_DIR"] = str(settings.data_dir)
    if settings.database_url is not None:
        os.environ["WINDLASS_DATABASE_URL"] = settings.database_url
    if settings.server is not None:
        os.environ["WINDLASS_SERVER"] = settings.server
        if settings.api_key is not None:
            os.environ["WINDLASS_API_KEY"] = settings.api_key


@asynccontextmanager
async def serve_metrics(client: object, address: Address | None) -> AsyncIterator[str | None]:
    """Serves `GET /metrics` until the block ends and yields its URL. Only a worker that uses the database directly has
    metrics: its claims and reports bypass the servers."""
    if address is None:
        yield None
        return
    from windlass.api.metrics import tally_app
    from windlass.engine.engine import Engine  # imported only when metrics are on
    from windlass.engine.read.metrics import Tally
    from windlass.net.server.server import listening

    if not isinstance(client, Engine):
        yield None
        return
    tally = Tally()
    client.count(tally)
    async with listening(tally_app(tally), address.host, address.port) as url:
        yield f"{url}/metrics"


async def run_worker(target: str, options: WorkerOptions) -> bool:
    """Returns True if all tasks finished, False if the worker was stopped while tasks ran."""
    app = find_app(target)
    async with app:
        worker = app.worker(**options)
        worker.on_lease = partial(report_lease, reach=reach_of(app.client))
        drained = True

        def drain() -> None:
            worker.stop()
            say(f"Stopping: finishing {worker.active_count()} running tasks … (press again to stop at once)")

        def stop_now() -> None:
            nonlocal drained
            drained = worker.active_count() == 0
            say(f"Stopping at once: giving back {worker.active_count()} running tasks …")
            worker.stop_now()

        on_stop(drain, stop_now)  # before the first output: a supervisor may stop us as soon as it reads it
        if console.quiet:
            print_json({"worker": worker.name, "kinds": sorted(worker.kinds), "queues": list(worker.queues)})
        console.print(f"[bold]{worker.name}[/bold] runs {', '.join(sorted(worker.kinds))}")
        console.print(f"  from {', '.join(worker.queues)}, {options['concurrency']} at a time. Stop with Ctrl-C.")
        async with serve_metrics(app.client, load().settings.worker_metrics) as url:
            if url is not None:
                console.print(f"  metrics at {url}")
            await worker.run()
        say("Stopped.")
    report_end()
    return drained


def say(text: str) -> None:
    """Prints a line. A handler may have closed or replaced our output, which must not keep the worker from stopping."""
    with suppress(Exception):
        console.print(text)


def find_app(target: str) -> sdk.App:
    """Imports the app `package.module:name`, with the current folder on `sys.path` as with `python -m`."""
    module, separator, attribute = target.partition(":")
    if not separator or not module or not attribute:
        raise Unusable(f"target: {target!r} is not MODULE:NAME, such as shop.tasks:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Unusable(f"target: module {module} not found") from None
    found = getattr(imported, attribute, None)
    if found is None:
        raise Unusable(f"target: module {module} has no attribute {attribute}")
    if not isinstance(found, sdk.App):
        raise Unusable(f"target: {target} is a {type(found).__name__}, not an App")
    return found
