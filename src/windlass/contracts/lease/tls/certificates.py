"""A small certificate authority for development: certificates for the internal port and for its callers.

Owns the content of such a certificate (subject, usage, validity) and its files. An installation with its own authority
does not need this module.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from windlass.contracts.lease.tls.namespaces import uri_of
from windlass.core.validation import check_name, check_text
from windlass.errors import Conflict, Invalid

ORGANIZATION = "Windlass development"
SKEW = timedelta(minutes=5)
AUTHORITY = "ca"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


class Pair(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def is_issued_by(self, authority: Pair) -> bool:
        try:
            self.certificate.verify_directly_issued_by(authority.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


class Files(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


def make_authority(now: datetime, days: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Windlass development CA")
    return Pair(_builder(name, name, key.public_key(), now, days, signs=True).sign(key, hashes.SHA256()), key)


def issue_server(authority: Pair, hosts: Sequence[str], now: datetime, days: int) -> Pair:
    """A certificate for a server with these names and addresses. It cannot be used as a client certificate."""
    if not hosts:
        raise Invalid("must have at least one name or address", field="host")
    return _issue(authority, hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, [_host(h) for h in hosts], now, days)


def issue_client(authority: Pair, name: str, now: datetime, days: int, namespaces: Sequence[str] = ()) -> Pair:
    """A certificate for a caller, for tasks of these namespaces, or of all namespaces if there is none. It cannot be
    used as a server certificate."""
    check_text("name", name, 64)
    for namespace in namespaces:
        check_name("namespace", namespace)
    uris = [f"windlass:worker:{_word(name)}", *(uri_of(namespace) for namespace in namespaces)]
    others: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    return _issue(authority, name, ExtendedKeyUsageOID.CLIENT_AUTH, others, now, days)


def _issue(
    authority: Pair, name: str, use: x509.ObjectIdentifier, others: list[x509.GeneralName], now: datetime, days: int
) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_name(name), authority.certificate.subject, key.public_key(), now, days, signs=False)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int, *, signs: bool
) -> x509.CertificateBuilder:
    """A certificate with the extensions that all of ours have. `signs`: it is that of an authority."""
    usage = x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _host(text: str) -> x509.GeneralName:
    check_text("host", text, 64)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise Invalid(f"{text!r} is not a host name", field="host") from None


def _word(name: str) -> str:
    """A name as a part of a URI."""
    return "".join(char if (char.isascii() and char.isalnum()) or char in "-._" else "-" for char in name)


# --------------------------------------------------------------------------------------------- files


def files_of(folder: Path, name: str) -> Files:
    check_text("name", name, 64)
    if name != _word(name) or name.startswith("."):
        raise Invalid("must be letters, digits, dashes and dots", field="name")
    return Files(folder / f"{name}.pem", folder / f"{name}-key.pem")


def write(pair: Pair, files: Files, *, replace: bool = False) -> None:
    """Write a pair to its files. Only the owner can read the key. Existing files are kept unless `replace` is set."""
    if not replace and any(file.exists() for file in files):
        raise Conflict(f"{files.certificate} exists already")
    files.certificate.parent.mkdir(parents=True, exist_ok=True)
    secret = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _put(files.key, secret, 0o600)
    _put(files.certificate, pair.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _put(file: Path, content: bytes, mode: int) -> None:
    """Write a file atomically. It never has wider rights than `mode`."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
    draft.replace(file)


def read(files: Files) -> Pair:
    """Raises Invalid if there is no such pair."""
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    except OSError as error:
        raise Invalid(f"the file {error.filename} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Invalid(f"{files.certificate} and {files.key} are not a certificate and its key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Invalid(f"{files.key} is not an elliptic curve key")
    return Pair(certificate, key)
