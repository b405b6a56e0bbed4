"""Signatures of pushes, as in Standard Webhooks: HMAC-SHA256 over the id, the time and the body.

A secret is `whsec_` and base64. During a rotation the sender signs with both secrets, and the receiver accepts either.
A signature that is too old or too new is refused, since the message may be a replay.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from windlass.errors import Invalid, Unauthenticated

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
PREFIX = "whsec_"
TOLERANCE_S = 300
KEY_MIN_BYTES = 16


def signing_key(secret: str) -> bytes:
    """The key in a secret. Raises Invalid."""
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise Invalid(f"must be text that begins with {PREFIX}", field="secret")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"must be {PREFIX} and base64", field="secret") from None
    if len(key) < KEY_MIN_BYTES:
        raise Invalid(f"has {len(key)} bytes, at least {KEY_MIN_BYTES} are needed", field="secret")
    return key


def signed_headers(secrets: Sequence[str], message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The headers of a signed push, with one signature for each secret."""
    made = " ".join(f"v1,{_signature(signing_key(secret), message_id, str(at_s), body)}" for secret in secrets)
    return {ID: message_id, TIMESTAMP: str(at_s), SIGNATURE: made}


def check_signature(
    keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now_s: float, tolerance_s: float = TOLERANCE_S
) -> str:
    """The id of the message, if one of the keys has signed it. `headers` have names in lower case."""
    message_id, at, signatures = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (message_id and at and signatures):
        raise Unauthenticated("the request is not signed")
    if not (at.isascii() and at.isdigit() and len(at) < 16) or abs(now_s - int(at)) > tolerance_s:
        raise Unauthenticated("the time of the signature is too far from now")
    given = [part.removeprefix("v1,").encode() for part in signatures.split() if part.startswith("v1,")]
    wanted = [_signature(key, message_id, at, body).encode() for key in keys]
    if not any([hmac.compare_digest(ours, theirs) for ours in wanted for theirs in given]):  # noqa: C419 (all are compared)
        raise Unauthenticated("the signature does not match")
    return message_id


def _signature(key: bytes, message_id: str, at: str, body: bytes) -> str:
    content = b".".join((message_id.encode(), at.encode(), body))
    return base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
