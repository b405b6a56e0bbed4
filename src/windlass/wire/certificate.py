"""A small authority for development: certificates for the internal port and for those who may call it.

Owns what such a certificate says (who it is for, what it may be used for, how long) and how it lies in files. Who has
an authority brings its certificates; nothing here is asked then.
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

from windlass.core.check import check_name, check_text
from windlass.core.error import Conflict, Invalid
from windlass.wire.reach import uri_of

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
    """Where a certificate and its key lie."""

    certificate: Path
    key: Path


def make_authority(now: datetime, days: int) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Windlass development CA")
    builder = (
        _begun(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue_server(authority: Pair, hosts: Sequence[str], now: datetime, days: int) -> Pair:
    """For a server that is reached by these names and addresses. Nobody can call with it."""
    if not hosts:
        raise Invalid("give at least one name or address", field="host")
    return _issue(authority, hosts[0], ExtendedKeyUsageOID.SERVER_AUTH, [_host(h) for h in hosts], now, days)


def issue_client(authority: Pair, name: str, now: datetime, days: int, namespaces: Sequence[str] = ()) -> Pair:
    """For somebody who may call, about tasks of these namespaces, or of all if none is named. Nobody can serve with
    it."""
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
        _begun(_name(name), authority.certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(x509.SubjectAlternativeName(others), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs, crl_sign=signs, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(text: str) -> x509.GeneralName:
    check_text("host", text, 64)
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise Invalid(f"{text!r} is no name of a host", field="host") from None


def _word(name: str) -> str:
    """As part of a URI."""
    return "".join(letter if (letter.isascii() and letter.isalnum()) or letter in "-._" else "-" for letter in name)


# --------------------------------------------------------------------------------------------- files


def files_of(folder: Path, name: str) -> Files:
    check_text("name", name, 64)
    if name != _word(name) or name.startswith("."):
        raise Invalid("must be letters, digits, dashes and dots", field="name")
    return Files(folder / f"{name}.pem", folder / f"{name}-key.pem")


def write(pair: Pair, files: Files, *, replace: bool = False) -> None:
    """The key can be read by its owner only. What is there is not overwritten unless that is asked for."""
    if not replace and any(file.exists() for file in files):
        raise Conflict(f"{files.certificate} is there already")
    files.certificate.parent.mkdir(parents=True, exist_ok=True)
    secret = pair.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _put(files.key, secret, 0o600)
    _put(files.certificate, pair.certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _put(file: Path, content: bytes, mode: int) -> None:
    """All of it or nothing, for whoever reads it meanwhile; never readable by more than it should be."""
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
        raise Invalid(f"{files.certificate} and {files.key} are no certificate with its key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Invalid(f"{files.key} is a key of another kind")
    return Pair(certificate, key)
