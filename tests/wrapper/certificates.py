"""A CA of the test's own, with certificates for a server on this machine and for a wrapper."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from windlass.wire import certificate
from windlass.wire.certificate import LOCAL_HOSTS, Files


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder, self._now = folder, datetime.now(UTC)
        self._pair = certificate.make_authority(self._now, 2)
        files = certificate.files_of(folder, "ca")
        certificate.write(self._pair, files)
        self.certificate = files.certificate

    def issue(self, name: str) -> Files:
        return self._written(name, certificate.issue_client(self._pair, name, self._now, 2))

    def server_context(self) -> ssl.SSLContext:
        files = self._written("server", certificate.issue_server(self._pair, LOCAL_HOSTS, self._now, 2))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _written(self, name: str, pair: certificate.Pair) -> Files:
        files = certificate.files_of(self.folder, name)
        certificate.write(pair, files, replace=True)
        return files
