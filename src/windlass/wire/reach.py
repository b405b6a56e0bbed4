"""Certificates that are bound to namespaces: names of the form `windlass:namespace:NAME` among their others.

One that has none is for all of them. What is bound says its authority, so that no server has to be told who may what.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote, unquote

PREFIX = "windlass:namespace:"


def uri_of(namespace: str) -> str:
    """The name that binds a certificate to this namespace."""
    return PREFIX + quote(namespace, safe="")


def namespaces_of(uris: Iterable[str]) -> tuple[str, ...] | None:
    """What these names bind a certificate to; None: nothing."""
    found = [unquote(uri[len(PREFIX) :]) for uri in uris if uri[: len(PREFIX)].lower() == PREFIX]
    return tuple(found) or None
