"""Webhooks: other systems start a task of a source by a request to a path that its DAG file names.

The sender needs a key of a submitter, or signs with the secret of the webhook as in Standard Webhooks. The task gets
the request without its credentials.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Any

from windlass.api.framework.request import KEY_HEADER_MAX, KEY_PATTERN, Request
from windlass.api.framework.route import Call, Table
from windlass.api.routes.dag_forms import StartedForm
from windlass.core.access import Principal, Role
from windlass.core.validation import check_name
from windlass.datasets.sources import Sources
from windlass.datasets.webhooks import Webhooks
from windlass.errors import Invalid, NotFound
from windlass.net.signature import ID, SIGNATURE, TIMESTAMP

table = Table("hooks")

BODY_MAX_BYTES = 1024 * 1024
PATH = re.compile(r"[a-z0-9][a-z0-9/_-]{0,127}")
CREDENTIALS = frozenset({b"authorization", b"proxy-authorization", b"cookie", SIGNATURE.encode()})
SIGNER = Principal("webhook", Role.SUBMITTER)


def _signer(request: Request[Any, Any]) -> Principal | None:
    return SIGNER if request.header(SIGNATURE) is not None else None


@table.add(
    "POST", "/hooks/{namespace}/{path}", Role.SUBMITTER, status=202, headers=(ID, TIMESTAMP, SIGNATURE), rest=True,
    body_max_bytes=BODY_MAX_BYTES, signer=_signer, errors=(400, 401, 403, 404, 409, 413, 422, 429, 503),
)  # fmt: skip
async def receive_webhook(call: Call[None, bytes]) -> StartedForm:
    """Start a task of the source with this path. The path may have slashes, the body may be anything of at most 1 MiB.
    The same `webhook-id` again is the same task. A request without a key is signed as in Standard Webhooks, at most
    five minutes ago."""
    namespace, path = call.path["namespace"], call.path["path"]
    if call.caller is SIGNER:
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()}
        await call.engine.service(Webhooks).check(namespace, path, texts, call.body)
    else:
        check_name("namespace", namespace)
        call.namespace(namespace)
    if not PATH.fullmatch(path):
        raise NotFound("there is no such webhook")
    headers = _headers(call.headers)
    task_id = await call.engine.service(Sources).receive_webhook(
        namespace, path, id_=_id(call), headers=headers, body=_text(call.body, headers)
    )
    return StartedForm(task_id)


def _id(call: Call[None, bytes]) -> str:
    given = call.header(ID)
    if given is None:
        return call.key or str(call.engine.parts.randomness.new_id())
    if len(given) > KEY_HEADER_MAX or not re.fullmatch(KEY_PATTERN, given):
        raise Invalid(f"must have 1 to {KEY_HEADER_MAX} visible ASCII characters", field=ID)
    return given


def _headers(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """The headers for the task. It is kept in the history, so that credentials must not be part of it."""
    return {
        name.decode("latin-1"): value.decode("latin-1").replace("\x00", "")
        for name, value in headers.items()
        if name not in CREDENTIALS
    }


def _text(body: bytes, headers: dict[str, str]) -> str:
    """The body as text. A body that is not text is written in base64, and a header says so, as in MIME."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" not in text:  # which PostgreSQL cannot store
        return text
    headers["content-transfer-encoding"] = "base64"
    return base64.b64encode(body).decode()
