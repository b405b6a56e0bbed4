"""The command line. Commands are thin: they read arguments, call `app` or the HTTP API, and print."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `windlass`. Stdio workers and wrappers start without importing the other commands."""
    if sys.argv[1:] == ["stdio", "worker"]:
        from windlass.contracts.stdio.protocol.worker import main as work

        return work()
    if sys.argv[1:2] == ["wrapper"]:  # works without the server extra
        from windlass.cli.wrapper_file import start_wrapper

        return start_wrapper(sys.argv[2:])
    try:
        from windlass.cli.commands import run
    except ModuleNotFoundError as error:
        sys.exit(f"The windlass command needs the server extra ({error}): pip install 'windlass-engine[server]'")
    sys.exit(run(sys.argv[1:]))
