"""`windlass wrapper`: the worker of the lease contract."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windlass.cli.wrapper_file import start_wrapper


def wrapper(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Receive the wake-ups of a queue, claim each task over mTLS, run its operator, and report the result: `windlass
    wrapper wrapper.toml`, or with flags alone. `windlass wrapper --help` lists the flags.

    Same as `python -m windlass.wrapper`, which does not need the server extra. Ctrl-C or SIGTERM drains the wrapper; a
    second signal stops it at once. In the folder of a running `windlass dev`, it needs no address and no certificate:
    `windlass wrapper --operators shop.operators`. With `--reload`, it starts again when a source file changes.

    Parameters
    ----------
    arguments
        TOML file with settings and operators, and flags, which override it.
    """
    start_wrapper(arguments)
