"""`windlass stdio`: workers by stdin and stdout, from the command line."""

from __future__ import annotations

from windlass.stdio.worker import main


def stdio_worker() -> None:
    """Read requests from stdin and answer on stdout, one JSON message per line, until stdin ends.

    The same as `python -m windlass.stdio`, which needs nothing but Python.
    """
    main()
