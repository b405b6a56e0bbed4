"""Which blob store a URL names."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass import Invalid
from windlass.blobs.address import read_address
from windlass.blobs.object_store import open_store


@pytest.mark.parametrize(
    ("url", "scheme", "place", "prefix", "shown"),
    [
        ("file:///srv/blobs", "file", "/srv/blobs", "", "file:///srv/blobs"),
        ("file:///srv/my%20blobs/", "file", "/srv/my blobs", "", "file:///srv/my%20blobs"),
        ("/srv/blobs", "file", "/srv/blobs", "", "file:///srv/blobs"),
        ("blobs", "file", str(Path("blobs").absolute()), "", f"file://{Path('blobs').absolute()}"),
        ("memory://", "memory", "", "", "memory://"),
        ("s3://bucket", "s3", "bucket", "", "s3://bucket"),
        ("s3://bucket/a/b/", "s3", "bucket", "a/b", "s3://bucket/a/b"),
        ("s3://K:S%2F@bucket/a?endpoint=https://x.r2.example&region=auto", "s3", "bucket", "a",
         "s3://bucket/a?endpoint=https://x.r2.example&region=auto"),
        ("s3://bucket?access_key_id=K&secret_access_key=S", "s3", "bucket", "", "s3://bucket"),
        ("gs://bucket/p", "gs", "bucket", "p", "gs://bucket/p"),
        ("az://acct:a2V5@container/p", "az", "container", "p", "az://container/p?account_name=acct"),
    ],
)  # fmt: skip
def test_a_url_names_a_store(url: str, scheme: str, place: str, prefix: str, shown: str) -> None:
    address = read_address(url)

    assert (address.scheme, address.place, address.prefix, address.shown) == (scheme, place, prefix, shown)


def test_credentials_are_read_from_the_url() -> None:
    assert read_address("s3://K:S%2F%2B@bucket").options == {"access_key_id": "K", "secret_access_key": "S/+"}
    assert read_address("az://acct:a2V5@c").options == {"account_name": "acct", "account_key": "a2V5"}


@pytest.mark.parametrize(
    "url",
    ["", "ftp://x/y", "s3://", "s3:///bucket", "file://host/x", "file:///", "gs://K:S@bucket", "s3://bucket/../x", "s3://K@b",
     "s3://b?x", "s3://b\n", 7, None],
)  # fmt: skip
def test_what_names_no_store_is_refused(url: object) -> None:
    with pytest.raises(Invalid) as caught:
        read_address(url)
    assert caught.value.field == "blobs"


@pytest.mark.parametrize(
    "url",
    ["s3://K:S@bucket/p?region=eu-west-1", "gs://bucket/p?skip_signature=true", "az://acct:a2V5@container/p"],
)  # fmt: skip
def test_every_cloud_can_be_named(url: str) -> None:
    assert open_store(url).url.startswith(url[:5])


def test_an_option_that_no_driver_knows_is_refused() -> None:
    with pytest.raises(Invalid, match="nonsense"):
        open_store("s3://K:S@bucket?nonsense=1")
