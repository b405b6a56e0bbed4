"""`windlass worker`: a process that runs the handlers of an app until it is told to stop."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windlass import sdk
from windlass.cli.logs import set_up_logs
from windlass.cli.option import NO_DATABASE, NO_LOG, DatabaseOptions, LogOptions, load
from windlass.cli.output import Exit, Unusable, console, print_json
from windlass.cli.process import end_now, end_threads_of_others, run_for_others
from windlass.cli.reload import run_with_reload
from windlass.cli.stop import on_stop
from windlass.cli.supervise import run_supervised, tell_of_end, tell_supervisor
from windlass.cli.worker_metrics import serving_metrics
from windlass.sdk.worker import reach_of
from windlass.sdk.worker_option import WorkerOptions
from windlass.settings import Settings

Names = Annotated[tuple[str, ...], Parameter(show_default=False)]


@Parameter(name="*")
@dataclass(frozen=True)
class AboutOptions:
    """Who the worker is."""

    name: Annotated[
        str | None, Parameter(help="How the worker is called in timelines; default: host and process id.")
    ] = None
    namespace: Annotated[str | None, Parameter(help="Take tasks of this namespace; default: the app's own.")] = None
    label: Annotated[
        Names, Parameter(name=("--label", "-l"), help="What this worker has, for tasks that require it.")
    ] = ()
    version: Annotated[
        str, Parameter(name="--app-version", help="The version of your program, shown with the worker.")
    ] = ""


NOTHING_SAID = AboutOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class RemoteOptions:
    """For a worker far from the database."""

    server: Annotated[str | None, Parameter(help="Work for this gRPC server, as http://HOST:PORT.")] = None
    api_key: Annotated[str | None, Parameter(help="The key to show to it; default: WINDLASS_API_KEY.")] = None


DIRECT = RemoteOptions()


def worker(
    target: str,
    *,
    queue: Annotated[Names, Parameter(name=("--queue", "-q"))] = (),
    kind: Annotated[Names, Parameter(name=("--kind", "-k"))] = (),
    concurrency: Annotated[int, Parameter(name=("--concurrency", "-c"))] = 32,
    prefetch: int = 0,
    about: AboutOptions = NOTHING_SAID,
    lease: Annotated[float, Parameter(name="--lease")] = 30.0,
    reload: Annotated[bool, Parameter(show_default=False)] = False,
    supervised: Annotated[bool, Parameter(show_default=False)] = False,
    remote: RemoteOptions = DIRECT,
    database: DatabaseOptions = NO_DATABASE,
    log: LogOptions = NO_LOG,
) -> None:
    """Run the handlers of an app: `windlass worker shop.tasks:app -q mail -c 32`.

    Ctrl-C or SIGTERM drains it: nothing more is claimed, what runs comes to its end, what was only held ready is given
    back. A second one stops it at once and gives back what ran; none of that uses up a retry.

    Parameters
    ----------
    target
        The module and the name of the app in it, such as `shop.tasks:app`.
    queue
        Take tasks of these queues only (may be given several times, or with commas); default: all that the app's
        handlers name.
    kind
        Run these handlers of the app only, by their kinds; default: all of them.
    concurrency
        How many tasks run side by side.
    prefetch
        How many more tasks are held ready.
    lease
        Seconds after its last sign of life until its tasks are given to other workers.
    reload
        Start again whenever a source file below the current folder changes; what runs is finished by the old code.
    supervised
        Watch over the worker: when it ends unasked, keep its last lines, recover what it ran, and start another.
    """
    settings = database.settings(server=remote.server, api_key=remote.api_key, **log.flags)
    tell_the_app(settings)
    if reload:
        run_with_reload()
        return
    if supervised:
        sys.exit(run_supervised())
    set_up_logs(settings)
    console.quiet = database.json
    options: WorkerOptions = {
        "queues": split(queue) or None, "kinds": split(kind) or None, "concurrency": concurrency, "prefetch": prefetch,
        "name": about.name, "labels": split(about.label), "version": about.version, "lease_ttl_s": lease,
    }  # fmt: skip
    run(target, options if about.namespace is None else {**options, "namespace": about.namespace})


def run(target: str, options: WorkerOptions) -> None:
    if not run_for_others(run_worker(target, options)):
        end_now(Exit.INTERRUPTED)  # a thread that nothing can interrupt would keep the interpreter from ending
    end_threads_of_others()


def split(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one.strip() for names in given for one in names.split(","))


def tell_the_app(settings: Settings) -> None:
    """An app that names neither server nor database of its own uses those that this command was told of."""
    os.environ["WINDLASS_DATA_DIR"] = str(settings.data_dir)
    if settings.database_url is not None:
        os.environ["WINDLASS_DATABASE_URL"] = settings.database_url
    if settings.server is not None:
        os.environ["WINDLASS_SERVER"] = settings.server
        if settings.api_key is not None:
            os.environ["WINDLASS_API_KEY"] = settings.api_key


async def run_worker(target: str, options: WorkerOptions) -> bool:
    """True if everything that it ran came to its end; False if it was told to stop at once."""
    app = find_app(target)
    async with app:
        worker = app.worker(**options)
        worker.on_lease = partial(tell_supervisor, reach=reach_of(app.client))
        drained = True

        def drain() -> None:
            worker.stop()
            say(f"Stopping: finishing {worker.active_count()} that run … (once more: stop at once)")

        def stop_now() -> None:
            nonlocal drained
            drained = worker.active_count() == 0
            say(f"Stopping at once: giving back {worker.active_count()} that run …")
            worker.stop_now()

        on_stop(drain, stop_now)  # before anything is said: who hears that we run may tell us to stop
        if console.quiet:
            print_json({"worker": worker.name, "kinds": sorted(worker.kinds), "queues": list(worker.queues)})
        console.print(f"[bold]{worker.name}[/bold] runs {', '.join(sorted(worker.kinds))}")
        console.print(f"  from {', '.join(worker.queues)}, {options['concurrency']} at a time. Stop with Ctrl-C.")
        async with serving_metrics(app.client, load().settings.worker_metrics) as url:
            if url is not None:
                console.print(f"  metrics at {url}")
            await worker.run()
        say("Stopped.")
    tell_of_end()
    return drained


def say(text: str) -> None:
    """A handler may have closed or replaced our output: that is no reason not to stop."""
    with suppress(Exception):
        console.print(text)


def find_app(target: str) -> sdk.App:
    """The app in `package.module:name`, with the current folder on the path, as `python -m` has it."""
    module, separator, attribute = target.partition(":")
    if not separator or not module or not attribute:
        raise Unusable(f"target: {target!r} is not like shop.tasks:app")
    sys.path.insert(0, str(Path.cwd()))
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Unusable(f"target: there is no module {module}") from None
    found = getattr(imported, attribute, None)
    if found is None:
        raise Unusable(f"target: the module {module} has no {attribute}")
    if not isinstance(found, sdk.App):
        raise Unusable(f"target: {target} is not an App but {type(found).__name__}")
    return found
