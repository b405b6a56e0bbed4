"""A CA of the test's own, with certificates for a server on this machine and for a wrapper."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from windlass.contracts.lease.tls import certificates
from windlass.contracts.lease.tls.certificates import LOCAL_HOSTS, Files


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder, self._now = folder, datetime.now(UTC)
        self._pair = certificates.make_authority(self._now, 2)
        files = certificates.files_of(folder, "ca")
        certificates.write(self._pair, files)
        self.certificate = files.certificate

    def issue(self, name: str) -> Files:
        return self._written(name, certificates.issue_client(self._pair, name, self._now, 2))

    def server_context(self) -> ssl.SSLContext:
        files = self._written("server", certificates.issue_server(self._pair, LOCAL_HOSTS, self._now, 2))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(self.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _written(self, name: str, pair: certificates.Pair) -> Files:
        files = certificates.files_of(self.folder, name)
        certificates.write(pair, files, replace=True)
        return files
