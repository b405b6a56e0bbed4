"""The certificates of one trial: an authority, a server, a worker, and a server of an unknown authority."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from windlass.contracts.lease.tls import certificates
from windlass.contracts.lease.tls.certificates import LOCAL_HOSTS, Files, Pair

DAYS = 2


class TlsFiles:
    """The files in a folder. The worker gets `client` and `ca`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._now = folder, datetime.now(UTC)
        authority, stranger = (certificates.make_authority(self._now, DAYS) for _ in range(2))
        self.ca = self._write("ca", authority).certificate
        self.client = self._write("worker", certificates.issue_client(authority, "conformance", self._now, DAYS))
        self.server = self._context("server", authority)
        self.impostor = self._context("impostor", stranger)

    def _context(self, name: str, authority: Pair) -> ssl.SSLContext:
        """The TLS context of a server that requires client certificates of our authority."""
        files = self._write(name, certificates.issue_server(authority, LOCAL_HOSTS, self._now, DAYS))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _write(self, name: str, pair: Pair) -> Files:
        files = certificates.files_of(self._folder, name)
        certificates.write(pair, files)
        return files
