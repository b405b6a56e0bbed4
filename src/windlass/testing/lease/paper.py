"""The certificates of one trial: an authority, a server, a worker, and a server of an authority that nobody knows."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from windlass.wire import certificate
from windlass.wire.certificate import LOCAL_HOSTS, Files, Pair

DAYS = 2


class Papers:
    """Written to a folder. `client` and `ca` are the worker's."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._now = folder, datetime.now(UTC)
        authority, stranger = (certificate.make_authority(self._now, DAYS) for _ in range(2))
        self.ca = self._write("ca", authority).certificate
        self.client = self._write("worker", certificate.issue_client(authority, "conformance", self._now, DAYS))
        self.server = self._context("server", authority)
        self.impostor = self._context("impostor", stranger)

    def _context(self, name: str, authority: Pair) -> ssl.SSLContext:
        """For a server that asks its callers for a certificate of our authority."""
        files = self._write(name, certificate.issue_server(authority, LOCAL_HOSTS, self._now, DAYS))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(files.certificate, files.key)
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _write(self, name: str, pair: Pair) -> Files:
        files = certificate.files_of(self._folder, name)
        certificate.write(pair, files)
        return files
