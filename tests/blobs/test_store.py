"""What every blob store promises, asked of each: a folder, memory, a real S3 server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.kit.processes import files_in
from tests.kit.s3 import BUCKET, SECRET, S3Server

from windlass import Conflict, Invalid, NotFound, Unavailable
from windlass.blobs.object_store import PART_BYTES, ObjectStore, open_store
from windlass.engine.payloads.blob_port import PIECE_BYTES

MIB = 1024 * 1024


async def keys(blobs: ObjectStore, prefix: str) -> dict[str, int]:
    return {found.key: found.size async for found in blobs.list(prefix)}


async def stream(total: int, piece: int = 70_001) -> AsyncIterator[bytes]:
    """So many bytes that never repeat in step with parts or pieces."""
    made = 0
    while made < total:
        part = bytes(range(251)) * (piece // 251 + 1)
        yield part[: min(piece, total - made)]
        made += min(piece, total - made)


async def digest(pieces: AsyncIterator[bytes]) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    async for piece in pieces:
        assert 0 < len(piece) <= PIECE_BYTES
        hashed.update(piece)
        size += len(piece)
    return hashed.hexdigest(), size


async def test_what_is_written_is_read_and_deleted(blobs: ObjectStore) -> None:
    assert await blobs.put("a/b/one.txt", b"first") == 5
    assert await blobs.put("a/b/one.txt", b"second") == 6
    await blobs.put("a/two.txt", b"")

    assert await blobs.size("a/b/one.txt") == 6
    assert await (await blobs.get("a/b/one.txt")).read() == b"second"
    empty = await blobs.get("a/two.txt")
    assert (empty.size, await empty.read()) == (0, b"")
    assert await keys(blobs, "a") == {"a/b/one.txt": 6, "a/two.txt": 0}
    assert await keys(blobs, "a/b") == {"a/b/one.txt": 6}

    await blobs.delete(["a/two.txt", "never/there.txt", "a/b/one.txt"])
    await blobs.delete(["a/b/one.txt"])
    assert await keys(blobs, "a") == {}


async def test_what_is_not_there_is_not_found(blobs: ObjectStore) -> None:
    assert await blobs.size("no/such.txt") is None
    with pytest.raises(NotFound, match=r"no/such\.txt"):
        await blobs.get("no/such.txt")


async def test_sizes_are_those_of_each_key_in_order(blobs: ObjectStore) -> None:
    await blobs.put("sizes/a", b"12345")
    await blobs.put("sizes/b", b"")

    assert list(await blobs.sizes(["sizes/b", "sizes/none", "sizes/a"])) == [0, None, 5]
    assert list(await blobs.sizes([])) == []
    with pytest.raises(Invalid):
        await blobs.sizes(["sizes/a", "../b"])


async def test_a_range_is_read(blobs: ObjectStore) -> None:
    content = bytes(range(256)) * 40_000  # more than two pieces
    await blobs.put("ranged.bin", content)

    for start, end in ((0, 1), (5, 5), (10, PIECE_BYTES + 10), (PIECE_BYTES, None), (len(content) - 1, None)):
        blob = await blobs.get("ranged.bin", start=start, end=end)
        assert (blob.size, blob.length) == (len(content), len(content[start:end]))
        assert await blob.read() == content[start:end]
    assert (await blobs.get("ranged.bin", start=7, end=10**12)).length == len(content) - 7
    for start, end in ((-1, None), (5, 4), (len(content) + 1, None)):
        with pytest.raises(Invalid):
            await blobs.get("ranged.bin", start=start, end=end)


async def test_a_stream_is_written_in_parts_and_read_in_pieces(blobs: ObjectStore) -> None:
    total = 2 * PART_BYTES + 12_345

    assert await blobs.put("long/stream.bin", stream(total)) == total

    blob = await blobs.get("long/stream.bin")
    assert await digest(blob.pieces) == await digest(stream(total))
    assert blob.size == total


async def test_a_stream_that_breaks_off_leaves_nothing(blobs: ObjectStore) -> None:
    async def breaks_off() -> AsyncIterator[bytes]:
        async for piece in stream(PART_BYTES + 1):
            yield piece
        raise RuntimeError("the sender went")

    with pytest.raises(Exception, match="the sender went"):
        await blobs.put("broken/stream.bin", breaks_off())

    assert await blobs.size("broken/stream.bin") is None
    assert await keys(blobs, "broken") == {}


async def test_nothing_is_below_a_path_that_was_cleared(blobs: ObjectStore) -> None:
    for key in ("a/1/x.txt", "a/1/y/z.txt", "a/12/x.txt", "a/1.txt"):
        await blobs.put(key, b"content")

    await blobs.clear("a/1")
    await blobs.clear("a/1")
    await blobs.clear("never/there")

    assert await keys(blobs, "a") == {"a/12/x.txt": 7, "a/1.txt": 7}
    assert await blobs.leftovers() is None


@pytest.mark.parametrize("kind", ["folder", "memory"])  # rclone's server takes no condition; those of the vendors do
async def test_only_one_of_many_creates_an_object(kind: str, tmp_path: Path) -> None:
    blobs = open_store("memory://" if kind == "memory" else str(tmp_path))
    outcomes = await asyncio.gather(
        *(blobs.put("marker.txt", str(n).encode(), new=True) for n in range(10)), return_exceptions=True
    )

    assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 9
    with pytest.raises(Invalid):
        await blobs.put("marker2.txt", stream(10), new=True)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "../a",
        "a/../b",
        ".",
        "a/./b",
        "a\x00b",
        "a\nb",
        "a?b",
        "a#b",
        "a*",
        " a",
        "x" * 901,
        "ä",
    ],
)
async def test_a_key_that_would_mean_something_else_somewhere_is_refused(key: str) -> None:
    blobs = open_store("memory://")

    for call in (blobs.put(key, b""), blobs.get(key), blobs.size(key), blobs.delete([key])):
        with pytest.raises(Invalid):
            await call


async def test_a_read_ends_with_the_whole_object_or_with_an_error(blobs: ObjectStore) -> None:
    total = 5 * PIECE_BYTES
    await blobs.put("going.bin", stream(total))
    blob = await blobs.get("going.bin")
    read = len(await anext(blob.pieces))
    await blobs.delete(["going.bin"])

    with contextlib.suppress(NotFound, Unavailable):
        read += sum([len(piece) async for piece in blob.pieces])
        assert read == total


async def test_an_object_that_is_replaced_is_not_read_as_a_mixture(tmp_path: Path) -> None:
    blobs = open_store(str(tmp_path))
    await blobs.put("changing.bin", b"a" * 100)
    blob = await blobs.get("changing.bin")
    await blobs.put("changing.bin", b"b" * 200)

    with pytest.raises(Unavailable, match="replaced"):
        await blob.read()


# --------------------------------------------------------------------------------------------- a folder


UPLOADS_FOR_EVER = """
import asyncio, sys
from windlass.blobs.object_store import open_store

async def forever():
    while True:
        yield b"x" * 1000000
        await asyncio.sleep(0.001)

asyncio.run(open_store(sys.argv[1]).put(sys.argv[2], forever()))
"""


async def killed_while_it_uploads(url: str, key: str, begun: Callable[[], object]) -> None:
    """A process that was killed as soon as something of its upload is there."""
    writer = subprocess.Popen([sys.executable, "-c", UPLOADS_FOR_EVER, url, key])  # noqa: ASYNC220
    try:
        async with asyncio.timeout(45):
            while not begun():
                assert writer.poll() is None
                await asyncio.sleep(0.01)
    finally:
        writer.kill()
        writer.wait()


@pytest.mark.parametrize("by", ["its key", "its path"])
async def test_a_folder_keeps_nothing_of_an_upload_whose_process_was_killed(tmp_path: Path, by: str) -> None:
    folder = tmp_path / "blobs"
    url = f"file://{folder}"
    await killed_while_it_uploads(url, "tasks/1/half.bin", lambda: files_in(folder))
    blobs = open_store(url)
    assert await keys(blobs, "tasks") == {}
    assert list(folder.rglob("*")) != []

    await (blobs.delete(["tasks/1/half.bin"]) if by == "its key" else blobs.clear("tasks"))

    assert list(folder.rglob("*")) == []


async def test_links_in_a_folder_are_neither_listed_nor_followed_when_it_is_cleared(tmp_path: Path) -> None:
    blobs = open_store(f"file://{tmp_path}/blobs")
    for key in ("kept/x/part", "gone/a/part", "gone/b"):
        await blobs.put(key, b"content")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("of somebody else")
    own = tmp_path / "blobs" / "gone" / "a"
    (own / "kept").symlink_to(tmp_path / "blobs" / "kept")
    (own / "outside").symlink_to(outside)
    (own / "file").symlink_to(outside / "file")
    (own / "nowhere").symlink_to(tmp_path / "nowhere")
    (own / "ü~ # %2F\n").write_text("an odd name")
    (own / "part#1").write_text("half of it")
    (tmp_path / "blobs" / "through").symlink_to(tmp_path / "blobs" / "kept")

    assert sorted([found.key async for found in blobs.list("gone")]) == ["gone/a/part", "gone/a/ü~ # %2F\n", "gone/b"]
    assert [found.key async for found in blobs.list("through")] == []
    assert [found.key async for found in blobs.list("through/x")] == []
    await blobs.clear("through")
    await blobs.clear("through/x")
    await blobs.clear("gone")

    assert [found.key for found in await blobs.page("", 10)] == ["kept/x/part"]
    assert not (tmp_path / "blobs" / "gone").exists()
    assert (outside / "file").read_text() == "of somebody else"


async def test_a_folder_is_for_its_owner_alone_and_empty_ones_go(tmp_path: Path) -> None:
    blobs = open_store(str(tmp_path / "deep" / "blobs"))
    await blobs.put("tasks/1/a.json", b"1")

    assert (tmp_path / "deep" / "blobs").stat().st_mode & 0o077 == 0
    await blobs.delete(["tasks/1/a.json"])
    assert list((tmp_path / "deep" / "blobs").iterdir()) == []


# --------------------------------------------------------------------------------------------- S3


async def test_objects_lie_under_their_prefix_in_the_bucket(s3: S3Server) -> None:
    blobs = open_store(s3.url("some/prefix"))
    await blobs.put("tasks/1.json", b"1")

    assert "some/prefix/tasks/1.json" in s3.files()
    assert await keys(blobs, "tasks") == {"tasks/1.json": 1}
    await blobs.delete(["tasks/1.json"])
    assert "some/prefix/tasks/1.json" not in s3.files()


async def test_a_wrong_key_is_told_without_the_secret(s3: S3Server) -> None:
    blobs = open_store(s3.url().replace("%2F%2B%3D", "-wrong"))

    with pytest.raises(Unavailable) as caught:
        await blobs.put("a.txt", b"a")
    assert SECRET[:10] not in str(caught.value)
    assert "wrong" not in blobs.url


async def test_a_bucket_that_is_not_there_is_unavailable_and_no_missing_object(s3: S3Server) -> None:
    blobs = open_store(s3.url().replace("@windlass/", "@nobodys-bucket/"))

    with pytest.raises(Unavailable, match="nobodys-bucket"):
        await blobs.put("a.txt", b"a")
    with pytest.raises(Unavailable, match="nobodys-bucket"):
        await blobs.put("a.txt", stream(10))


async def test_a_server_that_is_away_is_unavailable(tmp_path: Path) -> None:
    blobs = open_store("s3://K:S@bucket?endpoint=http://127.0.0.1:9&region=us-east-1")

    with pytest.raises(Unavailable, match="s3://bucket"):
        await blobs.size("a.txt")


async def test_a_stream_that_breaks_off_leaves_no_parts(s3: S3Server) -> None:
    seen: list[str] = []

    async def breaks_off() -> AsyncIterator[bytes]:
        async for piece in stream(3 * PART_BYTES):
            yield piece
        while not seen:
            seen.extend(await asyncio.to_thread(s3.uploads, "breaks"))
        raise RuntimeError("the sender went")

    with pytest.raises(RuntimeError, match="the sender went"):
        await open_store(s3.url("breaks")).put("1/a.bin", breaks_off())

    assert seen == ["breaks/1/a.bin"]
    assert s3.uploads("breaks") == []


async def test_an_upload_that_is_given_up_leaves_no_parts(s3: S3Server) -> None:
    waits = asyncio.Event()

    async def stops() -> AsyncIterator[bytes]:
        async for piece in stream(2 * PART_BYTES):
            yield piece
        while not await asyncio.to_thread(s3.uploads, "given up"):
            pass
        waits.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(open_store(s3.url("given up")).put("1/a.bin", stops()))
    await waits.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert s3.uploads("given up") == []


@pytest.mark.parametrize("by", ["its key", "its path"])
async def test_a_bucket_keeps_no_parts_of_an_upload_whose_process_was_killed(s3: S3Server, by: str) -> None:
    prefix = f"killed by {by[4:]}"
    blobs, other = open_store(s3.url(prefix)), f"{prefix}/tasks/1/half.bin.other"
    with contextlib.closing(s3.amazon()) as amazon:
        amazon.create_multipart_upload(Bucket=BUCKET, Key=other)
    await killed_while_it_uploads(
        s3.url(prefix), "tasks/1/half.bin", lambda: f"{prefix}/tasks/1/half.bin" in s3.uploads(prefix)
    )

    if by == "its key":
        await blobs.delete(["tasks/1/half.bin"])
        assert s3.uploads(prefix) == [other]
    await blobs.clear("tasks/1")

    assert s3.uploads(prefix) == []


# --------------------------------------------------------------------------------------------- memory

MEASURED = """
import asyncio, resource, sys
from windlass.blobs.object_store import open_store

async def stream(pieces):
    for _ in range(pieces):
        yield b"x" * 1048576

async def main():
    blobs = open_store(sys.argv[1])
    await blobs.put("warm.bin", stream(8))
    await (await blobs.get("warm.bin")).read()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await blobs.put("long.bin", stream(int(sys.argv[2])))
    size = 0
    async for piece in (await blobs.get("long.bin")).pieces:
        size += len(piece)
    await blobs.delete(["warm.bin", "long.bin"])
    print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "s3"])
async def test_an_object_is_never_held_in_memory(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"file://{tmp_path}/blobs" if kind == "folder" else request.getfixturevalue("s3").url("memory")
    said = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", MEASURED, url, "256"], capture_output=True, text=True, check=True
    ).stdout.split()

    assert int(said[0]) == 256 * MIB
    assert int(said[1]) < 64 * 1024, f"{said[1]} KiB more for 256 MiB"
