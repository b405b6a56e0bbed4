"""Example payloads for the hint that `windlass dev` prints."""

from __future__ import annotations

from typing import Any

import msgspec

BY_TYPE: dict[str, object] = {
    "string": "text", "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {},
}  # fmt: skip


def sample_payload(schema: dict[str, Any]) -> str:
    """A payload with the required fields of the schema, as JSON quoted for a shell."""
    shown = msgspec.json.encode(_value(schema, schema.get("$defs", {}))).decode()
    return shown.replace("'", r"'\''")


def _value(schema: dict[str, Any], known: dict[str, Any]) -> object:
    if "$ref" in schema:
        return _value(known.get(schema["$ref"].rpartition("/")[2], {}), known)
    for choice in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        return _value(choice, known)
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("type") == "object":
        needed = schema.get("required", ())
        return {name: _value(part, known) for name, part in schema.get("properties", {}).items() if name in needed}
    return BY_TYPE.get(str(schema.get("type")), {})
