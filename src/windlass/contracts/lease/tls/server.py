"""Servers that require client certificates and identify callers by them.

A caller needs TLS 1.3 and a certificate of a configured authority, or the handshake fails. Sessions are not resumed, so
each connection shows its certificate; a certificate that expires closes its open connection. Replaced files are used
from the next connection on, so that certificates may be short-lived.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import time
from pathlib import Path
from typing import Any, NamedTuple

from windlass.contracts.lease.rules import Caller
from windlass.contracts.lease.tls.namespaces import namespaces_of
from windlass.core.validation import clean_text
from windlass.errors import Invalid
from windlass.net.server.limits import LimitedProtocol
from windlass.net.server.tls import check_file, reloading, server_context

log = logging.getLogger("windlass.internal")

CALLER = "caller"
NAME_MAX, NAMES_MAX = 500, 20
_SHORT = {
    "commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU", "countryName": "C",
    "localityName": "L", "stateOrProvinceName": "ST",
}  # fmt: skip


class Certificates(NamedTuple):
    """PEM files: the server's certificate (with its chain), its key, and the authorities of accepted clients."""

    certificate: Path
    key: Path
    authority: Path


class Guard(NamedTuple):
    """The TLS context and protocol for `net.server.server.listening`."""

    context: ssl.SSLContext
    protocol: type[LimitedProtocol]


def guarded(files: Certificates) -> Guard:
    """Raises Invalid, which names the file that cannot be used."""
    return Guard(reloading(files, lambda: _context_of(files)), CertifiedProtocol)


def _context_of(files: Certificates) -> ssl.SSLContext:
    check_file(files.authority, "internal_ca")
    context = server_context(files.certificate, files.key, setting="internal")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.authority)
    except (ssl.SSLError, OSError) as error:
        raise Invalid(f"{files.authority} holds no authority: {error}", field="internal_ca") from None
    return context


class CertifiedProtocol(LimitedProtocol):
    """One connection. The state of each of its requests holds the caller."""

    good_until_s = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        plain = tls.getpeercert() if tls is not None else None
        if not plain:  # the handshake refuses these already; check again
            transport.abort()
            return
        self.good_until_s = ssl.cert_time_to_seconds(plain["notAfter"])
        self.app_state = {**self.app_state, CALLER: caller_of(plain, tls.getpeercert(binary_form=True))}

    def data_received(self, data: bytes) -> None:
        if time.time() > self.good_until_s:
            log.warning("closing a connection: the certificate of %s has expired", self.app_state.get(CALLER))
            self.transport.abort()
            return
        super().data_received(data)


def caller_of(plain: dict[str, Any], encoded: bytes) -> Caller:
    """The caller that this certificate names."""
    parts = [(name, value) for relative in plain.get("subject", ()) for name, value in relative]
    subject = ",".join(f"{_SHORT.get(name, name)}={value}" for name, value in parts)
    others = plain.get("subjectAltName", ())
    names = [clean_text("name", f"{kind}:{value}", NAME_MAX) for kind, value in others[:NAMES_MAX]]
    bound = namespaces_of(value for kind, value in others if kind == "URI")  # all of them, beyond NAMES_MAX as well
    fingerprint = hashlib.sha256(encoded).hexdigest()
    return Caller(clean_text("subject", subject, NAME_MAX), fingerprint, tuple(names), bound)
