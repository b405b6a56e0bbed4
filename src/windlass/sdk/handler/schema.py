"""Type hints are the schema: how the arguments and the result of a handler become JSON, and are read again.

A payload is a JSON object with one member per parameter. Scalars, lists, dicts, dataclasses, TypedDicts, msgspec
structs and pydantic models are all read and written here, and nowhere else; there is no pickle.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import asdict

from windlass.core.json_text import UNWRITABLE, JsonWriter
from windlass.core.text import words_of
from windlass.errors import Invalid

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Schema:
    """The shape of one handler's arguments and result. `context_type` marks the parameter that the worker fills in."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self.name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
        try:
            signature, hints = inspect.signature(function), typing.get_type_hints(function)
        except (NameError, TypeError, ValueError, AttributeError, SyntaxError) as error:
            raise Invalid(
                f"{self.name}: its parameters or type hints cannot be read: {error}", field="function"
            ) from None
        contexts = [n for n, hint in hints.items() if inspect.isclass(hint) and issubclass(hint, context_type)]
        self.context_parameter = next((name for name in signature.parameters if name in contexts), None)
        taken = [p for p in signature.parameters.values() if p.name != self.context_parameter]
        for parameter in taken:
            if parameter.kind not in _KINDS:
                raise Invalid(f"{self.name}: {parameter} cannot be sent by name", field=parameter.name)
        self._signature = inspect.Signature(taken)
        self._names = [p.name for p in taken if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        needed = [p.name for p in taken if p.default is inspect.Parameter.empty]
        self._by_place = range(len(needed), len(self._names) + 1 if set(needed) <= set(self._names) else 0)
        fields = [_field(parameter, hints.get(parameter.name, Any)) for parameter in taken]
        self._arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self._result_type = hints.get("return", Any)
        self._payload = JsonType(self.name, self._arguments, "payload")
        result = JsonType(self.name, self._result_type)
        self.result, self.read_result = result.write, result.read

    def takes(self, name: str) -> bool:
        return name in self._signature.parameters

    def single_parameter(self) -> str:
        """The parameter that a single argument goes to."""
        try:
            self._signature.bind(None)
        except TypeError as error:
            raise Invalid(f"{self.name}: must take one argument: {error}", field="rest") from None
        return next(iter(self._signature.parameters))

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The payload to store. Read once as the worker will read it, so that bad arguments are refused here."""
        encoded = self._payload.write(self._bind(args, kwargs))
        self._payload.read(encoded)
        return encoded

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if not kwargs and len(args) in self._by_place:  # `bind` does the same, at ten times the cost
            return dict(zip(self._names, args, strict=False))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise Invalid(f"{self.name}: {error}", field="arguments") from None

    def arguments(self, payload: bytes) -> dict[str, Any]:
        """The arguments in a payload, by name, with their types. A task that was submitted by its kind alone has the
        payload null, and no arguments."""
        return asdict(self._payload.read(b"{}" if payload == b"null" else payload))

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of the payload, for forms and checks elsewhere."""
        return msgspec.json.schema(self._arguments, schema_hook=_schema_of)

    def result_json_schema(self) -> dict[str, Any]:
        """The JSON Schema of its result."""
        return msgspec.json.schema(self._result_type, schema_hook=_schema_of)


def to_json(field: str, value: Any) -> bytes:
    """A value of any supported type as JSON."""
    try:
        return _writer.write(value)
    except UNWRITABLE as error:
        raise Invalid(f"cannot be written as JSON: {words_of(error)}", field=field) from None


def from_json(field: str, text: bytes, kind: Any) -> Any:
    """A value of this type, read from JSON."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_from_builtin)
    except (TypeError, msgspec.ValidationError, msgspec.DecodeError, NotImplementedError) as error:
        raise Invalid(str(error), field=field) from None


class JsonType:
    """Writes values of one type as JSON text, and reads them again. Errors name `name` and `field`."""

    __slots__ = ("_decode", "_field", "_name")

    def __init__(self, name: str, kind: Any, field: str = "result") -> None:
        self._name, self._field = name, field
        try:
            self._decode = msgspec.json.Decoder(kind, dec_hook=_from_builtin).decode
        except TypeError as error:
            raise Invalid(f"{name}: {kind!r} cannot be read from JSON: {error}", field="type hints") from None

    def write(self, value: Any) -> bytes:
        try:
            return to_json(self._field, value)
        except Invalid as error:
            raise Invalid(f"{self._name}: {error.message}", field=self._field) from None

    def read(self, text: bytes | None) -> Any:
        try:
            return None if text is None else self._decode(text)
        except (msgspec.ValidationError, msgspec.DecodeError, NotImplementedError) as error:
            raise Invalid(f"{self._name}: {error}", field=self._field) from None


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, hint)
    if parameter.default is None or isinstance(parameter.default, int | float | str | bytes):
        return (parameter.name, hint, parameter.default)  # the JSON Schema shows it
    return (parameter.name, hint, msgspec.field(default_factory=partial(deepcopy, parameter.default)))


# --------------------------------------------------------------------------------------------- pydantic, not imported


def _is_model(kind: Any) -> bool:
    return inspect.isclass(kind) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _to_builtin(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"{type(value).__name__} is not a type that can be sent")


_writer = JsonWriter(_to_builtin)


def _from_builtin(kind: Any, value: Any) -> Any:
    if _is_model(kind):
        try:
            return kind.model_validate(value)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from None
    raise NotImplementedError(f"{kind!r} is not a type that can be received")


def _schema_of(kind: Any) -> dict[str, Any]:
    if _is_model(kind):
        schema: dict[str, Any] = kind.model_json_schema()
        return schema
    raise NotImplementedError(f"{kind!r} has no JSON Schema")
