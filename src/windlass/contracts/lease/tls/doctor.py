"""Checks the certificates of the internal port, for `windlass doctor`."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from windlass.contracts.lease.tls.certificate_info import CertificateInfo, check_key, read_certificates
from windlass.engine.read.doctor import Finding, Level
from windlass.errors import Invalid

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
    try:
        certificates = read_certificates(name, file)
    except Invalid as error:
        return Finding("certificate", Level.WRONG, error.message, ADVICE)
    worst = min(certificates, key=lambda info: info.ends_at)
    level, text = _judge(worst, now)
    return Finding("certificate", level, f"{name} ({worst.subject}) {text}", "" if level is Level.OK else ADVICE)


def _judge(info: CertificateInfo, now: datetime) -> tuple[Level, str]:
    if info.ends_at <= now:
        return Level.WRONG, f"ran out on {info.ends_at:%Y-%m-%d}: nobody is let in"
    if info.begins_at > now:
        return Level.WRONG, f"is good from {info.begins_at:%Y-%m-%d %H:%M} UTC only: is the clock right?"
    if info.ends_at - now < SOON:
        return Level.NOTE, f"runs out on {info.ends_at:%Y-%m-%d}"
    return Level.OK, f"is good until {info.ends_at:%Y-%m-%d}"


def _key(certificate: Path, key: Path) -> Finding:
    try:
        check_key(certificate, key)
    except Invalid as error:
        return Finding("certificate", Level.WRONG, error.message, ADVICE)
    if key.stat().st_mode & 0o077:
        return Finding("certificate", Level.NOTE, f"others can read the key {key}", f"chmod 600 {key}")
    return Finding("certificate", Level.OK, "internal_key is the key of the certificate")
