"""Turns the error codes of an answer back into our errors. Codes never change."""

from __future__ import annotations

from collections.abc import Iterator

from windlass import errors
from windlass.errors import WindlassError


def _tree(kind: type[WindlassError]) -> Iterator[type[WindlassError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


BY_CODE = {kind.code: kind for kind in _tree(WindlassError)}


def error_from(code: str, message: str) -> WindlassError:
    """The error that a server reported; a WindlassError for an unknown code."""
    return BY_CODE.get(code, WindlassError)(message or None)
