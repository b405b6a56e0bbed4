"""`windlass certs`: an authority for development, and certificates for the internal port and its callers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.markup import escape

from windlass.cli.option import Json
from windlass.cli.output import say, show
from windlass.wire import certificate
from windlass.wire.certificate import AUTHORITY, LOCAL_HOSTS, Files, files_of

DEFAULT_FOLDER = Path("certs")
SERVER = "server"

Folder = Annotated[Path, Parameter(name="--dir", help="Where the files lie.")]
Days = Annotated[int, Parameter(help="For how many days it is good.")]
Replace = Annotated[bool, Parameter(show_default=False, help="Overwrite what is there.")]


def make_authority(
    *, folder: Folder = DEFAULT_FOLDER, days: Days = 3650, replace: Replace = False, json: Json = False
) -> None:
    """Make an authority for development. Whoever has its key can let anybody in: keep it where it is."""
    files = files_of(folder, AUTHORITY)
    certificate.write(certificate.make_authority(_now(), days), files, replace=replace)
    _tell(files, json)


def issue_server(
    *,
    host: Annotated[tuple[str, ...], Parameter(help="A name or address by which the server is reached.")] = LOCAL_HOSTS,
    folder: Folder = DEFAULT_FOLDER,
    days: Days = 365,
    replace: Replace = False,
    json: Json = False,
) -> None:
    """Make a certificate for a server, by the authority of the same folder."""
    pair = certificate.issue_server(certificate.read(files_of(folder, AUTHORITY)), host, _now(), days)
    files = files_of(folder, SERVER)
    certificate.write(pair, files, replace=replace)
    _tell(files, json)


def issue_client(
    name: str,
    *,
    namespace: Annotated[tuple[str, ...], Parameter(show_default=False)] = (),
    folder: Folder = DEFAULT_FOLDER,
    days: Days = 365,
    replace: Replace = False,
    json: Json = False,
) -> None:
    """Make a certificate for somebody who may call the internal port, by the authority of the same folder.

    Parameters
    ----------
    name
        Who that is; it is kept with everything that is said with it.
    namespace
        Bind it to this namespace: it hears of no task of others, and holds none. As many as are needed; default: all.
    """
    pair = certificate.issue_client(certificate.read(files_of(folder, AUTHORITY)), name, _now(), days, namespace)
    files = files_of(folder, name)
    certificate.write(pair, files, replace=replace)
    _tell(files, json)


def dev_certificates(folder: Path) -> tuple[Files, Files, Files]:
    """The authority, the server and one client of a development server, made if they are not there or have run out."""
    authority, server, client = (files_of(folder, name) for name in (AUTHORITY, SERVER, "client"))
    now = _now()
    if not _good(authority, now):
        certificate.write(certificate.make_authority(now, 3650), authority, replace=True)
    signed_by = certificate.read(authority)
    if not _good(server, now, signed_by):
        certificate.write(certificate.issue_server(signed_by, LOCAL_HOSTS, now, 365), server, replace=True)
    if not _good(client, now, signed_by):
        certificate.write(certificate.issue_client(signed_by, "client", now, 365), client, replace=True)
    return authority, server, client


def _good(files: Files, now: datetime, authority: certificate.Pair | None = None) -> bool:
    if not files.certificate.exists() or not files.key.exists():
        return False
    found = certificate.read(files)
    return found.certificate.not_valid_after_utc > now and (authority is None or found.is_issued_by(authority))


def _now() -> datetime:
    return datetime.now(UTC)


def _tell(files: Files, as_json: bool) -> None:
    told = {"certificate": str(files.certificate), "key": str(files.key)}
    show(told, as_json, lambda: say(f"certificate {escape(told['certificate'])}\nkey         {escape(told['key'])}"))
