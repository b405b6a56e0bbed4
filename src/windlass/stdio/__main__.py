"""`python -m windlass.stdio`: the worker."""

from __future__ import annotations

from .worker import main

if __name__ == "__main__":
    main()
