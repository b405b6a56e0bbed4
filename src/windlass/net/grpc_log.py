"""Stops gRPC's library from writing every broken connection to standard error; what matters is in our log.

The library reads its environment when it is imported, so call this before the import."""

from __future__ import annotations

import os


def keep_grpc_quiet() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
