"""Who is let in: only callers with a certificate of our authority that is good now, and only on the internal port."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.contracts.lease.world import SCRATCH, TlsFiles, World, client, nobody
from tests.kit.world import ok

from windlass import Engine
from windlass.contracts.lease.mount import make_lease_app
from windlass.contracts.lease.tls import server
from windlass.contracts.lease.tls.certificates import Files
from windlass.contracts.lease.tls.server import Certificates, guarded
from windlass.errors import Invalid
from windlass.net.server.server import listening
from windlass.serve import open_internal, open_server

pytestmark = pytest.mark.slow

ROUTES = [
    ("POST", "/internal/task-claim"), ("GET", "/internal/task-fetch"), ("POST", "/internal/heartbeat"),
    ("POST", "/internal/task-complete"), ("POST", "/internal/events"), ("POST", "/internal/buffer-publish"),
    ("GET", "/internal/openapi.json"), ("GET", "/"), ("GET", "/internal/other"),
]  # fmt: skip


async def gets_no_answer(world: World, shown: Files | None) -> None:
    task_id = await world.submit()
    before = await world.rows()
    for method, path in ROUTES:
        async with client(world.url, world.tls_files, shown) as http:
            with pytest.raises(httpx.TransportError):
                await http.request(method, path, json={"task_id": str(task_id), "worker_id": "w"})
    assert await world.rows() == before


async def test_a_caller_without_a_certificate_gets_no_answer_from_any_route(world: World) -> None:
    await gets_no_answer(world, None)


async def test_a_caller_with_a_certificate_of_another_authority_gets_no_answer_from_any_route(world: World) -> None:
    await gets_no_answer(world, world.tls_files.foreign)


async def test_a_caller_whose_certificate_has_expired_gets_no_answer_from_any_route(world: World) -> None:
    await gets_no_answer(world, world.tls_files.expired)


async def test_the_certificate_of_a_server_lets_nobody_in(world: World) -> None:
    await gets_no_answer(world, world.tls_files.server)


async def test_plain_http_gets_no_answer(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url.replace("https", "http"), timeout=60) as http:
        with pytest.raises(httpx.TransportError):
            await http.get("/internal/openapi.json")


async def test_older_tls_is_not_spoken(world: World) -> None:
    context = ssl.create_default_context(cafile=str(world.tls_files.authority))
    context.load_cert_chain(*world.tls_files.client)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with httpx.AsyncClient(base_url=world.url, verify=context, timeout=60) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/internal/openapi.json")


async def test_a_certificate_that_runs_out_while_its_connection_is_open_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(await world.http.get("/internal/openapi.json"))
    later = time.time() + 6 * 86400
    monkeypatch.setattr(server, "time", SimpleNamespace(time=lambda: later))

    with pytest.raises(httpx.TransportError):
        await world.http.get("/internal/openapi.json")


async def test_a_session_is_not_resumed_so_that_each_connection_shows_its_certificate(world: World) -> None:
    context = ssl.create_default_context(cafile=str(world.tls_files.authority))
    context.load_cert_chain(*world.tls_files.client)
    host, port = httpx.URL(world.url).host, httpx.URL(world.url).port
    assert port is not None

    def ask(session: Any) -> Any:
        with (
            socket.create_connection((host, port)) as raw,
            context.wrap_socket(raw, server_hostname=host, session=session) as secured,
        ):
            secured.sendall(b"GET /internal/openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert secured.recv(100).startswith(b"HTTP/1.1 200")
            return secured.session, secured.session_reused

    first, _ = await asyncio.to_thread(ask, None)
    _, reused = await asyncio.to_thread(ask, first)

    assert not reused


async def test_certificates_that_were_replaced_hold_from_the_next_connection_on(
    world: World, tls_files: TlsFiles, tmp_path: Path
) -> None:
    """Also the authority: who was let in by the old one is not any more. What cannot be used changes nothing."""
    files = Certificates(tmp_path / "server.pem", tmp_path / "server-key.pem", tmp_path / "ca.pem")
    for target, source in zip(files, tls_files.certificates, strict=True):
        shutil.copy(source, target)
    app = make_lease_app(world.engine, "test", SCRATCH)

    async def is_let_in(url: str, shown: Files) -> bool:
        async with client(url, tls_files, shown) as http:
            try:
                return (await http.get("/internal/openapi.json")).status_code == 200
            except httpx.TransportError:
                return False

    async with listening(app, "127.0.0.1", 0, guarded(files)) as url:
        assert (await is_let_in(url, tls_files.client), await is_let_in(url, tls_files.foreign)) == (True, False)
        (tmp_path / "draft").write_text("no certificate")
        (tmp_path / "draft").replace(files.authority)
        assert (await is_let_in(url, tls_files.client), await is_let_in(url, tls_files.foreign)) == (True, False)
        shutil.copy(tls_files.server_of_foreign, tmp_path / "draft")
        (tmp_path / "draft").replace(files.authority)
        assert (await is_let_in(url, tls_files.client), await is_let_in(url, tls_files.foreign)) == (False, True)


async def test_the_public_port_never_serves_internal(world: World) -> None:
    key = {"Authorization": "Bearer root"}
    async with (
        open_server(world.engine, http="127.0.0.1:0", api_key="root") as url,
        httpx.AsyncClient(base_url=url, headers=key, timeout=60) as http,
    ):
        for method, path in ROUTES[:7]:
            body = {"task_id": nobody(), "worker_id": "w"}
            assert (await http.request(method, path, json=body)).status_code == 404, path


async def test_a_server_that_knows_no_callers_gets_no_route_to_work(world: World) -> None:
    app = make_lease_app(world.engine, "test", SCRATCH)
    async with listening(app, "127.0.0.1", 0) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.post("/internal/task-claim", json={"task_id": nobody(), "worker_id": "w"})

    assert (answer.status_code, answer.json()["error"]) == (500, "internal")


async def test_open_internal_serves_with_the_files_that_are_set(engine: Engine, tls_files: TlsFiles) -> None:
    server = tls_files.server
    async with open_internal(
        engine, internal="127.0.0.1:0", certificate=server.certificate, key=server.key, authority=tls_files.authority
    ) as url:
        assert url.startswith("https://127.0.0.1:")
        async with client(url, tls_files, tls_files.client) as http:
            assert (await http.get("/internal/openapi.json")).status_code == 200


@pytest.mark.parametrize("name", ["certificate", "key", "authority"])
async def test_a_file_that_is_not_given_missing_or_no_certificate_is_named(
    engine: Engine, tls_files: TlsFiles, tmp_path: Path, name: str
) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("this is no certificate")
    good = tls_files.certificates
    for file in (tmp_path / "missing.pem", rubbish):
        with pytest.raises(Invalid, match=f"internal_.*{file.name}"):
            guarded(good._replace(**{name: file}))
    files: dict[str, Path | None] = {**good._asdict(), name: None}
    with pytest.raises(Invalid, match="windlass certs"):
        async with open_internal(engine, internal="127.0.0.1:0", **files):  # type: ignore[arg-type]
            pass


def test_a_key_that_belongs_to_another_certificate_is_refused(tls_files: TlsFiles) -> None:
    with pytest.raises(Invalid, match="internal_certificate"):
        guarded(Certificates(tls_files.server.certificate, tls_files.client.key, tls_files.authority))
