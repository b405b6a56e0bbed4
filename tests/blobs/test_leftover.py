"""Parts of uploads that broke off: found page by page, given up, or said why not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from windlass import Unavailable
from windlass.blobs.leftover import Leftovers, find_leftovers
from windlass.net.server.server import listening
from windlass.net.sigv4 import Keys

KEYS = Keys("K", "S" * 20)


class Bucket:
    """A bucket that answers as it is told; what it was asked is kept."""

    def __init__(self) -> None:
        self.state = self
        self.closing = asyncio.Event()
        self.asked: list[tuple[str, str, str]] = []
        self.answers: list[tuple[int, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.append((scope["method"], scope["path"], scope["query_string"].decode()))
        assert dict(scope["headers"])[b"authorization"].startswith(b"AWS4-HMAC-SHA256 Credential=K/")
        status, body = self.answers.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


@pytest.fixture
async def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
async def leftovers(bucket: Bucket) -> AsyncIterator[Leftovers]:
    async with listening(bucket, "127.0.0.1", 0) as url:
        yield Leftovers(f"{url}/b", "ours", KEYS)


def page(*uploads: tuple[str, str], more: str = "") -> tuple[int, str]:
    listed = "".join(f"<Upload>\n<Key>{key}</Key><UploadId>{id_}</UploadId></Upload>" for key, id_ in uploads)
    return 200, f"<ListMultipartUploadsResult>{listed}{more}</ListMultipartUploadsResult>"


async def test_pages_are_read_to_the_last_and_names_are_escaped(bucket: Bucket, leftovers: Leftovers) -> None:
    after = "<NextKeyMarker>ours/a/&amp;</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker>"
    more = f"<IsTruncated>true</IsTruncated>{after}"
    bucket.answers = [
        page(("ours/a/1 &amp; 2.xml", "u+/&amp;1"), ("theirs/a/1.xml", "u2"), more=more),
        page(("ours/a/2.xml", "u3")), (204, ""), (404, "<Error><Code>NoSuchUpload</Code></Error>"),
    ]  # fmt: skip

    assert await leftovers.give_up("a/") == 2
    assert bucket.asked == [
        ("GET", "/b/", "prefix=ours%2Fa%2F&uploads="),
        ("GET", "/b/", "key-marker=ours%2Fa%2F%26&prefix=ours%2Fa%2F&upload-id-marker=1&uploads="),
        ("DELETE", "/b/ours/a/1 & 2.xml", "uploadId=u%2B%2F%261"),
        ("DELETE", "/b/ours/a/2.xml", "uploadId=u3"),
    ]


async def test_a_key_is_that_key_alone(bucket: Bucket, leftovers: Leftovers) -> None:
    bucket.answers = [page(("ours/a.xml", "1"), ("ours/a.xml.b", "2"), ("ours/a.xml", "3")), (204, ""), (204, "")]

    assert await leftovers.give_up("a.xml") == 2
    assert [query for method, _, query in bucket.asked if method == "DELETE"] == ["uploadId=1", "uploadId=3"]


async def test_a_bucket_that_says_that_there_is_no_upload_has_none(bucket: Bucket, leftovers: Leftovers) -> None:
    bucket.answers = [(404, "<Error><Code>NoSuchUpload</Code></Error>")] * 2

    assert await leftovers.give_up("a/") == 0
    assert await leftovers.problem() is None


@pytest.mark.parametrize("status", [400, 403, 404, 405, 501])
async def test_a_store_that_does_not_list_them_is_told_of_once_and_stops_nothing(
    bucket: Bucket, leftovers: Leftovers, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.answers = [(status, "<Error><Code>No</Code><Message>S</Message></Error>")] * 3

    with caplog.at_level(logging.WARNING):
        assert [await leftovers.give_up("a/") for _ in range(2)] == [0, 0]

    assert [record.message for record in caplog.records] == [
        f"unfinished uploads stay in the bucket: 127.0.0.1: the answer to GET is {status} No"
    ]
    assert await leftovers.problem() == f"127.0.0.1: the answer to GET is {status} No"


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_store_that_may_answer_later_is_away(bucket: Bucket, leftovers: Leftovers, status: int) -> None:
    bucket.answers = [(status, "")]

    with pytest.raises(Unavailable, match=str(status)):
        await leftovers.give_up("a/")


async def test_nobody_there_is_away() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        await Leftovers("http://127.0.0.1:1/b", "", KEYS).give_up("a/")


@pytest.mark.parametrize(
    ("config", "base"),
    [
        ({}, "https://s3.us-east-1.amazonaws.com/my-bucket"),
        ({"region": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com/my-bucket"),
        ({"endpoint": "https://x.r2.example/"}, "https://x.r2.example/my-bucket"),
        ({"endpoint": "https://b.example", "virtual_hosted_style_request": True}, "https://b.example"),
        ({"virtual_hosted_style_request": "true"}, "https://s3.us-east-1.amazonaws.com/my-bucket"),
    ],
)
def test_where_a_bucket_is(config: dict[str, object], base: str) -> None:
    found = find_leftovers("my-bucket", "p", {"access_key_id": "K", "secret_access_key": "S", **config}, {})

    assert isinstance(found, Leftovers)
    assert found._base == base


def test_what_the_driver_was_not_told_is_read_from_the_variables_that_it_reads() -> None:
    variables = {
        "AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T", "AWS_REGION": "eu-1",
        "AWS_ENDPOINT_URL": "http://minio:9000",
    }  # fmt: skip
    found = find_leftovers("b", "", {"region": "eu-2"}, variables)

    assert isinstance(found, Leftovers)
    assert (found._base, found._keys) == ("http://minio:9000/b", Keys("K", "S", "eu-2", "T"))


def test_where_they_cannot_be_found_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "keys" in str(find_leftovers("b", "", {"region": "eu-west-1"}, {}))
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert "proxy" in str(find_leftovers("b", "", {"access_key_id": "K", "secret_access_key": "S"}, {}))
