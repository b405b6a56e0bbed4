"""A server imports nothing after its first port is open: whoever uses up its files then would end it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import httpx
from tests.cli.command import SOON_S, environment

ROOT = Path(__file__).parents[2]
HARMLESS = ("encodings.",)  # the interpreter's own, which fails the one call that needs it


def test_nothing_is_imported_when_the_first_port_is_open(database: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.late_imports", database, str(tmp_path)], cwd=ROOT, env=environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        places = json.loads(process.stdout.readline())
        url = places["api"].removesuffix("/api/v1")
        with httpx.Client(base_url=url, headers={"Authorization": "Bearer k"}, timeout=SOON_S) as client:
            push = {"delivery": {"type": "push", "url": "http://127.0.0.1:1/"}}
            assert client.put("/api/v1/queues/mail", json=push).status_code == 200
            for path in ("/livez", "/metrics", "/api/v1/openapi.json", "/api/v1/tasks", "/v1/openapi.json", "/none"):
                client.get(path)
            client.post("/api/v1/tasks", json={"kind": "send", "queue": "mail"})
            client.post("/api/v1/tasks", json={"kind": "send"})
            client.post("/v1/tasks/x/started", headers={"Authorization": "Bearer x.y.z"})
            client.post("/callback/x")
        with grpc.insecure_channel(places["grpc"].removeprefix("http://")) as channel:
            for path in ("/kagzi.WorkflowService/HealthCheck", "/grpc.health.v1.Health/Check"):
                channel.unary_unary(path)(b"", timeout=SOON_S)
        said, _ = process.communicate("\n", timeout=SOON_S)
    finally:
        process.kill()
        process.wait()
    late = [name for name in json.loads(said) if not name.startswith(HARMLESS)]
    assert late == []
