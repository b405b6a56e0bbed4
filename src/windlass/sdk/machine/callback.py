"""Says how the task ended, to the URL that came with it, until somebody has heard it or patience ends.

To repeat it is harmless, to lose it costs the server a look at the machine. So a callback that is not heard is logged
and changes nothing. Redirects are not followed: the URL is signed for the server that gave it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from windlass.sdk.machine.http import Client, Reply
from windlass.sdk.machine.job import Job
from windlass.sdk.machine.patience import Transient, persist

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
    """What no JSON, no database and no terminal should see is left out of the error, whoever put it there."""
    told = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in error[:ERROR_MAX])
    return {"task_id": job.task_id, "batch_id": job.batch_id, "status": "error", "error": told}


def call_back(job: Job, report: dict[str, Any], wait: Callable[[float], object] = time.sleep) -> bool:
    """Whether it was heard."""
    body, client = msgspec.json.encode(report), Client(timeout_s=job.callback_timeout_s)
    headers = {"Content-Type": "application/json"}
    if job.traceparent.isascii() and job.traceparent.isprintable() and job.traceparent:
        headers["traceparent"] = job.traceparent

    def once() -> Reply:
        reply = client.request("POST", job.callback_url, headers=headers, body=body)
        if reply.passing:
            raise Transient(reply.line, reply.retry_after_s)
        return reply

    try:
        reply = persist(once, until=time.monotonic() + job.callback_patience_s, wait=wait)
    except Transient as error:
        log.warning("the callback was not heard: %s", error)
        return False
    finally:
        client.close()
    if reply.status >= 300:
        said = (reply.body or b"")[:300].decode("utf-8", "replace")
        log.warning("the callback was refused: %s %s", reply.line, said)
    return reply.status < 300
