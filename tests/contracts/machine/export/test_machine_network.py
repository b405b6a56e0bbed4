"""Programs on machines in other people's networks: TLS that is checked, and proxies."""

from __future__ import annotations

import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.contracts.machine.export.archive import Answer, Archive, open_archive
from tests.contracts.machine.export.machine import ROOT_PI, Machine
from tests.contracts.machine.export.samples import simple

from windlass.contracts.lease.tls import certificates
from windlass.net.backoff import Transient
from windlass.net.http import Client, Reply, proxy_for


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The certificate of an authority, and what a server with one of its certificates needs."""
    folder, now = tmp_path_factory.mktemp("tls"), datetime.now(UTC)
    issuer = certificates.make_authority(now, 1)
    files = [certificates.files_of(folder, name) for name in ("ca", "server")]
    certificates.write(issuer, files[0])
    certificates.write(certificates.issue_server(issuer, ["127.0.0.1", "archive.example"], now, 1), files[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1].certificate, files[1].key)
    return files[0].certificate, context


@pytest.fixture
def secure(authority: tuple[Path, ssl.SSLContext]) -> Iterator[Archive]:
    with open_archive(authority[1]) as archive:
        yield archive


@pytest.fixture
def trusting(authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))


def get(url: str) -> Reply:
    with closing(Client(proxies=True)) as client:
        return client.request("GET", url)


def test_an_export_over_tls(secure: Archive, authority: tuple[Path, ssl.SSLContext], tmp_path: Path) -> None:
    simple(secure, ROOT_PI)
    machine = Machine(secure, tmp_path)
    machine.env["SSL_CERT_FILE"] = str(authority[0])

    code, said = machine.finish()

    assert code == 0, said
    assert machine.callback["status"] == "success"
    assert len(machine.stored) == 1


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: Archive) -> None:
    with pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"):
        get(f"{secure.url}/x")


@pytest.mark.usefixtures("trusting")
def test_a_name_that_is_not_in_the_certificate_is_refused(secure: Archive) -> None:
    port = secure.url.rpartition(":")[2]

    with pytest.raises(Transient, match="CERTIFICATE_VERIFY_FAILED"):
        get(f"https://localhost:{port}/x")


def test_plain_http_goes_through_the_proxy(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://user:word@{archive.url.removeprefix('http://')}")
    archive.answers["/x"] = Answer(body=b"found")

    reply = get("http://archive.example/x?y=1")

    assert reply.body == b"found"
    assert [request.path for request in archive.requests] == ["http://archive.example/x?y=1"]


@pytest.mark.usefixtures("trusting")
def test_tls_goes_through_a_tunnel_of_the_proxy(secure: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    secure.answers["/x"] = Answer(body=b"found")
    with tunnel(secure) as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        reply = get("https://archive.example/x")

    assert reply.body == b"found"
    assert asked == ["CONNECT archive.example:443 HTTP/1.1"]


class tunnel:
    """A proxy that takes one connection, to wherever the archive is."""

    def __init__(self, archive: Archive) -> None:
        self._target = ("127.0.0.1", int(archive.url.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._asked: list[str] = []
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> tuple[int, list[str]]:
        self._thread.start()
        return self._listener.getsockname()[1], self._asked

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._target) as server:
            with client.makefile("rb", buffering=0) as head:
                self._asked.append(head.readline().decode().strip().replace("HTTP/1.0", "HTTP/1.1"))
                while head.readline().strip():
                    pass
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=[server, client])
            back.start()
            _pass_on(client, server)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError), source.makefile("rb", buffering=0) as data, target.makefile("wb", buffering=0) as out:
        shutil.copyfileobj(data, out)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize(
    ("variables", "scheme", "host", "proxy"),
    [
        ({}, "http", "a.example", None),
        ({"HTTP_PROXY": "http://p:1"}, "http", "a.example", "p:1"),
        ({"HTTP_PROXY": "p:1"}, "http", "a.example", "p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https", "a.example", None),
        ({"HTTPS_PROXY": "http://u:w@p:1/"}, "https", "a.example", "p:1"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "example"}, "http", "a.example", None),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "b.example"}, "http", "a.example", "p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "http", "127.0.0.1", None),
        ({"HTTP_PROXY": "http://p:1"}, "http", "localhost", None),
    ],
)
def test_which_proxy(
    variables: dict[str, str], scheme: str, host: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert proxy_for(scheme, host) == proxy
