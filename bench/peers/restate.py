"""Restate: durable handlers behind a separate server, which pushes. Measured if npm can fetch the server.

Tasks cannot wait without a worker, so its drain is streamed: all tasks are sent while the service runs, and the time
counts from the first send to the last start. Its store cannot be queried; only the handlers report what ran.
"""

from __future__ import annotations

import asyncio
import platform
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from bench.process import free_ports
from bench.subject import Store, Subject
from bench.venv import HOME, run

_NPM = HOME / "npm"
SERVICE = "bench"


def _binary() -> Path | None:
    return next(iter(_NPM.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")), None)


class Restate(Subject):
    name = "restate"
    requirements = ("restate-sdk>=1.2", "hypercorn", "aiohttp", "uvloop")
    settings = "service on hypercorn (HTTP/2, uvloop), client aiohttp on the ingress, default durability"
    drain_tasks = 3_000
    flow_tasks = 1_500
    batches = False
    parks = False

    def missing(self) -> str | None:
        if _binary() is None:
            if shutil.which("npm") is None:
                return "npm, which installs its server, is missing"
            _NPM.mkdir(parents=True, exist_ok=True)
            try:
                # Without scripts: one of its dependencies reports every installation to a third party.
                run(
                    ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "@restatedev/restate-server"],
                    _NPM,
                )
            except RuntimeError as error:
                return f"npm could not install its server: {error}"
        return None if _binary() else f"there is no server for {platform.system()} {platform.machine()}"

    def open_store(self, folder: Path) -> Store:
        ingress, admin, node, service = free_ports(4)
        (folder / "restate.toml").write_text(_CONFIGURATION.format(folder, node=node, admin=admin, ingress=ingress))
        binary = _binary()
        assert binary is not None, "missing() was not called"
        with (folder / "restate.log").open("wb") as log:
            command = [str(binary), "--config-file", str(folder / "restate.toml")]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        url = f"http://127.0.0.1:{ingress}/?admin={admin}&service={service}"
        return Store(url, process)

    def worker_commands(self, python: Path, url: str, count: int) -> list[list[str]]:
        bind = f"127.0.0.1:{_ports(url)['service']}"
        server = [str(python.with_name("hypercorn")), "bench.peers.restate_service:app", "-b", bind]
        return [[*server, "-w", str(count), "-k", "uvloop", "--log-level", "error"]]

    async def open(self, url: str) -> None:
        import aiohttp

        await asyncio.to_thread(_register, url)
        self.base = url.split("/?")[0]
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=128))

    async def close(self) -> None:
        await self.session.close()

    async def submit(self, index: int, sent_at: float) -> None:
        # A flow is called, so that this returns when it has ended.
        path = "noop/send" if self.unit == "noop" else "flow"
        async with self.session.post(f"{self.base}/{SERVICE}/{path}", json=[index, sent_at]) as reply:
            reply.raise_for_status()
            await reply.read()


_CONFIGURATION = """
disable-telemetry = true
bind-address = "127.0.0.1:{node}"
advertised-address = "http://127.0.0.1:{node}/"
base-dir = "{0}"
log-filter = "warn"
[admin]
bind-address = "127.0.0.1:{admin}"
[ingress]
bind-address = "127.0.0.1:{ingress}"
"""


def _ports(url: str) -> Mapping[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def _register(url: str) -> None:
    """Register the service with the server when both are up. Idempotent."""
    ports, body = _ports(url), b'{"uri": "http://127.0.0.1:%s"}'
    request = urllib.request.Request(
        f"http://127.0.0.1:{ports['admin']}/deployments",
        data=body % ports["service"].encode(),
        headers={"content-type": "application/json"},
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            urllib.request.urlopen(request, timeout=5).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the service could not be registered with the server: {error}") from error
            time.sleep(0.2)
        else:
            return


SUBJECT = Restate
