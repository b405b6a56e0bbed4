"""Secrets of webhooks in PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import windlass.datasets.tables.jobs  # noqa: F401  (registers the part `webhook_jobs`)
from windlass.store.queries import register_queries
from windlass.store.table import Table

register_queries(__package__, "webhooks.sql")


class WebhookSecrets(NamedTuple):
    """The secrets of a webhook as they are stored, and the job that has it."""

    dag: str
    job: str
    secret: str
    previous: str | None


class WebhookTable(Table):
    """Secrets of webhooks within a transaction."""

    async def put(
        self, namespace: str, dag: str, job: str, secret: str, overlap_s: float
    ) -> tuple[datetime, datetime | None]:
        """Returns when it was set, and until when the one before is accepted."""
        rows = await self.session.fetch("put_webhook_secret", namespace, dag, job, secret, overlap_s)
        return rows[0][0], rows[0][1]

    async def delete(self, namespace: str, dag: str, job: str) -> bool:
        return bool(await self.session.fetch("delete_webhook_secret", namespace, dag, job))

    async def find(self, namespace: str, path: str) -> WebhookSecrets | None:
        rows = await self.session.fetch("webhook_secrets", namespace, path)
        return WebhookSecrets(*rows[0]) if rows else None

    async def lock_all(self) -> list[tuple[str, str, str, str, str | None]]:
        """Namespace, DAG, job, secret and previous secret of each."""
        return [(row[0], row[1], row[2], row[3], row[4]) for row in await self.session.fetch("lock_webhook_secrets")]

    async def rewrite(self, namespace: str, dag: str, job: str, is_previous: bool, secret: str) -> None:
        await self.session.fetch("rewrite_webhook_secret", namespace, dag, job, is_previous, secret)
