"""`python -m tests.sim run [--world dag] --seeds N --from M [--verbose]` and `python -m tests.sim bugs [name …]`.

Seeds and bugs are shared out to a few processes, each with a database of its own on one server. The first seed that
fails ends the run, with the command that replays it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import groupby

from tests.kit import database as databases
from tests.sim.runner import Found, Result, Simulator
from tests.sim.worlds import BUGS, WORLDS


def main() -> int:
    _fix_hashes()
    options = _parser().parse_args()
    with databases.open_server() as server:
        return run_seeds(server, options) if options.command == "run" else find_bugs(server, options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="simulate seeds; stops at the first that fails")
    run.add_argument("--seeds", type=int, default=200)
    run.add_argument("--from", dest="first", type=int, default=0)
    run.add_argument("--world", choices=list(WORLDS), default="kernel", help="what is simulated")
    run.add_argument("--verbose", action="store_true", help="print every line of the trace")
    run.add_argument("--keep-going", action="store_true", help="do not stop at a seed that fails")
    run.add_argument("--bug", choices=list(BUGS), help="with this bug planted")
    bugs = commands.add_parser("bugs", help="plant each bug, and simulate until it is found")
    bugs.add_argument("names", nargs="*", metavar="name", help=f"these only, of: {', '.join(BUGS)}")
    bugs.add_argument("--within", type=float, default=120.0, help="seconds of this processor for each")
    for command in (run, bugs):
        command.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes")
    return parser


# --------------------------------------------------------------------------------------------- run


def run_seeds(server: databases.Server, options: argparse.Namespace) -> int:
    seeds = range(options.first, options.first + options.seeds)
    jobs = 1 if options.verbose else min(options.jobs, options.seeds)
    failed = statements = 0
    world = options.world if options.bug is None else BUGS[options.bug].world
    work = partial(simulate, server.maintenance, world, options.verbose, options.bug)
    for number, result in enumerate(spread(work, seeds, jobs), 1):
        failed += result.violation is not None
        statements += result.statements
        tell(result, f"{number}/{options.seeds}", world, options.bug)
        if failed and not options.keep_going:
            return 1
    print(f"{options.seeds - failed} of {options.seeds} seeds passed, {statements} statements")
    return 1 if failed else 0


def simulate(maintenance: str, world: str, verbose: bool, bug: str | None, seeds: Iterable[int]) -> Iterator[Result]:
    with opened(maintenance, world) as simulator:
        for seed in seeds:
            if bug is None:
                yield simulator.run(seed, verbose=verbose)
            else:
                with BUGS[bug].plant():
                    yield simulator.run(seed, verbose=verbose)


def tell(result: Result, place: str, world: str, bug: str | None) -> None:
    took = f"{result.statements} statements, {result.virtual_s:.0f} virtual s, {result.took_s:.2f} s, {result.digest}"
    print(f"{place} seed {result.seed}: {'ok' if result.violation is None else 'FAILED'} ({took})", flush=True)
    if result.violation is not None:
        planted = "" if bug is None else f" --bug {bug}"
        planted += "" if bug is not None or world == "kernel" else f" --world {world}"
        print("\n".join(result.trace[-40:]))
        print(f"\nseed {result.seed}: {result.violation}")
        print(f"replay: python -m tests.sim run --seeds 1 --from {result.seed}{planted} --verbose", flush=True)


# --------------------------------------------------------------------------------------------- bugs


def find_bugs(server: databases.Server, options: argparse.Namespace) -> int:
    """Every planted bug has to be found, each within its time."""
    names = options.names or list(BUGS)
    missed = []
    print(f"{len(names)} bugs, each looked for in at most {options.within:g} s of processor time", flush=True)
    hunts = spread(partial(hunt, server.maintenance, options.within), names, min(options.jobs, len(names)))
    for number, (name, found) in enumerate(hunts, 1):
        tell_found(name, f"{number}/{len(names)}", found)
        missed += [] if found.result is not None else [name]
    print(f"{len(missed)} not found: {', '.join(missed)}" if missed else f"all {len(names)} planted bugs were found")
    return 1 if missed else 0


def hunt(maintenance: str, within_s: float, names: Iterable[str]) -> Iterator[tuple[str, Found]]:
    """By the world of each, one after the other."""
    for world, mine in groupby(names, key=lambda name: BUGS[name].world):
        with opened(maintenance, world) as simulator:
            for name in mine:
                yield name, simulator.hunt(BUGS[name], within_s)


def tell_found(name: str, place: str, found: Found) -> None:
    outcome = "NOT FOUND" if found.result is None else "found"
    print(f"{place} {name}: {outcome} with {found.seeds} seeds in {found.took_s:.1f} s", flush=True)
    print(f"    {BUGS[name].says}", flush=True)
    if found.result is not None:
        print(f"    {(found.result.violation or '').splitlines()[0][:200]}", flush=True)


# --------------------------------------------------------------------------------------------- processes


@contextmanager
def opened(maintenance: str, world: str) -> Iterator[Simulator]:
    """A simulator of a world, with a database of its own."""
    with closing(databases.Server(maintenance)) as server:
        dsn = asyncio.run(databases.fresh_database(server))
        try:
            with Simulator(dsn, WORLDS[world]) as simulator:
                yield simulator
        finally:
            asyncio.run(databases.drop_database(server, dsn))
            asyncio.run(databases.drop_template(server))


def spread(work, items, jobs):  # type: ignore[no-untyped-def]
    """What `work` yields for these items, as it comes; in this process if one is enough."""
    if jobs <= 1:
        yield from work(items)
        return
    context = multiprocessing.get_context("fork")
    todo, done = context.Queue(), context.Queue()
    for item in items:
        todo.put(item)
    for _ in range(jobs):
        todo.put(None)
    processes = [context.Process(target=_work, args=(work, todo, done), daemon=True) for _ in range(jobs)]
    try:
        for process in processes:
            process.start()
        for _ in items:
            outcome = done.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _work(work, todo, done) -> None:  # type: ignore[no-untyped-def]
    try:
        for outcome in work(iter(todo.get, None)):
            done.put(outcome)
    except BaseException as error:
        done.put(RuntimeError(f"a process of the simulation failed: {error!r}"))
        raise


def _fix_hashes() -> None:
    """The order of a set of texts is drawn per process; a seed replays only if it is fixed."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.sim", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})


if __name__ == "__main__":
    sys.exit(main())
