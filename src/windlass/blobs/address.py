"""Parses the URL of a blob store.

    file:///var/lib/windlass/blobs      a folder; a plain path means the same
    memory://                           this process only, for tests
    s3://bucket/prefix                  Amazon S3; with ?endpoint=… compatible stores: R2, MinIO, Ceph, rclone
    gs://bucket/prefix                  Google Cloud Storage
    az://container/prefix?account_name=…  Azure Blob Storage

Credentials come from the sources that each vendor's tools use (AWS_…, GOOGLE_…, AZURE_… variables, the role of the
machine), or from KEY:SECRET@ before the bucket. The query holds options of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from windlass.engine.payloads.blob_port import check_key
from windlass.errors import Invalid

SCHEMES = "file:///FOLDER, memory://, s3://BUCKET, gs://BUCKET or az://CONTAINER"
_LOGIN = {"s3": ("access_key_id", "secret_access_key"), "az": ("account_name", "account_key")}
_SECRET = ("key", "token", "secret", "sas", "password", "credential")


class Address(NamedTuple):
    """`place` is a folder, a bucket or a container; `options` are those of the driver."""

    scheme: str
    place: str
    prefix: str
    options: Mapping[str, str]

    @property
    def shown(self) -> str:
        """The URL without secrets."""
        if self.scheme == "file":
            return f"file://{quote(self.place)}"
        query = "&".join(
            f"{name}={quote(value, safe=':/')}"
            for name, value in sorted(self.options.items())
            if not any(word in name.lower() for word in _SECRET)
        )
        return f"{self.scheme}://{self.place}{'/' if self.prefix else ''}{self.prefix}{'?' if query else ''}{query}"

    @property
    def root(self) -> str:
        """The URL under which other programs find the objects: without options and credentials."""
        if self.scheme == "file":
            return self.shown
        return f"{self.scheme}://{self.place}{'/' if self.prefix else ''}{self.prefix}"


def read_address(url: object) -> Address:
    """Raises Invalid for a URL that names no store."""
    if not isinstance(url, str) or not url or not url.isprintable():
        raise Invalid(f"must be a URL: {SCHEMES}", field="blobs")
    if "://" not in url:
        return _folder(url)
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise Invalid(f"cannot be read: {error}", field="blobs") from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.strip("/"):
            raise Invalid("a folder must be written as file:///PATH", field="blobs")
        return _folder(unquote(parts.path))
    if parts.scheme == "memory":
        return Address("memory", "", "", {})
    if parts.scheme not in {"s3", "gs", "az"} or not parts.hostname:
        raise Invalid(f"must be one of {SCHEMES}", field="blobs")
    prefix = unquote(parts.path).strip("/")
    if prefix:
        check_key(prefix, "blobs")
    login: dict[str, str] = {}
    if parts.username is not None:
        if parts.scheme not in _LOGIN or parts.password is None:
            raise Invalid("credentials must be s3://KEY:SECRET@BUCKET or az://ACCOUNT:KEY@CONTAINER", field="blobs")
        user, password = _LOGIN[parts.scheme]
        login = {user: unquote(parts.username), password: unquote(parts.password)}
    return Address(parts.scheme, parts.netloc.rpartition("@")[2], prefix, {**login, **options})


def _folder(path: str) -> Address:
    return Address("file", str(Path(path).expanduser().absolute()), "", {})
