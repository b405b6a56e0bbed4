"""The environment of a machine, read and checked. Values that are secret appear in no message.

| variable | |
| --- | --- |
| TASK_ID, PI, CALLBACK_URL | required; PI may be absent if there is a PAYLOAD |
| EXPORT_OPTIONS | a JSON object; {} if absent |
| R2_ACCOUNT_ID, R2_ACCESS_KEY_ID, R2_SECRET_ACCESS_KEY | upload to R2, or to Amazon S3 if the account is `none` |
| R2_ENDPOINT, R2_REGION, R2_SESSION_TOKEN | another S3; region `auto` for R2, else `us-east-1`; for temporary keys |
| UPLOAD_URL | without these keys: PUT the result to the server; the file name goes before the `?` |
| PAYLOAD, PAYLOAD_URL | the payload of the task as JSON, or the URL to GET it from |
| BATCH_ID, EXPORT_FORMAT, R2_BUCKET, R2_PREFIX | default: `default`, `mods`, `arke-exports`, none |
| TASK_ATTEMPT, TRACEPARENT, FLY_MACHINE_ID | the attempt (default 1), the parent trace, the name in the log |
| UPLOAD_TIMEOUT_MS, CALLBACK_TIMEOUT_MS, CALLBACK_PATIENCE_MS | 120000; 10000 per call; 60000 for all its retries |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from windlass.contracts.machine.worker.job import Job, Misconfigured
from windlass.contracts.machine.worker.store import Bucket, ObjectStore, SignedUrl

TASK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")
REQUIRED = ("TASK_ID", "PI", "CALLBACK_URL")
BUCKET = ("R2_ACCOUNT_ID", "R2_ACCESS_KEY_ID", "R2_SECRET_ACCESS_KEY")
KEYS = ("R2_SECRET_ACCESS_KEY", "R2_ACCESS_KEY_ID", "R2_SESSION_TOKEN")
URLS = ("UPLOAD_URL", "CALLBACK_URL", "PAYLOAD_URL")


def read(environ: Mapping[str, str]) -> Job:
    """Read the job. Raises Misconfigured with all missing variables, or with the first wrong value."""
    has_payload = environ.get("PAYLOAD") or environ.get("PAYLOAD_URL")
    missing = [name for name in REQUIRED if not environ.get(name) and not (name == "PI" and has_payload)]
    store = _store(environ)
    if store is None:
        missing += [name for name in BUCKET if not environ.get(name)]
    if missing or store is None:
        raise Misconfigured(f"Missing required environment variables: {', '.join(missing)}")
    if not TASK_ID.fullmatch(environ["TASK_ID"]):
        raise Misconfigured("TASK_ID is not a valid task id")
    _check_url("CALLBACK_URL", environ["CALLBACK_URL"])
    return Job(
        task_id=environ["TASK_ID"],
        pi=environ.get("PI", ""),
        callback_url=environ["CALLBACK_URL"],
        store=store,
        options=_options(environ.get("EXPORT_OPTIONS") or "{}"),
        format=environ.get("EXPORT_FORMAT") or "mods",
        batch_id=environ.get("BATCH_ID") or "default",
        machine_id=environ.get("FLY_MACHINE_ID") or "local",
        traceparent=environ.get("TRACEPARENT", ""),
        attempt=int(environ["TASK_ATTEMPT"]) if environ.get("TASK_ATTEMPT", "").isdigit() else 1,
        upload_timeout_s=_seconds(environ, "UPLOAD_TIMEOUT_MS", 120_000),
        callback_timeout_s=_seconds(environ, "CALLBACK_TIMEOUT_MS", 10_000),
        callback_retry_s=_seconds(environ, "CALLBACK_PATIENCE_MS", 60_000),
        settings=dict(environ),
    )


def minimal_job(environ: Mapping[str, str]) -> Job | None:
    """A job that can only call back, for an environment that cannot be read. The URL's path ends with the task id."""
    try:
        url = environ.get("CALLBACK_URL", "")
        _check_url("CALLBACK_URL", url)
    except Misconfigured:
        return None
    text, path = environ.get("TASK_ID", ""), unquote(urlsplit(url).path.rpartition("/")[2])
    return Job(
        task_id=text if TASK_ID.fullmatch(text) else path,
        pi="",
        callback_url=url,
        store=SignedUrl(url),
        batch_id=environ.get("BATCH_ID") or "default",
    )


def secrets(environ: Mapping[str, str]) -> list[str]:
    """Values that must not appear in logs or messages: keys, and the signatures of URLs."""
    keys = [environ.get(name, "") for name in KEYS]
    signed = [environ.get(name, "").partition("?")[2] for name in URLS]
    parts = [part.partition("=")[2] for query in signed for part in query.split("&")]
    return sorted({value for value in [*keys, *signed, *parts] if len(value) >= 4}, key=len, reverse=True)


def _store(environ: Mapping[str, str]) -> ObjectStore | None:
    """The bucket if all its keys are set, since an upload then bypasses the server; otherwise UPLOAD_URL."""
    key, secret = environ.get("R2_ACCESS_KEY_ID"), environ.get("R2_SECRET_ACCESS_KEY")
    account, endpoint = environ.get("R2_ACCOUNT_ID"), environ.get("R2_ENDPOINT")
    if key and secret and (account or endpoint):
        of_r2 = not endpoint and account != "none"
        region = environ.get("R2_REGION") or ("auto" if of_r2 else "us-east-1")
        amazon, r2 = f"https://s3.{region}.amazonaws.com", f"https://{account}.r2.cloudflarestorage.com"
        endpoint = endpoint or (r2 if of_r2 else amazon)
        _check_url("R2_ENDPOINT", endpoint)
        return Bucket(
            endpoint.rstrip("/"),
            environ.get("R2_BUCKET") or "arke-exports",
            key,
            secret,
            region,
            environ.get("R2_PREFIX", "").strip("/"),
            environ.get("R2_SESSION_TOKEN", ""),
        )
    if url := environ.get("UPLOAD_URL"):
        _check_url("UPLOAD_URL", url)
        return SignedUrl(url)
    return None


def _options(text: str) -> dict[str, Any]:
    try:
        options = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Misconfigured(f"EXPORT_OPTIONS is not JSON: {error}") from None
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise Misconfigured("EXPORT_OPTIONS must be a JSON object")
    return options


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or 1) and not re.search(r"\s", url)
    except ValueError:
        good = False
    if not good:
        raise Misconfigured(f"{name} must be an http or https URL")


def _seconds(environ: Mapping[str, str], name: str, default_ms: int) -> float:
    text = environ.get(name) or str(default_ms)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 86_400_000):
        raise Misconfigured(f"{name} must be a number of milliseconds, at most 86400000")
    return int(text) / 1000
