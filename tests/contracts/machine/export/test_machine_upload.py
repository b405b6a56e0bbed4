"""Uploads: to a signed URL, and to a real S3 server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.contracts.machine.export.archive import Answer, Archive
from tests.contracts.machine.export.machine import ROOT_PI, TASK, Machine
from tests.contracts.machine.export.samples import simple
from tests.kit.s3 import BUCKET, KEY, SECRET, S3Server, open_s3

from windlass.contracts.machine.export.mods.program import export
from windlass.contracts.machine.worker import environment, s3
from windlass.contracts.machine.worker.send import Refused
from windlass.contracts.machine.worker.store import Bucket, SignedUrl, UploadFailed, upload
from windlass.net import sigv4

pytestmark = pytest.mark.slow

NAME = f"exports/{TASK}/some file (1).xml"


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    with open_s3() as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.xml"
    path.write_bytes(os.urandom(3_000_000))
    return path


def bucket(store: S3Server, secret: str = SECRET, name: str = BUCKET, prefix: str = "") -> Bucket:
    return Bucket(store.endpoint, name, KEY, secret, "auto", prefix)


def content(store: S3Server, key: str) -> bytes:
    return (store.folder / BUCKET / key).read_bytes()


# --------------------------------------------------------------------------------------------- S3


def test_a_signature_is_the_one_that_amazon_publishes_as_an_example() -> None:
    moment = datetime(2013, 5, 24, tzinfo=UTC)
    keys = sigv4.Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1")
    host = "https://examplebucket.s3.amazonaws.com"

    got = sigv4.sign("GET", f"{host}/test.txt", {}, {"Range": "bytes=0-9"}, sigv4.EMPTY, keys, at=moment)
    digest = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
    sent = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}
    put = sigv4.sign("PUT", f"{host}/test%24file.text", {}, sent, digest, keys, at=moment)
    listed = sigv4.sign("GET", f"{host}/", {"max-keys": "2", "prefix": "J"}, {}, sigv4.EMPTY, keys, at=moment)

    assert [signed["Authorization"].rpartition("=")[2] for signed in (got, put, listed)] == [
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ]


def test_a_file_is_stored_under_its_key(store: S3Server, file: Path) -> None:
    upload(bucket(store), NAME, file, "application/xml", timeout_s=60)

    assert content(store, NAME) == file.read_bytes()


def test_a_bucket_may_be_used_below_a_prefix(store: S3Server, file: Path) -> None:
    upload(bucket(store, prefix="team/a"), "exports/x/y.xml", file, "application/xml", timeout_s=60)

    assert content(store, "team/a/exports/x/y.xml") == file.read_bytes()


def test_a_large_file_is_stored_in_parts(store: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(12_000_001))

    sender = s3.Upload(store.endpoint, BUCKET, sigv4.Keys(KEY, SECRET), time.monotonic() + 60)
    sender.send("exports/x/large.bin", path, "text/plain", whole_max_bytes=1_000_000, part_bytes=5 * 1024 * 1024)

    assert content(store, "exports/x/large.bin") == path.read_bytes()


@pytest.mark.parametrize("whole_max_bytes", [10_000_000, 1], ids=["whole", "in parts"])
def test_a_store_that_was_away_is_found_again(file: Path, whole_max_bytes: int) -> None:
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            away.start()

    with open_s3() as away:
        away.stop()
        sender = s3.Upload(away.endpoint, BUCKET, sigv4.Keys(KEY, SECRET), time.monotonic() + 60, wait)
        sender.send("exports/x/y", file, "text/plain", whole_max_bytes=whole_max_bytes, part_bytes=5 * 1024 * 1024)

        assert content(away, "exports/x/y") == file.read_bytes()
    assert waited == [pytest.approx(0.425, abs=0.076), pytest.approx(0.85, abs=0.151)]


def test_what_is_refused_says_why_and_is_not_tried_again(store: S3Server, file: Path) -> None:
    with pytest.raises(UploadFailed, match=r"Failed to upload exports/.*: 403 Forbidden SignatureDoesNotMatch") as told:
        upload(bucket(store, "another secret"), NAME, file, "application/xml", timeout_s=60)

    assert "another secret" not in str(told.value)
    with pytest.raises(UploadFailed, match="404 Not Found NoSuchBucket"):
        upload(bucket(store, name="nobody"), NAME, file, "application/xml", timeout_s=60)


def test_parts_that_come_to_nothing_are_given_up(archive: Archive, file: Path) -> None:
    path = "/arke-exports/exports/x"
    archive.trouble[path] = [
        Answer(body=b"<R><UploadId>a&amp;b</UploadId></R>"),
        Answer(headers={"ETag": '"1"'}),
        Answer(500, b"<Error><Code>InternalError</Code></Error>"),
        Answer(headers={"ETag": '"2"'}),
        Answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"),
        Answer(204),
    ]
    sender = s3.Upload(archive.url, "arke-exports", sigv4.Keys(KEY, SECRET), time.monotonic() + 60, lambda _: False)

    with pytest.raises(Refused, match="403 Forbidden AccessDenied: no"):
        sender.send("exports/x", file, "text/plain", whole_max_bytes=1, part_bytes=1_000_000)

    asked = [(request.method, request.path.partition("?")[2]) for request in archive.requests]
    part = "partNumber={}&uploadId=a%26b"
    assert asked == [
        ("POST", "uploads="), ("PUT", part.format(1)), ("PUT", part.format(2)), ("PUT", part.format(2)),
        ("PUT", part.format(3)), ("DELETE", "uploadId=a%26b"),
    ]  # fmt: skip


def test_a_store_that_has_forgotten_the_parts_is_sent_them_again(archive: Archive, file: Path) -> None:
    forgotten = Answer(404, b"<Error><Code>NoSuchUpload</Code></Error>")
    begun = [Answer(body=f"<R><UploadId>{n}</UploadId></R>".encode()) for n in range(2)]
    archive.trouble["/b/exports/x"] = [
        begun[0], Answer(headers={"ETag": '"1"'}), forgotten, forgotten,
        begun[1], Answer(headers={"ETag": '"1"'}), Answer(headers={"ETag": '"2"'}), Answer(),
    ]  # fmt: skip

    sender = s3.Upload(archive.url, "b", sigv4.Keys(KEY, SECRET), time.monotonic() + 60)
    sender.send("exports/x", file, "text/plain", whole_max_bytes=1, part_bytes=2_000_000)

    asked = [(request.method, request.path.partition("?")[2]) for request in archive.requests]
    assert asked == [
        ("POST", "uploads="), ("PUT", "partNumber=1&uploadId=0"), ("PUT", "partNumber=2&uploadId=0"),
        ("DELETE", "uploadId=0"),
        ("POST", "uploads="), ("PUT", "partNumber=1&uploadId=1"), ("PUT", "partNumber=2&uploadId=1"),
        ("POST", "uploadId=1"),
    ]  # fmt: skip


def test_a_store_that_forgets_every_time_is_not_asked_for_ever(archive: Archive, file: Path) -> None:
    forgotten, begun = b"<Error><Code>NoSuchUpload</Code></Error>", b"<R><UploadId>u</UploadId></R>"
    archive.trouble["/b/exports/x"] = [Answer(404, forgotten) if n % 3 else Answer(body=begun) for n in range(100)]

    sender = s3.Upload(archive.url, "b", sigv4.Keys(KEY, SECRET), time.monotonic() + 60)
    with pytest.raises(Refused, match="NoSuchUpload"):
        sender.send("exports/x", file, "text/plain", whole_max_bytes=1, part_bytes=2_000_000)

    assert len(archive.requests) == 3 * (s3.RESTARTS_MAX + 1)


def test_a_store_that_says_yes_and_then_no_has_not_stored_it(archive: Archive, file: Path) -> None:
    archive.trouble["/b/exports/x"] = [
        Answer(body=b"<R><UploadId>u</UploadId></R>"),
        Answer(),
        Answer(200, b"<Error><Code>InternalError</Code></Error>"),
    ]

    sender = s3.Upload(archive.url, "b", sigv4.Keys(KEY, SECRET), time.monotonic() + 60)
    with pytest.raises(Refused, match="InternalError"):
        sender.send("exports/x", file, "text/plain", whole_max_bytes=1, part_bytes=10_000_000)

    assert archive.requests[-1].method == "DELETE"


def test_the_exporter_uploads_with_the_documented_variables(machine: Machine, store: S3Server) -> None:
    simple(machine.archive, ROOT_PI)
    machine.env |= {"R2_ACCOUNT_ID": "account", "R2_ACCESS_KEY_ID": KEY, "R2_SECRET_ACCESS_KEY": SECRET,
                    "R2_BUCKET": BUCKET, "R2_ENDPOINT": store.endpoint}  # fmt: skip

    assert machine.run(export, recursive=True) == 0, machine.callback

    stored = content(store, f"exports/{TASK}/{ROOT_PI}-collection.xml")
    assert machine.callback["output_file_size"] == len(stored)
    assert machine.stored == {}


def test_a_failed_upload_fails_the_task(machine: Machine, store: S3Server) -> None:
    simple(machine.archive, ROOT_PI)
    machine.env |= {"R2_ACCOUNT_ID": "account", "R2_ACCESS_KEY_ID": KEY, "R2_SECRET_ACCESS_KEY": "wrong/secret",
                    "R2_BUCKET": BUCKET, "R2_ENDPOINT": store.endpoint}  # fmt: skip

    assert machine.run(export) == 1
    assert "SignatureDoesNotMatch" in machine.callback["error"]
    assert "wrong/secret" not in machine.callback["error"]
    assert machine.left == []


# --------------------------------------------------------------------------------------------- a signed URL


def test_a_signed_url_is_put_to_and_what_passes_is_tried_again(archive: Archive, file: Path) -> None:
    archive.trouble["/objects/some%20file%20%281%29.xml"] = [Answer(500), Answer(503, headers={"Retry-After": "0"})]

    upload(SignedUrl(f"{archive.url}/objects/?signature=abc"), NAME, file, "text/xml", timeout_s=60)

    last = archive.requests[-1]
    assert (last.method, last.path, last.headers["Content-Type"]) == (
        "PUT", "/objects/some%20file%20%281%29.xml?signature=abc", "text/xml",
    )  # fmt: skip
    assert last.body == file.read_bytes()
    assert len(archive.requests) == 3


def test_a_signed_url_that_is_too_old_fails_at_once(archive: Archive, file: Path) -> None:
    archive.answers["/objects/a.xml"] = Answer(403, b"<Error><Code>ExpiredToken</Code></Error>")

    with pytest.raises(UploadFailed, match="403 Forbidden ExpiredToken"):
        upload(SignedUrl(f"{archive.url}/objects/?signature=abc"), "exports/x/a.xml", file, "text/xml", timeout_s=60)

    assert len(archive.requests) == 1


def test_an_upload_ends_when_its_time_is_up(archive: Archive, file: Path, pace: float) -> None:
    archive.answers["/objects/a.xml"] = Answer(503)

    with pytest.raises(UploadFailed, match="503"):
        upload(SignedUrl(f"{archive.url}/objects/"), "exports/x/a.xml", file, "text/xml", timeout_s=0.7 * pace)


@pytest.mark.parametrize(
    ("variables", "where"),
    [
        ({"R2_ACCOUNT_ID": "abc"}, ("https://abc.r2.cloudflarestorage.com", "arke-exports", "auto")),
        ({"R2_ACCOUNT_ID": "none", "R2_BUCKET": "b"}, ("https://s3.us-east-1.amazonaws.com", "b", "us-east-1")),
        ({"R2_ACCOUNT_ID": "none", "R2_REGION": "eu-1"}, ("https://s3.eu-1.amazonaws.com", "arke-exports", "eu-1")),
        ({"R2_ENDPOINT": "http://minio:9000/"}, ("http://minio:9000", "arke-exports", "us-east-1")),
    ],
)
def test_where_a_bucket_is(machine: Machine, variables: dict[str, str], where: tuple[str, str, str]) -> None:
    machine.env |= {"R2_ACCESS_KEY_ID": KEY, "R2_SECRET_ACCESS_KEY": SECRET, **variables}

    found = environment.read(machine.env).store

    assert isinstance(found, Bucket)
    assert (found.endpoint, found.name, found.region) == where


def test_keys_that_expire_are_sent_with_their_token(archive: Archive, file: Path) -> None:
    temporary = Bucket(archive.url, "b", KEY, SECRET, "auto", "", "the token")

    upload(temporary, "exports/x/y", file, "text/xml", timeout_s=60)

    (request,) = archive.requests
    assert request.headers["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in request.headers["Authorization"]


def test_keys_are_not_shown(store: S3Server) -> None:
    assert SECRET not in repr(bucket(store))
    assert "abc" not in repr(SignedUrl("http://x/1?signature=abc"))
