"""Reads certificate files: subject, validity, and whether a key belongs to a certificate."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from windlass.errors import Invalid


class CertificateInfo(NamedTuple):
    """One certificate."""

    subject: str
    begins_at: datetime
    ends_at: datetime


def read_certificates(field: str, file: Path) -> list[CertificateInfo]:
    """All certificates of a PEM file, the first one first. Raises Invalid for a file that has none."""
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=field) from None
    except ValueError:
        raise Invalid(f"the file {file} holds no certificate in PEM", field=field) from None
    return [
        CertificateInfo(one.subject.rfc4514_string(), one.not_valid_before_utc, one.not_valid_after_utc)
        for one in found
    ]


def check_key(certificate: Path, key: Path) -> None:
    """Raise Invalid unless this is the key of that certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it is not the key of the certificate"
        raise Invalid(f"the key {key} cannot be used: {reason}", field="internal_key") from None
