"""How many connections a server may have, by the number of files that its process may open."""

from __future__ import annotations

import resource

KEPT = 192  # for the database, logs, programs
SHARE = 0.3  # of what is left, for the connections of one port
LEAST = 16
SOFT_MAX = 65_536


def connections_room(asked: int) -> int:
    """As many as are asked for, or as there is room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return asked if soft == resource.RLIM_INFINITY else min(asked, max(LEAST, int((soft - KEPT) * SHARE)))


def raise_limit() -> None:
    """A server may have as many files open as the system lets it; the usual soft limit is for programs of old."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_MAX if hard == resource.RLIM_INFINITY else min(hard, SOFT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
