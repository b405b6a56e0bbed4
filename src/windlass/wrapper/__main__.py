"""`python -m windlass.wrapper`: the same as `windlass wrapper`, where only the plain package is installed."""

from windlass.contracts.lease.worker.command import main

main()
