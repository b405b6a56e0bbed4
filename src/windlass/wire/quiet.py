"""gRPC's library writes every broken connection to standard error, past all logging; what matters of it is in our log.

It asks its environment when it is imported: so whoever imports it calls this first."""

from __future__ import annotations

import os


def keep_grpc_quiet() -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
