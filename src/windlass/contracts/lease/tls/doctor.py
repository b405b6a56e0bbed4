"""Checks the certificates of the internal port, for `windlass doctor`."""

from __future__ import annotations

import ssl
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from windlass.engine.read.doctor import Finding, Level

SOON = timedelta(days=14)
ADVICE = "see `windlass certs` and docs/howto/run-lease-workers.md"


def examine_certificates(
    certificate: Path | None, key: Path | None, authority: Path | None, now: datetime
) -> list[Finding]:
    """One finding for each file. `now` is the time of callers and servers."""
    found = []
    for name, file in (("internal_certificate", certificate), ("internal_ca", authority)):
        found.append(_missing(name) if file is None else _file(name, file, now))
    if key is None:
        found.append(_missing("internal_key"))
    elif certificate is not None and found[0].level is not Level.WRONG:
        found.append(_key(certificate, key))
    return found


def _missing(name: str) -> Finding:
    return Finding("certificate", Level.WRONG, f"{name} is not set: the internal port cannot open", ADVICE)


def _file(name: str, file: Path, now: datetime) -> Finding:
    """The certificate of a PEM file that expires first decides."""
    try:
        certificates = x509.load_pem_x509_certificates(file.read_bytes())
    except OSError as error:
        return Finding("certificate", Level.WRONG, f"the file {file} cannot be read: {error.strerror}", ADVICE)
    except ValueError:
        return Finding("certificate", Level.WRONG, f"the file {file} holds no certificate in PEM", ADVICE)
    first = min(certificates, key=lambda one: one.not_valid_after_utc)
    level, text = _judge(first.not_valid_before_utc, first.not_valid_after_utc, now)
    subject = first.subject.rfc4514_string()
    return Finding("certificate", level, f"{name} ({subject}) {text}", "" if level is Level.OK else ADVICE)


def _judge(begins_at: datetime, ends_at: datetime, now: datetime) -> tuple[Level, str]:
    if ends_at <= now:
        return Level.WRONG, f"expired on {ends_at:%Y-%m-%d}: all callers are refused"
    if begins_at > now:
        return Level.WRONG, f"is not valid before {begins_at:%Y-%m-%d %H:%M} UTC: check the clock"
    if ends_at - now < SOON:
        return Level.NOTE, f"expires on {ends_at:%Y-%m-%d}"
    return Level.OK, f"is valid until {ends_at:%Y-%m-%d}"


def _key(certificate: Path, key: Path) -> Finding:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError is one
        reason = error.strerror if not isinstance(error, ssl.SSLError) else "it is not the key of the certificate"
        return Finding("certificate", Level.WRONG, f"the key {key} cannot be used: {reason}", ADVICE)
    if key.stat().st_mode & 0o077:
        return Finding("certificate", Level.NOTE, f"others can read the key {key}", f"chmod 600 {key}")
    return Finding("certificate", Level.OK, "internal_key is the key of the certificate")
