"""TLS of the servers that speak HTTP. Files that were replaced hold from the next connection on, so that certificates
may live for days only."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from windlass.core.error import Invalid
from windlass.wire.watched import Watched

log = logging.getLogger("windlass.tls")


def server_context(certificate: Path, key: Path, *, setting: str) -> ssl.SSLContext:
    """A context with a certificate (and its chain) and its key. Raises Invalid that names the file which cannot be used
    by its setting, `{setting}_certificate` or `{setting}_key`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    check_file(certificate, f"{setting}_certificate")
    check_file(key, f"{setting}_key")
    try:
        context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError) as error:
        raise Invalid(f"{certificate} and {key} are no certificate with its key: {error}",
                      field=f"{setting}_certificate") from None  # fmt: skip
    return context


def check_file(file: Path, setting: str) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise Invalid(f"the file {file} cannot be read: {error.strerror}", field=setting) from None


def reloading(files: Iterable[Path], make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """A context that is made anew when one of the files was replaced. What cannot be used is told in the log, and what
    was good before stays in force."""
    newest, watched = make(), Watched(files)
    entrance = newest

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Asked at the beginning of each handshake."""
        nonlocal newest
        if watched.replaced():
            try:
                newest = make()
                log.info("certificates were replaced: %s", ", ".join(map(str, files)))
            except Invalid as error:
                log.warning("certificates were replaced by what cannot be used: %s", error)
        connection.context = newest

    entrance.sni_callback = choose
    return entrance
