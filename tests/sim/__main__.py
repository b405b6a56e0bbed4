"""`python -m tests.sim run --seeds N --from M [--verbose]`, `python -m tests.sim bugs [name …]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from tests.sim.bugs import BUGS
from tests.sim.runner import Result, Simulator
from tests.support import database as databases


def main() -> int:
    _fix_hashes()
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="simulate seeds; stops at the first that fails")
    run.add_argument("--seeds", type=int, default=200)
    run.add_argument("--from", dest="first", type=int, default=0)
    run.add_argument("--verbose", action="store_true", help="print every line of the trace")
    run.add_argument("--keep-going", action="store_true", help="do not stop at a seed that fails")
    bugs = commands.add_parser("bugs", help="plant each bug, and simulate until it is found")
    bugs.add_argument("names", nargs="*", choices=[*BUGS, []], help="these bugs only")
    bugs.add_argument("--within", type=float, default=120.0, help="seconds for each")
    options = parser.parse_args()
    with databases.open_server() as server:
        dsn = asyncio.run(databases.fresh_database(server))
        with Simulator(dsn) as simulator:
            return run_seeds(simulator, options) if options.command == "run" else find_bugs(simulator, options)


def run_seeds(simulator: Simulator, options: argparse.Namespace) -> int:
    failed = 0
    for seed in range(options.first, options.first + options.seeds):
        result = simulator.run(seed, verbose=options.verbose)
        failed += result.violation is not None
        tell(result)
        if failed and not options.keep_going:
            break
    return 1 if failed else 0


def find_bugs(simulator: Simulator, options: argparse.Namespace) -> int:
    """Every planted bug has to be found, each within its time."""
    missed = []
    for bug in [BUGS[name] for name in options.names] or BUGS.values():
        found, seeds, took_s = simulator.hunt(bug, options.within)
        print(f"{bug.name}: {'found' if found else 'NOT FOUND'} with {seeds} seeds in {took_s:.1f} s", flush=True)
        print(
            f"    {bug.says}\n    {(found.violation or '').splitlines()[0] if found else 'nothing was seen'}",
            flush=True,
        )
        missed += [] if found else [bug.name]
    print(f"{len(missed)} not found: {', '.join(missed)}" if missed else "all planted bugs were found")
    return 1 if missed else 0


def tell(result: Result) -> None:
    took = f"{result.statements} statements, {result.virtual_s:.0f} virtual s, {result.took_s:.2f} s, {result.digest}"
    print(f"seed {result.seed}: {'ok' if result.violation is None else 'FAILED'} ({took})", flush=True)
    if result.violation is not None:
        print("\n".join(result.trace[-40:]))
        print(f"\nseed {result.seed}: {result.violation}")
        print(f"replay: python -m tests.sim run --seeds 1 --from {result.seed} --verbose", flush=True)


def _fix_hashes() -> None:
    """The order of a set of texts is drawn per process; a seed replays only if it is fixed."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )


if __name__ == "__main__":
    sys.exit(main())
