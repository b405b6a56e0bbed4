"""Scalars: by the type of the field, and by the core schema of YAML 1.2 inside `config`."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.datasets.files import dag_of, file, source

from windlass.datasets.rules.scalar import NEVER, BadScalar, read_core, read_duration, read_int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None), ("~", None), ("null", None), ("Null", None), ("NULL", None), ("nULL", "nULL"),
        ("true", True), ("True", True), ("FALSE", False), ("tRUE", "tRUE"),
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("off", "off"), ("y", "y"),
        ("0", 0), ("-0", 0), ("+12", 12), ("007", 7), ("0o17", 15), ("0xfF", 255), ("0b1", "0b1"), ("1_000", "1_000"),
        ("-0x1", "-0x1"), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
        ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1000.0), ("-1.5E-2", -0.015), ("1e", "1e"), (".", "."),
        ("60:30", "60:30"), ("2026-01-31", "2026-01-31"), ("<<", "<<"), ("=", "="), ("١", "١"),
    ],
)  # fmt: skip
def test_a_plain_scalar_of_the_core_schema(text: str, value: object) -> None:
    found = read_core(text)

    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text", [".inf", "-.INF", "+.Inf", ".nan", ".NaN", "1e999", "9223372036854775808", "0x" + "f" * 17, "1" * 5000]
)
def test_a_number_that_json_does_not_have_is_refused(text: str) -> None:
    with pytest.raises(BadScalar):
        read_core(text)


def test_config_is_what_json_has() -> None:
    config = "{a: no, b: '1', c: \"true\", d: [1, 2.5, ~], e: {f: true, 1: x}, g: }"

    assert dag_of(file(source("a", more=f", config: {config}"))).jobs[0].config == {
        "a": "no", "b": "1", "c": "true", "d": [1, 2.5, None], "e": {"f": True, "1": "x"}, "g": None,
    }  # fmt: skip


keys, texts = st.text("abc", min_size=1, max_size=3), st.text(st.characters(codec="ascii", min_codepoint=32))
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(keys, values, max_size=4))
def test_json_is_yaml(config: dict[str, object]) -> None:
    """The core schema reads JSON as JSON does."""
    found = dag_of(file(source("a", more=f", config: {json.dumps(config)}"))).jobs[0].config

    assert found == config
    assert json.dumps(found, sort_keys=True) == json.dumps(config, sort_keys=True)


@given(st.floats())
def test_every_float_is_read_or_refused(number: float) -> None:
    text = {math.inf: ".inf", -math.inf: "-.inf"}.get(number, ".nan" if math.isnan(number) else repr(number))
    try:
        assert read_core(text) == number
    except BadScalar:
        assert not math.isfinite(number)


@pytest.mark.parametrize(
    ("text", "seconds"), [("never", NEVER), ("0", 0), ("90s", 90), ("5m", 300), ("2h", 7200), ("1d", 86400)]
)
def test_a_time_has_a_unit(text: str, seconds: int) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 m", "0s", "-5m", "1.5h", "05m", "5M", "1w", "9999999999d", "٥m"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(BadScalar, match="90s, 5m"):
        read_duration(text)


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "one", "٣", "1 "])
def test_a_whole_number_is_no_other(text: str) -> None:
    with pytest.raises(BadScalar, match="whole number"):
        read_int(text)
