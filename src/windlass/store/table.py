"""The base class of tables: methods that run named queries in one transaction."""

from __future__ import annotations

from windlass.store.pool import Session


class Table:
    """One table or a few that belong together, within a transaction."""

    __slots__ = ("session",)

    def __init__(self, session: Session) -> None:
        self.session = session
