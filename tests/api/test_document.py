"""The OpenAPI document says what generators of clients need."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from windlass.api.app import TABLES, openapi_document
from windlass.contracts.callback.server.app import openapi_document as callback_document
from windlass.contracts.lease.server.app import openapi_document as lease_document
from windlass.contracts.machine.server.app import openapi_document as machine_document

DOCUMENT = openapi_document("1.0")
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
INSTANT = re.compile(r"(.*_)?at|until|created_since|created_before|fires|local")


def schemas(value: Any = DOCUMENT, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything within the document that is an object, with where it is."""
    if isinstance(value, dict):
        yield path, value
        for name, inner in value.items():
            yield from schemas(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from schemas(inner, f"{path}/{place}")


def test_names_of_components_are_words() -> None:
    assert [name for name in SCHEMAS if not re.fullmatch(r"[A-Z][A-Za-z0-9]+", name)] == []
    used = {schema["$ref"] for _, schema in schemas() if isinstance(schema.get("$ref"), str)}
    assert used <= {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_no_default_is_an_object() -> None:
    assert [path for path, schema in schemas() if isinstance(schema.get("default"), dict)] == []


def test_every_enum_has_a_type() -> None:
    assert [path for path, schema in schemas() if isinstance(schema.get("enum"), list) and "type" not in schema] == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_instant_is_a_date_time(name: str) -> None:
    for field, schema in SCHEMAS[name].get("properties", {}).items():
        if INSTANT.fullmatch(field):
            said = next((option for option in schema.get("anyOf", ()) if option["type"] != "null"), schema)
            said = said.get("items", said)
            assert (said["type"], said.get("format")) == ("string", "date-time"), (field, schema)


def test_every_instant_is_called_so() -> None:
    """So that the test above finds all of them."""
    for table in TABLES:
        for route in table.routes:
            for kind in (route.query, route.body, route.answer):
                for field, hint in getattr(kind, "__annotations__", {}).items():
                    if hint is datetime or "datetime" in str(hint):
                        assert INSTANT.fullmatch(field), (kind, field)


def test_every_operation_has_a_name_of_its_own_and_an_answer_with_a_schema() -> None:
    names = [operation["operationId"] for operation in OPERATIONS]
    assert len(set(names)) == len(names)
    for operation in OPERATIONS:
        for answer in operation["responses"].values():
            assert all(content["schema"] for content in answer["content"].values()), operation["operationId"]


def test_a_position_in_the_feed_has_no_bounds_that_the_server_does_not_have() -> None:
    [header] = [one for one in DOCUMENT["paths"]["/api/v1/changes"]["get"]["parameters"] if one["in"] == "header"]
    assert (header["name"], header["schema"]) == ("Last-Event-Id", {"type": "string"})


@pytest.mark.parametrize(
    "made", [lease_document, callback_document, machine_document], ids=["lease", "callback", "machine"]
)
def test_the_documents_of_contracts_are_as_plain(made: Callable[[str], dict[str, Any]]) -> None:
    found = list(schemas(made("1.0")))
    assert [path for path, schema in found if isinstance(schema.get("default"), dict)] == []
    assert [path for path, schema in found if isinstance(schema.get("enum"), list) and "type" not in schema] == []
    for path, schema in found:
        if re.fullmatch(r".*_?[aA]t", path.rpartition("/")[2]) and schema.get("type") == "string":
            assert schema.get("format") == "date-time", path
