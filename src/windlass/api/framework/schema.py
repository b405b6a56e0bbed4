"""JSON Schema of our structs, for documents from which programs generate clients.

Adds what generators need: plain names, `format: date-time` for every instant, a type beside every enum, and no default
that is an object, which they cannot write into code.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

_GENERIC = re.compile(r"(\w+?)_(\w+)_")


def schema_components(kinds: Sequence[Any], reference: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the schema of each of these types, and by name the schemas that they refer to by `reference`."""
    schemas, found = msgspec.json.schema_components(kinds, ref_template=reference)
    for struct in _structs(kinds):
        for field in struct.fields:
            _mark(found[struct.cls.__name__]["properties"][field.encode_name], field.type)
    return [_plain(schema) for schema in schemas], {_name(name): _plain(schema) for name, schema in found.items()}


def _name(name: str) -> str:
    """The name for clients: `TaskFormList` for `Listed_TaskForm_`. Two structs must not have the same name."""
    assert "." not in name, f"{name}: another struct has this name"
    found = _GENERIC.fullmatch(name)
    return name if found is None else f"{found[2]}{found[1].removesuffix('ed')}"


def _plain(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _plain(value) for key, value in schema.items()}
    if isinstance(reference := made.get("$ref"), str):
        place, _, name = reference.rpartition("/")
        made["$ref"] = f"{place}/{_name(name)}"
    if "enum" in made and all(isinstance(value, str) for value in made["enum"]):
        made.setdefault("type", "string")
    if isinstance(made.get("default"), dict):
        del made["default"]
    return made


def _structs(kinds: Sequence[Any]) -> list[inspect.StructType]:
    """The structs among these types and in their fields."""
    found: dict[type, inspect.StructType] = {}
    waiting: list[Any] = list(inspect.multi_type_info(kinds))
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, inspect.StructType) and kind.cls not in found:
            if typing.get_origin(kind.cls) is None and not getattr(kind.cls, "__parameters__", ()):
                found[kind.cls] = kind
            waiting += [field.type for field in kind.fields]
        waiting += [
            inner for inner in _within(kind) if not isinstance(inner, inspect.StructType) or inner.cls not in found
        ]
    return list(found.values())


def _within(kind: Any) -> list[Any]:
    names = ("item_type", "key_type", "value_type", "type")
    inner = [getattr(kind, name) for name in names if isinstance(getattr(kind, name, None), inspect.Type)]
    return [*inner, *getattr(kind, "types", ()), *(getattr(kind, "item_types", ()))]


def _mark(schema: dict[str, Any], kind: Any) -> None:
    """Add `format: date-time` to instants. msgspec omits it where a time may have no zone; all of ours have one."""
    match kind:
        case inspect.DateTimeType():
            schema.setdefault("format", "date-time")
        case inspect.Metadata():
            _mark(schema, kind.type)
        case inspect.UnionType():
            for option in schema.get("anyOf", ()):
                if option == {"type": "string"} and any(isinstance(one, inspect.DateTimeType) for one in kind.types):
                    option["format"] = "date-time"
        case inspect.ListType() | inspect.VarTupleType():
            _mark(schema["items"], kind.item_type)
