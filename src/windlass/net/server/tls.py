"""TLS of the HTTP servers. Replaced files are used from the next connection on, so certificates can be short-lived."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from windlass.errors import Invalid
from windlass.net.file_watcher import Watched

log = logging.getLogger("windlass.tls")


def server_context(certificate: Path, key: Path, *, setting: str) -> ssl.SSLContext:
    """A context with a certificate (and its chain) and its key. Raises Invalid for a file that cannot be used; its
    field is the setting, `{setting}_certificate` or `{setting}_key`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    check_file(certificate, f"{setting}_certificate")
    check_file(key, f"{setting}_key")
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        reason = f"{certificate} and {key} are not a certificate and its key: {error}"
        raise Invalid(reason, field=f"{setting}_certificate") from None
    return context


def check_file(file: Path, setting: str) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=setting) from None


def reloading(files: Iterable[Path], make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that is made again when one of the files was replaced. If the new files cannot be used, that is logged,
    and the old ones stay in use."""
    newest, watched = make(), Watched(files)
    entrance = newest

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Runs at the beginning of each handshake."""
        nonlocal newest
        if watched.replaced():
            try:
                newest = make()
                log.info("certificates were replaced: %s", ", ".join(map(str, files)))
            except Invalid as error:
                log.warning("the replaced certificates cannot be used: %s", error)
        connection.context = newest

    entrance.sni_callback = choose
    return entrance
