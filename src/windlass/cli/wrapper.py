"""`windlass wrapper`: the worker of the lease contract, from the command line."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from windlass.wrapper.command import main


def wrapper(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Take wake-ups of a queue, claim each task over mTLS, run its operator, and report: `windlass wrapper
    wrapper.toml`, or with flags alone; `windlass wrapper --help` lists them, the how-to page explains them.

    The same as `python -m windlass.wrapper`, which needs nothing of the server. Ctrl-C or SIGTERM drains it, a second
    one stops it at once.

    Parameters
    ----------
    arguments
        A TOML file with settings and operators, and flags, which beat it.
    """
    main(arguments)
