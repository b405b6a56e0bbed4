"""Real servers that carry wake-ups, for tests: NATS from its wheel, and moto, which speaks the APIs of AWS."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kit.ports import free_port

START_S = 45.0
AWS_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@contextlib.contextmanager
def nats_server(folder: Path, port: int | None = None) -> Iterator[int]:
    """With JetStream, which keeps its streams in the folder."""
    port = port or free_port()
    command = [nats_program(), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
    with running(command, port):
        yield port


def nats_program() -> str:
    return str(Path(sys.executable).with_name("nats-server"))


@contextlib.contextmanager
def aws_server() -> Iterator[int]:
    """A server of the AWS APIs. It accepts any credentials and keeps its records in a folder of its own."""
    port = free_port()
    os.environ.update(AWS_ENVIRONMENT)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with tempfile.TemporaryDirectory() as folder, running(command, port, cwd=folder):
        yield port


@contextlib.contextmanager
def running(command: list[str], port: int, cwd: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until_s = time.monotonic() + START_S
        while True:
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < until_s, f"{command} does not listen"
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()
