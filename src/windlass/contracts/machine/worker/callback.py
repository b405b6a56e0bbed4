"""Reports how the task ended, to the URL that came with it, until the server accepts it or time is up.

A repeated report is harmless. A lost one costs the server a request for the machine's status, so it is logged and
changes nothing. Redirects are not followed: the URL is signed for the server that gave it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from windlass.contracts.machine.worker.job import Job
from windlass.contracts.machine.worker.send import AGENT
from windlass.net.backoff import Transient
from windlass.net.http import Client

ERROR_MAX = 4_000
log = logging.getLogger("windlass.machine")


def success(job: Job, key: str, name: str, size: int, metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        "task_id": job.task_id,
        "batch_id": job.batch_id,
        "status": "success",
        "output_r2_key": key,
        "output_file_name": name,
        "output_file_size": size,
        "metrics": metrics,
    }


def failure(job: Job, error: str) -> dict[str, Any]:
    """Characters that JSON, a database or a terminal should not get are replaced in the error."""
    text = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in error[:ERROR_MAX])
    return {"task_id": job.task_id, "batch_id": job.batch_id, "status": "error", "error": text}


def call_back(job: Job, report: dict[str, Any], wait: Callable[[float], object] = time.sleep) -> bool:
    """Report how the task ended. Returns whether the server accepted it."""
    headers = {"Content-Type": "application/json"}
    if job.traceparent.isascii() and job.traceparent.isprintable() and job.traceparent:
        headers["traceparent"] = job.traceparent
    with closing(Client(timeout_s=job.callback_timeout_s, agent=AGENT, proxies=True)) as client:
        try:
            reply = client.persist(
                "POST", job.callback_url, headers=headers, body=msgspec.json.encode(report),
                until=time.monotonic() + job.callback_retry_s, wait=wait,
            )  # fmt: skip
        except Transient as error:
            log.warning("the callback was not delivered: %s", error)
            return False
    if reply.status >= 300:
        log.warning("the callback was refused: %s %s", reply.line, reply.content[:300].decode("utf-8", "replace"))
    return reply.status < 300
