"""`windlass certs`: creates a certificate authority for development, and certificates for the internal port."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.options import Json
from windlass.cli.output import say, show
from windlass.contracts.lease.tls import certificates
from windlass.contracts.lease.tls.certificates import AUTHORITY, LOCAL_HOSTS, Files, files_of

SERVER = "server"

Days = Annotated[int, Parameter(help="Days that the certificate is valid.")]


@Parameter(name="*")
@dataclass(frozen=True)
class FileOptions:
    """Where a certificate and its key are written."""

    folder: Annotated[Path, Parameter(name="--dir", help="Folder of the files.")] = Path("certs")
    replace: Annotated[bool, Parameter(show_default=False, help="Overwrite existing files.")] = False
    json: Json = False

    def authority(self) -> certificates.Pair:
        return certificates.read(files_of(self.folder, AUTHORITY))

    def write(self, name: str, pair: certificates.Pair) -> None:
        files = files_of(self.folder, name)
        certificates.write(pair, files, replace=self.replace)
        paths = {"certificate": str(files.certificate), "key": str(files.key)}
        text = f"certificate {escape(paths['certificate'])}\nkey         {escape(paths['key'])}"
        show(paths, self.json, lambda: say(text))


DEFAULT_FILES = FileOptions()


def make_authority(*, days: Days = 3650, files: FileOptions = DEFAULT_FILES) -> None:
    """Create a certificate authority for development. Its key can let any caller in: keep it private."""
    files.write(AUTHORITY, certificates.make_authority(_now(), days))


def issue_server(
    *,
    host: Annotated[tuple[str, ...], Parameter(help="Host name or address of the server; repeatable.")] = LOCAL_HOSTS,
    days: Days = 365,
    files: FileOptions = DEFAULT_FILES,
) -> None:
    """Create a server certificate, signed by the authority in the same folder."""
    files.write(SERVER, certificates.issue_server(files.authority(), host, _now(), days))


def issue_client(
    name: str,
    *,
    namespace: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    days: Days = 365,
    files: FileOptions = DEFAULT_FILES,
) -> None:
    """Create a client certificate for the internal port, signed by the authority in the same folder.

    Parameters
    ----------
    name
        Name of the caller; it is recorded with every request.
    namespace
        Namespace that the caller may access; repeatable. Default: all.
    """
    files.write(name, certificates.issue_client(files.authority(), name, _now(), days, namespace))


def dev_certificates(folder: Path) -> tuple[Files, Files, Files]:
    """Returns the files of authority, server and client of a development server. Creates missing and expired ones."""
    authority, server, client = (files_of(folder, name) for name in (AUTHORITY, SERVER, "client"))
    now = _now()
    if not _is_valid(authority, now):
        certificates.write(certificates.make_authority(now, 3650), authority, replace=True)
    signed_by = certificates.read(authority)
    if not _is_valid(server, now, signed_by):
        certificates.write(certificates.issue_server(signed_by, LOCAL_HOSTS, now, 365), server, replace=True)
    if not _is_valid(client, now, signed_by):
        certificates.write(certificates.issue_client(signed_by, "client", now, 365), client, replace=True)
    return authority, server, client


def _is_valid(files: Files, now: datetime, authority: certificates.Pair | None = None) -> bool:
    if not files.certificate.exists() or not files.key.exists():
        return False
    found = certificates.read(files)
    return found.certificate.not_valid_after_utc > now and (authority is None or found.is_issued_by(authority))


def _now() -> datetime:
    return datetime.now(UTC)
