"""`windlass stdio`: workers over stdin and stdout."""

from __future__ import annotations

from windlass.contracts.stdio.protocol.worker import main


def stdio_worker() -> None:
    """Read requests from stdin and answer on stdout, one JSON message per line, until stdin ends.

    Same as `python -m windlass.stdio`, which needs only Python.
    """
    main()
