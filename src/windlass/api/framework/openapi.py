"""Writes the OpenAPI 3.1 document of our API and of every HTTP contract from their tables of routes."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from windlass.api.framework.request import KEY_HEADER, KEY_HEADER_MAX, KEY_PATTERN, list_fields
from windlass.api.framework.route import Route, Scheme, Table
from windlass.api.framework.schema import schema_components
from windlass.core.validation import NAME_MAX

REFERENCE = "#/components/schemas/{name}"
KEY = {"type": "string", "minLength": 1, "maxLength": KEY_HEADER_MAX, "pattern": KEY_PATTERN}
PATH_NAME = {"type": "string", "minLength": 1, "maxLength": NAME_MAX, "pattern": r"^[^\x00-\x1f\x7f-\x9f/]+$"}
PATH_ID = {"type": "string", "format": "uuid"}
ANY_BODY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_PARAMETER = re.compile(r"{(\w+)}")


class Contract(NamedTuple):
    """The content of a document besides its routes. `errors` describes every status of an error, `parameters` has the
    schema and description of path parameters that are neither ids nor names."""

    info: Mapping[str, str]
    scheme: Scheme
    error: type
    errors: Mapping[int, str]
    error_media: str = "application/json"
    parameters: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({})


def document(tables: Sequence[Table], contract: Contract, version: str) -> dict[str, Any]:
    routes = [(table.tag, route) for table in tables for route in table.routes]
    kinds = dict.fromkeys(kind for _, route in routes for kind in _structs(route))
    kinds[contract.error] = None
    schemas, components = schema_components(list(kinds), REFERENCE)
    writer = _Writer(contract, dict(zip(kinds, schemas, strict=True)), components)
    paths: dict[str, dict[str, Any]] = {}
    for tag, route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = writer.operation(tag, route)
    schemes = {route.scheme.name: route.scheme for _, route in routes if route.scheme is not None}
    return {
        "openapi": "3.1.0",
        "info": {**contract.info, "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {name: dict(scheme.definition) for name, scheme in schemes.items()},
        },
        "security": [{contract.scheme.name: []}],
        "tags": [{"name": table.tag} for table in tables],
    }


class _Writer:
    def __init__(self, contract: Contract, schemas: Mapping[Any, Any], components: Mapping[str, Any]) -> None:
        self._contract, self._schemas, self._components = contract, schemas, components

    def operation(self, tag: str, route: Route) -> dict[str, Any]:
        operation: dict[str, Any] = {
            "operationId": route.name,
            "tags": [tag],
            "summary": route.summary.partition(". ")[0].rstrip("."),
            "description": route.summary,
            "parameters": self._parameters(route),
            "responses": self._responses(route),
        }
        if route.scheme is None:
            operation["security"] = []
        elif route.scheme is not self._contract.scheme:
            operation["security"] = [{route.scheme.name: []}]
        if route.role is not None:
            operation["x-role"] = route.role.value
        if route.body is bytes:
            operation["requestBody"] = {"required": False, "content": ANY_BODY}
        elif route.body is not None:
            required = any(field.required for field in msgspec.structs.fields(route.body))
            operation["requestBody"] = {"required": required, "content": self._content(route.body)}
        return operation

    def _parameters(self, route: Route) -> list[dict[str, Any]]:
        found = []
        for name in _PARAMETER.findall(route.path):
            described = self._contract.parameters.get(name)
            described = described or {"schema": PATH_ID if name.endswith("_id") else PATH_NAME}
            found.append({"name": name, "in": "path", "required": True, **described})
        if route.query is not None:
            schema = self._components[self._schemas[route.query]["$ref"].rsplit("/", 1)[1]]
            lists = list_fields(route.query)
            for name, kind in schema["properties"].items():
                required = name in schema.get("required", ())
                parameter = {"name": name, "in": "query", "required": required, "schema": _not_null(kind)}
                found.append(parameter | {"style": "form", "explode": False} if name in lists else parameter)
        for name in route.headers:
            schema = KEY if name == KEY_HEADER else {"type": "string"}
            found.append({"name": name.title(), "in": "header", "required": False, "schema": schema})
        return found

    def _responses(self, route: Route) -> dict[str, Any]:
        answers = [kind for kind in _alternatives(route.answer) if _is_struct(kind)]
        text = " ".join(" ".join((kind.__doc__ or "").split()) for kind in answers) or "Done."
        content = self._content(*answers, media=route.media)
        error = self._content(self._contract.error, media=self._contract.error_media)
        known = () if route.known_status is None else (route.known_status,)
        return {
            **{str(status): {"description": text, "content": content} for status in (route.status, *known)},
            **{
                str(status): {"description": self._contract.errors[status], "content": error}
                for status in route.errors or possible_errors(route)
            },
        }

    def _content(self, *kinds: Any, media: str = "application/json") -> dict[str, Any]:
        unknown = {"type": "object" if media == "application/json" else "string"}
        schemas = [self._schemas[kind] for kind in kinds] or [unknown]
        return {media: {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}}}


def possible_errors(route: Route) -> list[int]:
    """The statuses of the errors that a route of our API can return, by what it reads."""
    statuses = {503}
    if route.scheme is not None:
        statuses |= {401, 403}
    if route.query is not None or "{" in route.path:
        statuses |= {400, 422}
    if "{" in route.path:
        statuses |= {404}
    if "last-event-id" in route.headers:
        statuses |= {400, 410}
    if route.body is not None:
        statuses |= {400, 409, 413, 422}
    if route.method != "GET":
        statuses |= {409}
    return sorted(statuses)


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter: a query has no null, a field is left out instead."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    return options[0] if len(options) == 1 else dict(schema)


def _structs(route: Route) -> list[Any]:
    return [kind for kind in (route.query, route.body, *_alternatives(route.answer)) if _is_struct(kind)]


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _is_struct(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)
