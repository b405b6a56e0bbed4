"""Derives how many connections a server may have from the number of files that its process may open."""

from __future__ import annotations

import resource

KEPT = 192  # for the database, logs, programs
SHARE = 0.3  # of the rest, for the connections of one port
LEAST = 16
SOFT_MAX = 65_536


def connections_room(wanted: int) -> int:
    """The number of connections wanted, or fewer if the process may not open as many files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, max(LEAST, int((soft - KEPT) * SHARE)))


def raise_limit() -> None:
    """Raise the soft limit of open files: its default is too low for a server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_MAX if hard == resource.RLIM_INFINITY else min(hard, SOFT_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
