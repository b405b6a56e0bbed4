"""Delivers pushes through Google Cloud Tasks, with its REST API.

A delivery is a task in a Cloud Tasks queue. Its name is made from the attempt, so creating it twice creates one task.
Cloud Tasks then sends the worker the same request that we would send.
"""

from __future__ import annotations

import base64
import math
import time
from typing import Any

import msgspec

from windlass.contracts.callback.delivery import CloudTasks, Push
from windlass.contracts.callback.wire.names import cloud_task_id
from windlass.engine.send.outbox import NotNow
from windlass.net.push import post

ENDPOINT = "https://cloudtasks.googleapis.com"
METADATA_URL = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
TIMEOUT_S = 10.0
BUSY = frozenset({429, 503})
BUSY_AGAIN_S = 2.0
TOKEN_SPARE_S = 60.0


class NotCreated(Exception):
    """Cloud Tasks did not accept the task."""


class CloudTasksCarrier:
    """Hands pushes to Cloud Tasks. `token` is for Google's API; without one, that of the machine's own account is
    used."""

    def __init__(self, token: str | None, *, endpoint: str = ENDPOINT) -> None:
        self._token, self._until_s = token or "", math.inf if token is not None else 0.0
        self._endpoint = endpoint.rstrip("/")

    async def __call__(self, push: Push, message_id: str, headers: dict[str, str], body: bytes) -> None:
        via = push.cloud_tasks
        assert via is not None, push
        queue = f"projects/{via.project}/locations/{via.location}/queues/{via.queue}"
        reply = await post(
            f"{self._endpoint}/v2/{queue}/tasks",
            {"Content-Type": "application/json", "Authorization": f"Bearer {await self._access_token()}"},
            msgspec.json.encode({"task": cloud_task(via, queue, push.url, message_id, headers, body)}),
            timeout_s=TIMEOUT_S,
            targets=None,
        )
        # A name in use (409) means that an earlier try of ours created the task.
        if 200 <= reply.status < 300 or reply.status == 409:
            return
        if reply.status in BUSY:
            raise NotNow(f"Cloud Tasks answered {reply.status}", BUSY_AGAIN_S)
        raise NotCreated(f"Cloud Tasks answered {reply.status}: {reply.body[:300].decode('utf-8', 'replace')}")

    async def _access_token(self) -> str:
        """The token for Google's API. One from the metadata server is kept until shortly before it expires."""
        if time.monotonic() >= self._until_s:
            headers = {"Metadata-Flavor": "Google"}
            reply = await post(METADATA_URL, headers, b"", timeout_s=TIMEOUT_S, method="GET", targets=None)
            if reply.status != 200:
                raise NotCreated(f"the metadata server answered {reply.status}")
            answer = msgspec.json.decode(reply.body, type=_TokenAnswer)
            self._token = answer.access_token
            self._until_s = time.monotonic() + answer.expires_in - TOKEN_SPARE_S
        return self._token


def cloud_task(
    via: CloudTasks, queue: str, url: str, message_id: str, headers: dict[str, str], body: bytes
) -> dict[str, Any]:
    """The task to create, as in Google's API."""
    content = base64.b64encode(body).decode()
    request: dict[str, Any] = {"url": url, "httpMethod": "POST", "headers": headers, "body": content}
    if via.service_account_email is not None:
        request["oidcToken"] = {"serviceAccountEmail": via.service_account_email, "audience": via.audience or url}
    return {
        "name": f"{queue}/tasks/{cloud_task_id(message_id)}",
        "httpRequest": request,
        "dispatchDeadline": f"{via.dispatch_deadline_s}s",
    }


class _TokenAnswer(msgspec.Struct):
    access_token: str
    expires_in: float
