"""Checks a database, its carriers, its blob store, its lake and its secrets, and gives advice for each finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.blobs.address import read_address
from windlass.core.delivery import type_of
from windlass.datasets.doctor import examine_builds, examine_data, examine_lake
from windlass.engine.payloads.blob_port import Blobs
from windlass.engine.payloads.objects import examine_objects
from windlass.engine.read.doctor import Finding, diagnose
from windlass.engine.secrets import Secrets, examine_secrets
from windlass.errors import Unavailable
from windlass.serve import CONTRACTS, checked_url, open_blobs, read_cipher
from windlass.store.health import read_vitals
from windlass.store.store import Store

if TYPE_CHECKING:
    from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions


async def examine(
    database_url: str,
    *,
    local_s: float,
    pooled: bool = False,
    carriers: CarrierOptions | None = None,
    blobs: str | None = None,
    lake: str | None = None,
    secret_keys: str | None = None,
    data_database_url: str | None = None,
) -> list[Finding]:
    """Returns the findings, each with advice. `local_s` is the clock of this machine."""
    vitals = await read_vitals(checked_url(database_url))
    found = diagnose(vitals, pooled=pooled, local_s=local_s)
    if vitals.schema is not None:
        return found
    store = Store(database_url, pooled=pooled)
    try:
        if "lease" in CONTRACTS:
            found += await _examine_carriers(store, carriers)
        found += await examine_builds(store)
        found += await examine_data(store, data_database_url or database_url, pooled=pooled and not data_database_url)
        cipher = read_cipher(secret_keys)
        secrets = examine_secrets(await Secrets(store, cipher).count(), encrypted=cipher is not None)
        kept = [
            await examine_objects(store, *_opening(blobs)),
            await examine_lake(store, *_opening(lake)),
        ]
        return [*found, *kept, secrets]
    finally:
        await store.close()


async def _examine_carriers(store: Store, carriers: CarrierOptions | None) -> list[Finding]:
    from windlass.contracts.lease.delivery import Invoke, Wakeup
    from windlass.contracts.lease.wakeups.carriers.options import NO_CARRIERS
    from windlass.contracts.lease.wakeups.doctor import examine_carriers
    from windlass.contracts.lease.wakeups.table import WakeupTable

    async with store.begin() as tx:
        queues = await tx.queues.queues_delivered([type_of(Wakeup), type_of(Invoke)])
        dead = await WakeupTable(tx.session).count_dead_messages()
    return await examine_carriers([settings.delivery for settings in queues.values()], dead, carriers or NO_CARRIERS)


def _opening(url: str | None) -> tuple[Callable[[], Blobs] | None, str]:
    """Opens a store without making its folder, and its URL without secrets."""
    if url is None:
        return None, ""
    address = read_address(url)

    def open_() -> Blobs:
        if address.scheme == "file" and not Path(address.place).is_dir():
            raise Unavailable(f"there is no folder {address.place}")
        return open_blobs(url)()

    return open_, address.shown
