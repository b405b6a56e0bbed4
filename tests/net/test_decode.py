"""JSON from outside: integers in any spelling, text that can be stored, and errors that name the field."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta, Raw

from windlass.errors import Invalid, Malformed
from windlass.net.decode import decoded, decoded_report


class Item(msgspec.Struct):
    place: Annotated[int, Meta(ge=0)]
    ratio: float = 0.0


class Form(msgspec.Struct):
    count: Annotated[int, Meta(ge=1, le=100)] | None = None
    items: list[Item] = []
    limits: dict[str, int] = {}
    data: Raw = Raw(b"null")
    message: str = ""


FORM = msgspec.json.Decoder(Form)


@pytest.mark.parametrize("spelled", ["7", "7.0", "7e0", "0.7e1", "70E-1"])
def test_an_integer_may_be_written_as_a_number_with_a_fraction_of_zero(spelled: str) -> None:
    form = decoded(FORM, b'{"count": %s}' % spelled.encode())
    assert (form.count, type(form.count)) == (7, int)


def test_integers_are_put_right_in_lists_and_objects_and_data_stays_as_it_is() -> None:
    items = ", ".join(f'{{"place": {n}.0, "ratio": {n}.0}}' for n in range(2000))
    body = f'{{"items": [{items}], "limits": {{"a": 1.0, "b.c": 2.0}}, "count": 3.0, "data": {{"x": 1.0}}}}'
    form = decoded(FORM, body.encode())
    assert [item.place for item in form.items] == list(range(2000))
    assert (form.limits, form.count) == ({"a": 1, "b.c": 2}, 3)
    assert type(msgspec.json.decode(form.data)["x"]) is float


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"count": 1.5}', "count"),
        ('{"count": 101.0}', "count"),
        ('{"count": "1"}', "count"),
        ('{"count": true}', "count"),
        ('{"items": [{"place": 1.0}, {"place": 0.5}]}', "items[1].place"),
        ('{"items": [{"place": -1.0}]}', "items[0].place"),
        ('{"limits": {"a": 18014398509481984.0}}', "limits[...]"),
        ('{"count": 1e400}', "count"),
    ],
)
def test_what_is_no_integer_is_refused_by_its_name(body: str, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        decoded(FORM, body.encode())
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"caf\ud800", "caf\ufffd"),
        (rb"\ud83d x", "\ufffd x"),
        (rb"\uDE00", "\ufffd"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud800 is an escape", r"\ud800 is an escape"),
        (b"caf\xe9", "caf\ufffd"),
    ],
)
def test_text_of_a_report_is_put_right(sent: bytes, read: str) -> None:
    body = b'{"message": "' + sent + b'"}'
    assert decoded_report(FORM, body, lambda _: True).message == read


def test_data_of_a_report_is_refused_rather_than_changed() -> None:
    with pytest.raises(Malformed):
        decoded_report(FORM, rb'{"data": "\ud800"}', lambda _: False)
    with pytest.raises(Malformed):
        decoded_report(FORM, rb'{"message": "\ud800', lambda _: True)
