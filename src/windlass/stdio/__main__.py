"""`python -m windlass.stdio`: the worker."""

from __future__ import annotations

from windlass.contracts.stdio.protocol.worker import main

if __name__ == "__main__":
    main()
