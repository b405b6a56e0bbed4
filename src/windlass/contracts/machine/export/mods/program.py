"""The program `windlass-export-mods`: one task in the environment of its machine, as `windlass.sdk.machine` reads it.

It reads entities from WINDLASS_MODS_API_URL and WINDLASS_MODS_GATEWAY_URL. Records link to WINDLASS_MODS_WEB_URL.
"""

from __future__ import annotations

import ctypes
import importlib.util
from contextlib import suppress
from datetime import UTC, datetime
from typing import NoReturn
from urllib.parse import urlsplit

from windlass.contracts.machine.export.mods.crosswalk import Addresses
from windlass.contracts.machine.export.mods.entity import PI
from windlass.contracts.machine.export.mods.options import Options
from windlass.contracts.machine.export.mods.source import Source
from windlass.contracts.machine.worker.job import ExportError, Job
from windlass.contracts.machine.worker.run import main as run_export

ADDRESSES = {
    "WINDLASS_MODS_API_URL": "https://api.arke.institute",
    "WINDLASS_MODS_GATEWAY_URL": "https://ipfs.arke.institute",
    "WINDLASS_MODS_WEB_URL": "https://arke.institute",
}
FORMAT = "mods"
M_MMAP_THRESHOLD = -3  # of mallopt(3)


def main() -> NoReturn:
    # Fix the mmap threshold. Otherwise glibc raises it, and keeps large blocks for each of many threads.
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 * 1024)
    run_export(export)


def export(job: Job) -> dict[str, int]:
    """Export one entity or a tree. Raises ExportError if the entity, or the root of the tree, cannot be read."""
    if importlib.util.find_spec("lxml") is None:
        raise ExportError("lxml is not installed on this machine: pip install 'windlass-engine[mods]'")
    from windlass.contracts.machine.export.mods.record import EntityFailed, Frame
    from windlass.contracts.machine.export.mods.tree import export_one, export_tree

    if job.format != FORMAT:
        raise ExportError(f"EXPORT_FORMAT is {job.format!r}, but this program exports {FORMAT}")
    options = job.read_options(Options)
    addresses = Addresses(*(_address(name, job.settings.get(name) or default) for name, default in ADDRESSES.items()))
    if not PI.fullmatch(job.pi):
        raise ExportError("PI is not a persistent identifier")
    name = f"{job.pi}-collection.xml" if options.recursive else f"{job.pi}.xml"
    output = job.output(name, content_type="application/xml")
    source = Source(addresses.api, addresses.gateway, width=options.at_once)
    with source, output.path.open("wb") as file:
        frame = Frame(source, options, addresses, datetime.now(UTC).date().isoformat())
        try:
            counts = (export_tree if options.recursive else export_one)(frame, job.pi, file)
        except EntityFailed as error:
            raise ExportError(str(error)) from None
    return {
        "entities_exported": counts.exported,
        "entities_failed": counts.failed,
        "entities_incomplete": counts.incomplete,
    }


def _address(name: str, url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.username is None
    except ValueError:
        good = False
    if not good:
        raise ExportError(f"{name} must be an http or https URL")
    return url.rstrip("/")
