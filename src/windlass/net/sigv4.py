"""Signature Version 4, with which S3 and compatible stores (R2, MinIO, …) authenticate a request.

Standard library only: programs on machines are installed without boto3 and obstore. Tested with the examples that
Amazon publishes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

EMPTY = hashlib.sha256(b"").hexdigest()


class Keys(NamedTuple):
    """The credentials that sign, and the region."""

    access_key: str
    secret_key: str
    region: str = "auto"
    session_token: str = ""

    def __repr__(self) -> str:
        return "Keys(…)"  # keeps secrets out of messages and traces


def sign(
    method: str,
    url: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    digest: str,
    keys: Keys,
    *,
    at: datetime,
    service: str = "s3",
) -> dict[str, str]:
    """The headers of the request, including its signature."""
    where, moment = urlsplit(url), at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{keys.region}/{service}/aws4_request"
    sent = {**headers, "Host": where.netloc, "x-amz-content-sha256": digest, "x-amz-date": moment}
    if keys.session_token:
        sent["x-amz-security-token"] = keys.session_token
    lower = {name.lower(): " ".join(value.split()) for name, value in sent.items()}
    lower.pop("content-length", None)  # proxies may change it
    names = ";".join(sorted(lower))
    lines = "".join(f"{name}:{lower[name]}\n" for name in sorted(lower))
    canonical = "\n".join([method, where.path or "/", canonical_query(query), lines, names, digest])
    to_sign = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret_key}".encode()
    for part in (moment[:8], keys.region, service, "aws4_request", to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential={keys.access_key}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return {**sent, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}


def canonical_query(query: Mapping[str, str]) -> str:
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
