"""Finds the endpoints of a path: an exact path by one lookup, a path with parameters by its shape.

A template is stored with `{}` for each parameter. A request's path is looked up with `{}` at the places where templates
of its length have parameters, so that the cost does not depend on the number of routes. A template with `rest` is
looked up last, by its beginning. A `%2F` is part of a parameter, never between two of them.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from urllib.parse import unquote

E = TypeVar("E")


class Paths(Generic[E]):
    """Endpoints by path and method. An exact path precedes a template, and `/a/{x}` precedes `/{x}/a`."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, E]] = {}
        self._templates: dict[str, tuple[list[tuple[str, int]], dict[str, E]]] = {}
        self._shapes: dict[int, list[tuple[int, ...]]] = {}  # places of the parameters, by the number of segments
        self._rests: dict[str, dict[str, E]] = {}

    def add(self, path: str, method: str, endpoint: E, *, rest: bool = False) -> None:
        """Add an endpoint. With `rest` the last parameter takes all segments that are left."""
        parts = path.split("/")
        if rest:
            self._rests.setdefault(path, {})[method] = endpoint
            return
        places = tuple(place for place, part in enumerate(parts) if part.startswith("{"))
        if not places:
            self._exact.setdefault(path, {})[method] = endpoint
            return
        names = [(parts[place].strip("{}"), place) for place in places]
        template = "/".join("{}" if place in places else part for place, part in enumerate(parts))
        self._templates.setdefault(template, (names, {}))[1][method] = endpoint
        shapes = self._shapes.setdefault(len(parts), [])
        if places not in shapes:
            shapes.append(places)
            shapes.sort(key=lambda shape: [place in shape for place in range(len(parts))])

    def find(self, text: str, raw: bytes | None = None) -> tuple[dict[str, E], dict[str, str]]:
        """Returns the endpoints by method, and the parameters. An unknown path has no endpoints. `raw` is the path as
        it was sent."""
        exact = self._exact.get(text)
        if exact is not None:
            return exact, {}
        parts = text.split("/")
        if raw is not None and b"%2f" in raw.lower():
            parts = [unquote(part) for part in raw.decode("latin-1").split("/")]
        for places in self._shapes.get(len(parts), ()):
            template = parts.copy()
            for place in places:
                template[place] = "{}"
            found = self._templates.get("/".join(template))
            if found is not None:
                path = {name: parts[place] for name, place in found[0]}
                if "" not in path.values():
                    return found[1], path
        for wanted, methods in self._rests.items():
            names = wanted.split("/")
            given = text.split("/", len(names) - 1)
            if [fixed(name, part) for name, part in zip(names, given, strict=False)] == names:
                path = {name.strip("{}"): part for name, part in zip(names, given, strict=True) if name[:1] == "{"}
                return methods, path
        return {}, {}


def fixed(name: str, part: str) -> str:
    """The segment of a template that a segment of a path fits: a parameter fits any but an empty one."""
    return name if name[:1] == "{" and part else part
