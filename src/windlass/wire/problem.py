"""Errors of ours on the way to a caller and back: by their codes, which never change."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.core import error
from windlass.core.error import WindlassError


def _tree(kind: type[WindlassError]) -> Iterator[type[WindlassError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == error.__name__:
            yield from _tree(child)


BY_CODE = {kind.code: kind for kind in _tree(WindlassError)}


def error_from(code: str, message: str) -> WindlassError:
    """The error that a peer told us of; a code that we do not know is an error all the same."""
    made = BY_CODE.get(code, WindlassError)
    return made(message or None)
