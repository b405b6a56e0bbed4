"""What certificates in files say: whose they are, from when until when, and whether a key belongs to one."""

from __future__ import annotations

import ssl
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509

from windlass.core.error import Invalid


class Paper(NamedTuple):
    """One certificate."""

    subject: str
    begins_at: datetime
    ends_at: datetime


def read_papers(field: str, file: Path) -> list[Paper]:
    """All certificates of a PEM file, the first one first. Raises Invalid for a file that has none."""
    try:
        found = x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=field) from None
    except ValueError:
        raise Invalid(f"the file {file} holds no certificate in PEM", field=field) from None
    return [Paper(one.subject.rfc4514_string(), one.not_valid_before_utc, one.not_valid_after_utc) for one in found]


def check_key(certificate: Path, key: Path) -> None:
    """Raise Invalid unless this is the key of that certificate."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one
        why = error.strerror if not isinstance(error, ssl.SSLError) else "it is not the key of the certificate"
        raise Invalid(f"the key {key} cannot be used: {why}", field="internal_key") from None
