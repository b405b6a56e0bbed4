"""Secrets of webhooks: a client that has the secret of a path may sign requests to it, as in Standard Webhooks.

A path, a namespace and a signature that are wrong are answered alike, so that nobody learns which webhooks there are. A
secret is set by a person and never shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from windlass.datasets.rules.dag import Source, SourceKind
from windlass.datasets.tables.dags import DagTable
from windlass.datasets.tables.webhooks import WebhookTable
from windlass.engine.engine import Engine
from windlass.engine.manage.queues import SECRET_OVERLAP_S
from windlass.engine.secrets import SECRET_ROWS, SecretRow
from windlass.errors import InvalidState, NotFound, Unauthenticated
from windlass.net.signature import check_signature, signing_key
from windlass.store.transaction import Transaction

REFUSED = "this needs the key of a submitter, or a valid signature"


class WebhookView(NamedTuple):
    """A webhook: its path, and when its secret was set. None: it has no secret, so requests need a key."""

    dag: str
    job: str
    path: str
    set_at: datetime | None = None
    previous_until: datetime | None = None


class _Definition(msgspec.Struct, frozen=True):
    source: Source | None = None


class Webhooks:
    """The secrets of webhooks of one database."""

    def __init__(self, engine: Engine) -> None:
        self._store, self._secrets, self._clock = engine.parts.store, engine.parts.secrets, engine.parts.clock

    async def set_secret(
        self, dag: str, job: str, secret: str, *, namespace: str = "default", overlap_s: float = SECRET_OVERLAP_S
    ) -> WebhookView:
        """Set the secret of a webhook. The one before is accepted too, for `overlap_s`. Raises Invalid, NotFound and
        InvalidState."""
        signing_key(secret)
        async with self._store.begin() as tx:
            path = await _path(tx, namespace, dag, job)
            sealed = self._secrets.seal_labelled(secret, _label(namespace, dag, job))
            times = await WebhookTable(tx.session).put(namespace, dag, job, sealed, overlap_s)
        return WebhookView(dag, job, path, *times)

    async def remove_secret(self, dag: str, job: str, *, namespace: str = "default") -> WebhookView:
        """Accept requests with a key only."""
        async with self._store.begin() as tx:
            path = await _path(tx, namespace, dag, job)
            await WebhookTable(tx.session).delete(namespace, dag, job)
        return WebhookView(dag, job, path)

    async def check(self, namespace: str, path: str, headers: Mapping[str, str], body: bytes) -> str:
        """The id of a request to a webhook that is signed with its secret. Raises Unauthenticated, in one way."""
        async with self._store.single() as tx:
            found = await WebhookTable(tx.session).find(namespace, path)
        if found is None:
            raise Unauthenticated(REFUSED)
        label = _label(namespace, found.dag, found.job)
        stored = [each for each in (found.secret, found.previous) if each is not None]
        keys = [signing_key(self._secrets.open_labelled(each, label)) for each in stored]
        now = await self._clock.about_now()
        try:
            return check_signature(keys, headers, body, now.timestamp())
        except Unauthenticated:
            raise Unauthenticated(REFUSED) from None


class _Rows:
    """The secrets of webhooks, for `windlass secrets encrypt` and the doctor."""

    async def load(self, tx: Transaction) -> list[SecretRow]:
        return [
            SecretRow(_label(namespace, dag, job), stored, (namespace, dag, job, is_previous))
            for namespace, dag, job, secret, previous in await WebhookTable(tx.session).lock_all()
            for is_previous, stored in ((False, secret), (True, previous))
            if stored is not None
        ]

    async def write(self, tx: Transaction, row: SecretRow, stored: str) -> None:
        namespace, dag, job, is_previous = row.place
        await WebhookTable(tx.session).rewrite(str(namespace), str(dag), str(job), bool(is_previous), stored)


SECRET_ROWS.append(_Rows())


async def _path(tx: Transaction, namespace: str, dag: str, job: str) -> str:
    """The path of a webhook in the active deployment of a DAG, or in its newest one."""
    dags = DagTable(tx.session)
    found = await dags.get(namespace, dag)
    if found is None:
        raise NotFound(f"there is no DAG {dag} in {namespace}", dag=dag)
    shown = found.active_version or next((one.id for one in await dags.deployments(namespace, dag, None, 1)), None)
    jobs = {} if shown is None else {each.name: each for each in await dags.jobs(shown)}
    if job not in jobs:
        raise NotFound(f"DAG {dag} has no job {job}", job=job)
    source = msgspec.json.decode(jobs[job].definition, type=_Definition).source
    if source is None or source.kind is not SourceKind.WEBHOOK or source.path is None:
        raise InvalidState(f"job {job} is not a webhook", job=job)
    return source.path


def _label(namespace: str, dag: str, job: str) -> str:
    return f"webhook {namespace}/{dag}/{job}"
