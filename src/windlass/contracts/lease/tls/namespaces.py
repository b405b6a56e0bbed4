"""Certificates that are bound to namespaces by alternative names of the form `windlass:namespace:NAME`.

A certificate without such a name is for all namespaces. The authority decides this, so servers need no settings for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

PREFIX = "windlass:namespace:"


def uri_of(namespace: str) -> str:
    """The alternative name that binds a certificate to this namespace."""
    return PREFIX + quote(namespace, safe="")


def namespaces_of(uris: Iterable[str]) -> tuple[str, ...] | None:
    """The namespaces that a certificate with these names is bound to; None for all."""
    found = [unquote(uri[len(PREFIX) :]) for uri in uris if uri[: len(PREFIX)].lower() == PREFIX]
    return tuple(found) or None
