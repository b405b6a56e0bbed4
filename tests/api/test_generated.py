"""Clients that others' generators make from our document can be made without a complaint, and every operation be used.

The generators are fetched into a folder of their own, which is kept for the next run; without them the tests say so and
are skipped.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from tests.api.test_dags import OTHER, SHOP, D
from tests.api.test_task import submit
from tests.kit.datasets import settle
from tests.kit.work import worker
from tests.kit.world import ROOT

from windlass import Engine
from windlass.api.app import openapi_document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "generated"
PYTHON = ("openapi-python-client==0.29.1", "ruff")
NODE = ("openapi-typescript@7.13.0", "@hey-api/openapi-ts@0.95.0", "typescript@5.9.3", "@types/node@20")
DOCUMENT = openapi_document("1.0")
ENDLESS = "changes"  # the feed; `test_change.py` is about it
FETCH_S = 240


def fetched(name: str, what: tuple[str, ...], *command: str) -> Path:
    """The folder with these tools. Fetched once; whoever comes second finds it whole or not at all."""
    mark = "-".join([name, *(part.replace("/", "_") for part in what)])
    folder = Path(tempfile.gettempdir()) / f"windlass-generators-{os.getuid()}" / mark
    if folder.exists():
        return folder
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        made = Path(new) / "made"
        made.mkdir()
        try:
            done = subprocess.run(
                [*command, str(made), *what], capture_output=True, text=True, timeout=FETCH_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{name} cannot fetch {', '.join(what)}: {error}")
        if done.returncode != 0:
            pytest.skip(f"{name} cannot fetch {', '.join(what)}: {done.stderr.strip()[-300:]}")
        try:
            made.rename(folder)
        except OSError:
            assert folder.exists()
    return folder


@pytest.fixture(scope="module")
def python_tools() -> Path:
    pip = (sys.executable, "-m", "pip") if importlib.util.find_spec("pip") else ("uv", "pip")
    return fetched("pip", PYTHON, *pip, "install", "--quiet", "--target")


@pytest.fixture(scope="module")
def node_tools() -> Path:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    return fetched("npm", NODE, "npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(DOCUMENT))
    return file


async def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What a program wrote. It must have ended well."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=os.environ | environment, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, (command, out.decode()[-5000:], err.decode()[-5000:])
    return out.decode() + err.decode()


async def calls(api: httpx.AsyncClient, engine: Engine) -> list[dict[str, Any]]:
    """Each operation once, in the order of the document, on something that is there where that takes little."""
    await worker(engine, "mail")
    [here] = (await api.get("/api/v1/workers")).json()["items"]
    task = await submit(api)
    run_ = (await api.post("/api/v1/runs", json={"tasks": [{"name": "a", "kind": "k"}]})).json()
    await api.post("/api/v1/schedules", json={"name": "nightly", "kind": "k", "cron": "@daily"})
    key = (await api.post("/api/v1/keys", json={"name": "k", "role": "viewer"})).json()["key"]
    for order in ({"yaml": SHOP}, {"yaml": OTHER}, {"yaml": f"{SHOP}# to abandon", "cutover": "manual"}):
        await api.post(f"{D}/shop/versions", json=order)
        await settle(engine)
    await api.post(f"{D}/shop/jobs/ticks/emit", json={"partition_key": "0-99", "start": 0, "end": 99})
    await settle(engine)
    [ticks] = [one for one in (await api.get("/api/v1/datasets")).json()["items"] if one["job"] == "ticks"]
    backfill = {"dag": "shop", "job": "bills", "select": {"keys": ["100-199"]}}
    begun = (await api.post("/api/v1/backfills", json=backfill)).json()
    named = {
        "backfill_id": begun["id"], "dataset": ticks["dataset_uuid"], "partition_key": "0-99",
        "dataset_version": ticks["current_version"],
        "dag": "shop", "job": "orders", "namespace": "default", "path": "payments/new", "version": "3",
        "task_id": task["id"], "run_id": run_["id"], "schedule": "nightly", "worker_id": here["id"], "name": "mail",
        "key_id": key["id"], "effect_id": str(uuid4()), "letter_id": str(uuid4()),
    }  # fmt: skip
    bodies = {
        "submit_task": {"kind": "k", "payload": {"a": [1, 2.5, None]}, "queue": "other", "delay_s": 5},
        "submit_batch": {"tasks": [{"kind": "k"}]},
        "submit_run": {"tasks": [{"name": "a", "kind": "k"}, {"name": "b", "kind": "k", "after": ["a"]}]},
        "create_schedule": {"kind": "k", "cron": "0 9 * * *"},
        "update_schedule": {"priority": 3},
        "put_queue": {"delivery": {"type": "wakeup"}, "limits": {"max_running": 5}},
        "create_key": {"name": "other", "role": "submitter"},
        "fork_task": {"from_step": "charge"},
        "validate_dag": {"yaml": SHOP},
        "plan_dag": {"yaml": SHOP},
        "deploy_dag": {"yaml": f"{SHOP}# once more"},
        "activate_dag_version": {"version": 1},
        "revert_partition": {"revision": 1},
        "set_webhook_secret": {"secret": "whsec_" + "c2VjcmV0" * 4},
        "start_backfill": backfill,
        "invalidate": {"scope": "partition", "partition_key": "0-99", "reason": "manual"},
    }
    made = []
    for path, operations in DOCUMENT["paths"].items():
        for operation in operations.values():
            name = operation["operationId"]
            if name == ENDLESS:
                continue
            call: dict[str, Any] = {"operation": name}
            call["path"] = {part: named[part] for part in named if f"{{{part}}}" in path}
            if path.endswith("/webhook-secret"):
                call["path"]["job"] = "paid"
            if "/namespaces/" in path:
                call["path"] = {"name": "default"}
            if "application/json" in operation.get("requestBody", {}).get("content", {}):
                call["body"] = bodies.get(name, {})
            if name == "preview_cron":
                call["query"] = {"cron": "@daily", "count": 3}
            if name == "get_lineage":
                call["query"] = {"dataset": ticks["dataset_uuid"], "depth": 3}
            made.append(call)
    return [call for call in made if call["operation"] not in LAST] + [
        call for name in LAST for call in made if call["operation"] == name
    ]


LAST = (
    "cancel_task",
    "retry_task",
    "drain_worker",
    "take_worker_offline",
    "revoke_key",
    "delete_schedule",
    "retire_dag",
)
REFUSED = {  # what nothing is there for; the refusal is read as well
    "fork_task": 404, "retry_effect": 404, "discard_effect": 404, "replay_letter": 404, "discard_letter": 404,
    "rotate_secret": 404, "purge_version": 409,
}  # fmt: skip


def check(told: dict[str, Any], unused: str) -> None:
    """Every operation was answered as the document says, and the answer was understood."""
    assert told["unused"] == [unused]
    done = {one["operation"]: one for one in told["done"]}
    for operations in DOCUMENT["paths"].values():
        for operation in operations.values():
            name = operation["operationId"]
            if name == ENDLESS:
                continue
            wanted = REFUSED.get(name, int(next(iter(operation["responses"]))))
            assert done[name]["status"] == wanted, done[name]
            assert done[name]["answer"] is not None, done[name]
    assert done["submit_task"]["answer"]["payload"] == {"a": [1, 2.5, None]}
    assert done["put_queue"]["answer"]["delivery"]["type"] == "wakeup"
    assert done["fork_task"]["answer"]["code"] == "not_found"


async def test_a_client_made_by_openapi_python_client(
    python_tools: Path, written: Path, tmp_path: Path, url: str, api: httpx.AsyncClient, engine: Engine
) -> None:
    ours = {"PYTHONPATH": str(python_tools), "PATH": f"{python_tools / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    said = await run(
        sys.executable, "-m", "openapi_python_client", "generate", "--path", written, "--meta", "none",
        "--output-path", tmp_path / "made", "--fail-on-warning", cwd=tmp_path, **ours,
    )  # fmt: skip
    assert "warning" not in said.lower(), said
    (tmp_path / "calls.json").write_text(json.dumps(await calls(api, engine)))
    told = await run(
        sys.executable, HERE / "use_python.py", tmp_path, url, ROOT, tmp_path / "calls.json", cwd=tmp_path, **ours
    )
    check(json.loads(told), ENDLESS)


async def test_clients_made_by_openapi_typescript_and_hey_api(
    node_tools: Path, written: Path, tmp_path: Path, url: str, api: httpx.AsyncClient, engine: Engine
) -> None:
    tools = node_tools / "node_modules"
    (tmp_path / "node_modules").symlink_to(tools)
    await run(tools / ".bin/openapi-typescript", written, "--output", tmp_path / "types.ts", cwd=tmp_path)
    await run(tools / ".bin/openapi-ts", "--input", written, "--output", tmp_path / "made", "--silent", cwd=tmp_path)
    shutil.copy(HERE / "use_typescript.ts", tmp_path)
    await run(
        tools / ".bin/tsc", "use_typescript.ts", "--strict", "--target", "es2022", "--module", "commonjs",
        "--moduleResolution", "node", "--lib", "es2022,dom,dom.iterable", "--types", "node", "--outDir", "out",
        cwd=tmp_path,
    )  # fmt: skip
    (tmp_path / "calls.json").write_text(json.dumps(await calls(api, engine)))
    told = await run("node", "out/use_typescript.js", url, ROOT, tmp_path / "calls.json", cwd=tmp_path)
    check(json.loads(told), ENDLESS)
