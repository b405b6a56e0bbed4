"""The OpenAPI 3.1 document, made from the table of routes and the structs that they read and answer with."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any

import msgspec

from windlass.core.check import NAME_MAX
from windlass.http.problem import MEDIA_TYPE, Problem
from windlass.http.read import KEY_HEADER, KEY_HEADER_MAX, KEY_PATTERN, list_fields
from windlass.http.route import Route, Table
from windlass.wire.schema import schema_components

REFERENCE = "#/components/schemas/{name}"
KEY = {"type": "string", "minLength": 1, "maxLength": KEY_HEADER_MAX, "pattern": KEY_PATTERN}
PATH_NAME = r"^[^\x00-\x1f\x7f-\x9f/]+$"
_PARAMETER = re.compile(r"{(\w+)}")
ERRORS = {
    "400": "The request cannot be read.",
    "401": "A valid key is needed.",
    "403": "This key may not do this, or not in this namespace.",
    "404": "There is no such thing here.",
    "409": "It contradicts what was accepted before, or the state does not allow it.",
    "410": "This is no longer kept.",
    "413": "The body is too large.",
    "422": "The request can be read, but a value has the wrong type, shape or range; `field` names it.",
    "503": "Not possible right now; try again later.",
}


def document(tables: Sequence[Table], version: str) -> dict[str, Any]:
    routes = [(table.tag, route) for table in tables for route in table.routes]
    kinds = list(
        dict.fromkeys(
            kind for _, route in routes for kind in (route.query, route.body, route.answer) if _is_struct(kind)
        )
    )
    schemas, components = schema_components([*kinds, Problem], REFERENCE)
    by_kind = dict(zip([*kinds, Problem], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for tag, route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(tag, route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Windlass", "version": version, "description": "A durable task and workflow engine."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
        "tags": [{"name": table.tag} for table in tables],
    }


def _operation(tag: str, route: Route, by_kind: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "tags": [tag],
        "summary": route.summary.partition(". ")[0].rstrip("."),
        "description": route.summary,
        "parameters": _parameters(route, by_kind, components),
        "responses": _responses(route, by_kind),
    }
    if route.role is None:
        operation["security"] = []
    else:
        operation["x-role"] = route.role.value
    if route.body is not None:
        required = any(field.required for field in msgspec.structs.fields(route.body))
        operation["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": by_kind[route.body]}},
        }
    return operation


def _parameters(route: Route, by_kind: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    found = [_path_parameter(name) for name in _PARAMETER.findall(route.path)]
    if route.query is not None:
        schema = components[by_kind[route.query]["$ref"].rsplit("/", 1)[1]]
        lists = list_fields(route.query)
        for name, kind in schema["properties"].items():
            required = name in schema.get("required", ())
            parameter = {"name": name, "in": "query", "required": required, "schema": _not_null(kind)}
            if name in lists:
                parameter |= {"style": "form", "explode": False}
            found.append(parameter)
    found += [
        {
            "name": name.title(),
            "in": "header",
            "required": False,
            "schema": KEY if name == KEY_HEADER else {"type": "string"},
        }
        for name in route.headers
    ]
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": PATH_NAME}
    if name.endswith("_id"):
        schema = {"type": "string", "format": "uuid"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what may be null may be left out."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else dict(schema)


def _responses(route: Route, by_kind: dict[Any, Any]) -> dict[str, Any]:
    content = {route.media: {"schema": by_kind[route.answer] if _is_struct(route.answer) else {"type": "string"}}}
    responses: dict[str, Any] = {str(route.status): {"description": "Done.", "content": content}}
    said = {"content": {MEDIA_TYPE: {"schema": by_kind[Problem]}}}
    for status in _possible(route):
        responses[status] = {"description": ERRORS[status], **said}
    return responses


def _possible(route: Route) -> list[str]:
    statuses = {"503"}
    if route.role is not None:
        statuses |= {"401", "403"}
    if route.query is not None or "{" in route.path:
        statuses |= {"400", "422"}
    if "{" in route.path:
        statuses |= {"404"}
    if "last-event-id" in route.headers:
        statuses |= {"400", "410"}
    if route.body is not None:
        statuses |= {"400", "409", "413", "422"}
    if route.method != "GET":
        statuses |= {"409"}
    return sorted(statuses)


def _is_struct(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)
