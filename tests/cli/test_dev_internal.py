"""Certificates by commands, and the internal port of `windlass serve` and `windlass dev` as processes."""

from __future__ import annotations

import json
import ssl
import stat
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import windlass
from tests.cli.conftest import start_dev
from tests.cli.test_dev import ended, serve
from tests.kit.database import temporary_folder

from windlass.api.client import ApiClient

pytestmark = pytest.mark.slow


def made(folder: Path, *arguments: str) -> dict[str, str]:
    done = windlass("certs", *arguments, "--dir", str(folder), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def ask(url: str, folder: Path, name: str | None, path: str, body: Any = None) -> Any:
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
    request = urllib.request.Request(url + path, None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, context=context, timeout=40) as answer:
        return json.load(answer)


def held(api: str, key: str, internal: str, folder: Path) -> None:
    """A task is submitted, claimed with a certificate, and completed."""
    client = ApiClient(api.removesuffix("/api/v1"), key)
    client.put("/queues/remote", {"delivery": {"type": "wakeup", "carrier": "postgres"}})
    task = client.post("/tasks", {"kind": "sum", "queue": "remote", "payload": {"numbers": [1, 2]}})
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        ask(internal, folder, None, "/internal/task-claim", {"task_id": task["id"], "worker_id": "w"})
    told = ask(internal, folder, "client", "/internal/task-claim", {"task_id": task["id"], "worker_id": "w"})
    fence = {"task_id": task["id"], "attempt": 1, "lease_token": told["lease_token"]}
    said = {**fence, "status": "Completed", "result": sum(told["task"]["config"]["numbers"])}
    assert ask(internal, folder, "client", "/internal/task-complete", said) == {"status": "Completed"}
    assert client.get(f"/tasks/{task['id']}")["result"] == 3
    public = urllib.request.Request(f"{api.removesuffix('/api/v1')}/internal/task-claim", b"{}")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(public, timeout=40)


def test_serve_answers_only_those_with_a_certificate_of_its_authority(database: str, tmp_path: Path) -> None:
    made(tmp_path, "ca")
    server = made(tmp_path, "server")
    made(tmp_path, "client", "client")
    flags = ["--internal", "127.0.0.1:0"]
    variables = {
        "WINDLASS_INTERNAL_CERTIFICATE": server["certificate"],
        "WINDLASS_INTERNAL_KEY": server["key"],
        "WINDLASS_INTERNAL_CA": str(tmp_path / "ca.pem"),
    }
    with ended(serve(database, *flags, **variables)) as places:
        held(places["api"], "k", places["internal"], tmp_path)


def test_serve_says_which_file_it_needs(database: str) -> None:
    flags = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--internal", "127.0.0.1:0", "--database-url", database,
             "--api-key", "k"]  # fmt: skip
    done = windlass("serve", *flags)

    assert done.returncode in (1, 2)
    assert "internal_certificate" in done.stderr
    assert "windlass certs" in done.stderr
    assert "Traceback" not in done.stderr


def test_dev_makes_certificates_beside_its_data_and_keeps_them() -> None:
    with temporary_folder() as folder:
        kept = []
        for _ in range(2):
            process: subprocess.Popen[str] = start_dev(folder, "--json", "--internal", "127.0.0.1:0")
            with ended(process) as places:
                certs = folder / places["certs"]
                kept.append({file.name: file.read_bytes() for file in certs.iterdir()})
                if len(kept) == 1:
                    held(places["api"], places["key"], places["internal"], certs)
        assert kept[0] == kept[1]
        assert {file.name for file in certs.iterdir()} == {
            "ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem",
        }  # fmt: skip


def test_keys_can_be_read_by_their_owner_only_and_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    made(tmp_path, "ca")
    client = made(tmp_path, "client", "wrapper-1", "--days", "7")
    for file in (tmp_path / "ca-key.pem", Path(client["key"])):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = Path(client["certificate"]).read_bytes()

    again = windlass("certs", "client", "wrapper-1", "--dir", str(tmp_path))
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert Path(client["certificate"]).read_bytes() == before
    made(tmp_path, "client", "wrapper-1", "--replace")
    assert Path(client["certificate"]).read_bytes() != before


@pytest.mark.parametrize("name", ["", "../evil", ".hidden"])
def test_a_name_that_could_be_another_file_is_refused(tmp_path: Path, name: str) -> None:
    made(tmp_path, "ca")
    done = windlass("certs", "client", name, "--dir", str(tmp_path))

    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert {file.name for file in tmp_path.iterdir()} == {"ca.pem", "ca-key.pem"}


def test_without_an_authority_nothing_is_issued(tmp_path: Path) -> None:
    done = windlass("certs", "server", "--dir", str(tmp_path))

    assert done.returncode in (1, 2)
    assert "ca.pem cannot be read" in done.stderr
