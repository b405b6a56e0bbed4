"""Type hints are the schema: what is sent comes back as it was, and what does not fit is refused."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pytest

from windlass import Invalid
from windlass.sdk.context import Context
from windlass.sdk.duration import seconds
from windlass.sdk.handler.schema import Schema


@dataclasses.dataclass
class Address:
    name: str
    lines: list[str] = dataclasses.field(default_factory=list)


class Point(msgspec.Struct):
    x: float
    y: float


class Options(TypedDict, total=False):
    colour: str


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3),
        (str, "ä\u20ac"),
        (float | None, None),
        (bytes, b"\x00\xff"),
        (datetime, datetime.fromisoformat("2030-01-02T03:04:05+00:00")),
        (UUID, UUID(int=7)),
        (dict[str, list[int]], {"a": [1, 2]}),
        (Address, Address("ada", ["1 Road"])),
        (list[Point], [Point(1.5, 2.0)]),
        (Options, {"colour": "red"}),
        (Any, {"free": [None, True]}),
    ],
)
def test_a_value_comes_back_as_it_was_sent(hint: Any, value: Any) -> None:
    def take(it: Any) -> Any: ...

    take.__annotations__ = {"it": hint, "return": hint}
    schema = Schema(take, Context)

    assert schema.arguments(schema.payload((value,), {})) == {"it": value}
    assert schema.read_result(schema.result(value)) == value


def test_pydantic_models_are_values_too() -> None:
    pydantic = pytest.importorskip("pydantic")
    order = pydantic.create_model("Order", number=(int, ...), tags=(list[str], []))

    def take(it: Any) -> Any: ...

    take.__annotations__ = {"it": order, "return": list[order]}  # type: ignore[valid-type]
    schema = Schema(take, Context)

    assert schema.arguments(schema.payload((order(number=1),), {})) == {"it": order(number=1)}
    assert schema.read_result(schema.result([order(number=2)])) == [order(number=2)]
    with pytest.raises(Invalid, match="number"):
        schema.arguments(b'{"it": {"number": "many"}}')


@pytest.mark.parametrize("payload", [b'{"a": "x"}', b"{}", b'{"a": 1, "z": 2}', b"[1]", b"null", b"{"])
def test_a_payload_that_does_not_fit_is_refused(payload: bytes) -> None:
    def take(a: int) -> None: ...

    with pytest.raises(Invalid, match="take"):
        Schema(take, Context).arguments(payload)


def test_what_json_cannot_say_is_refused() -> None:
    def take(it: Any) -> None: ...

    for value in (object(), {1, object()}, lambda: None):
        with pytest.raises(Invalid, match="cannot be written as JSON"):
            Schema(take, Context).payload((value,), {})


def test_the_context_is_not_part_of_the_payload() -> None:
    def take(a: int, ctx: Context) -> None: ...

    schema = Schema(take, Context)
    assert schema.context_parameter == "ctx"
    assert schema.payload((1,), {}) == b'{"a":1}'


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def take(a: int, seen: list[int] = []) -> None: ...  # noqa: B006

    schema = Schema(take, Context)
    schema.arguments(b'{"a": 1}')["seen"].append(1)
    assert schema.arguments(b'{"a": 1}')["seen"] == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2d", 172800), ("1w", 604800), ("250ms", 0.25), (" 1.5h ", 5400),
     (timedelta(minutes=2), 120), (3, 3), (0.5, 0.5)],
)  # fmt: skip
def test_durations_as_people_write_them(text: Any, value: float) -> None:
    assert seconds("delay", text) == value


@pytest.mark.parametrize("text", ["", "soon", "5", "5 minutes", "1h-3m", "-5s", None, True, float("nan"), -1, "1e9w"])
def test_durations_that_are_none(text: Any) -> None:
    with pytest.raises(Invalid, match="delay"):
        seconds("delay", text)


def test_the_json_schema_of_payload_and_result_is_kept_for_uis() -> None:
    pydantic = pytest.importorskip("pydantic")
    order = pydantic.create_model("Order", number=(int, ...))

    def take(a: Any, b: Any, c: Any, d: Any, e: int = 3) -> Any: ...

    take.__annotations__ = {"a": Address, "b": Point, "c": Options, "d": order, "e": int, "return": list[Point]}
    schema = Schema(take, Context)

    kept = schema.json_schema()
    [arguments] = [one for name, one in kept["$defs"].items() if name == "Arguments"]
    assert sorted(arguments["properties"]) == ["a", "b", "c", "d", "e"]
    assert arguments["required"] == ["a", "b", "c", "d"]
    assert arguments["properties"]["e"] == {"type": "integer", "default": 3}
    assert kept["$defs"]["Address"]["properties"]["lines"]["items"] == {"type": "string"}
    assert arguments["properties"]["d"]["properties"]["number"]["type"] == "integer"
    assert schema.result_json_schema()["items"] == {"$ref": "#/$defs/Point"}
    msgspec.json.encode([kept, schema.result_json_schema()])


@pytest.mark.parametrize("count", range(5))
@pytest.mark.parametrize("function", ["plain", "defaults", "by_name", "by_name_with_default"])
def test_arguments_by_place_are_bound_as_python_binds_them(function: str, count: int) -> None:
    def plain(a: int, b: int) -> None: ...
    def defaults(a: int, b: int = 2, c: int = 3) -> None: ...
    def by_name(a: int, *, b: int) -> None: ...
    def by_name_with_default(a: int, *, b: int = 2) -> None: ...

    chosen, args = locals()[function], tuple(range(count))
    try:
        expected = inspect.signature(chosen).bind(*args).arguments
    except TypeError:
        with pytest.raises(Invalid):
            Schema(chosen, Context)._bind(args, {})
    else:
        assert Schema(chosen, Context)._bind(args, {}) == expected


def test_null_is_no_arguments() -> None:
    def nothing(copies: int = 1) -> None: ...

    def something(to: str) -> None: ...

    assert Schema(nothing, Context).arguments(b"null") == {"copies": 1}
    with pytest.raises(Invalid, match="to"):
        Schema(something, Context).arguments(b"null")
