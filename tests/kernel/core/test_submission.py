"""What can be submitted, and which field is named when it cannot."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.core.given import NOW, RUN_ID, TASK_ID

from windlass.core.retry import Policy
from windlass.core.submission import Submission, check_submission
from windlass.core.validation import (
    COUNT_MAX,
    KEY_MAX,
    NAME_MAX,
    PAYLOAD_MAX_BYTES,
    SECONDS_MAX,
    check_names,
    check_payload,
    check_text,
    clean_text,
)
from windlass.errors import Invalid

OTHER = UUID(int=9)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAN, INFINITY = float("nan"), float("inf")


class NowhereInTime(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, when: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


# --------------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "k" * NAME_MAX, "queue": "q" * NAME_MAX, "namespace": "n" * NAME_MAX},
        {"kind": "Überweisung prüfen 🚀", "queue": "почта"},
        {"payload": b'"' + b"x" * (PAYLOAD_MAX_BYTES - 2) + b'"'},
        {"priority": -100},
        {"priority": 100},
        {"id": TASK_ID},
        {"concurrency_key": "k" * KEY_MAX},
        {"idempotency_key": "i" * KEY_MAX},
        {"available_at": NOW, "deadline_at": NOW.astimezone(timezone(timedelta(hours=9)))},
        {"delay_s": 0.5},
        {"requires": ("gpu", "eu")},
        {"requires": ["gpu"]},
        {"run_id": RUN_ID},
        {"run_id": RUN_ID, "after": (OTHER,), "after_any_outcome": True},
        {"trace": TRACE},
        {"wire": b' {"assetId": "a"}', "replay_of": OTHER},
        {"policy": Policy(max_attempts=1, max_losses=0, timeout_s=0.001, cancel_grace_s=0, retry_delay_s=0)},
        {"policy": Policy(max_attempts=COUNT_MAX, max_losses=COUNT_MAX, timeout_s=SECONDS_MAX, retry_factor=1000)},
    ],
    ids=lambda fields: ", ".join(fields) or "nothing but a kind",
)
def test_a_sound_submission_is_accepted(fields: dict[str, Any]) -> None:
    check_submission(Submission(**{"kind": "send", **fields}))


# --------------------------------------------------------------------------------------------- refused

BAD_NAMES: list[object] = ["", "x" * (NAME_MAX + 1), "a\x00b", "a\nb", "\ud800", b"bytes", None, 7, True, ["send"]]
BAD_KEYS = ["x" * (KEY_MAX + 1), "a\x00b", "\ud800", b"bytes", 7, True]
BAD_IDS = [str(TASK_ID), 7, b"0123456789abcdef"]
BAD_INSTANTS = [
    NOW.replace(tzinfo=None),
    NOW.replace(tzinfo=NowhereInTime()),
    NOW.replace(year=1969),
    NOW.replace(year=9001),
    NOW.isoformat(),
    NOW.date(),
    1_900_000_000,
]
BAD_COUNTS = [-1, COUNT_MAX + 1, 1.5, 1.0, True, "3", None, 10**400]
BAD_SECONDS = [-0.001, SECONDS_MAX * 1.01, NAN, INFINITY, -INFINITY, True, "3", 10**400, -(10**400), 1j]
BAD_PAYLOADS: list[object] = [
    b"",
    b" ",
    b"{",
    b"[1,]",
    b"nothing",
    b"NaN",
    b"{} {}",
    b'"\xff"',
    b'"\x00"',
    b'"\\ud800"',
    b"\xef\xbb\xbf1",
    b"[" * 100_000 + b"]" * 100_000,
    b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"',
    "null",
    None,
    {},
    bytearray(b"null"),
    memoryview(b"null"),
]

REFUSED: dict[str, list[object]] = {
    "kind": BAD_NAMES,
    "queue": ["windlass.dispatcher", *BAD_NAMES],
    "namespace": BAD_NAMES,
    "payload": BAD_PAYLOADS,
    "priority": [-101, 101, 0.5, 1.0, True, "1", None],
    "id": [*BAD_IDS, True],
    "concurrency_key": [*BAD_KEYS, None],
    "idempotency_key": [*BAD_KEYS, ""],
    "available_at": BAD_INSTANTS,
    "delay_s": [-1, NAN, INFINITY, "5", None, True, SECONDS_MAX * 2],
    "deadline_at": BAD_INSTANTS,
    "policy": [None, {"max_attempts": 3}, 7],
    "requires": ["gpu", None, 7, ("",), ("a\x00b",), (7,), {"gpu": 1}],
    "run_id": BAD_IDS,
    "after": [None, 7, [OTHER], (str(OTHER),), (7,), OTHER],
    "after_any_outcome": [None, 1, "yes"],
    "trace": ["", 7, b"x", TRACE.upper(), TRACE[:-1], f"{TRACE}\n", f"00-{'0' * 32}-{'1' * 16}-01"],
    "wire": [7, "{}", {}, b"", b"[]", b"null", b'"{"', b"{", b"{\xff}"],
    "replay_of": BAD_IDS,
    "parent_id": BAD_IDS,
    "schedule_id": BAD_IDS,
    "job_id": BAD_IDS,
    "policy.max_attempts": [0, *BAD_COUNTS],
    "policy.max_losses": BAD_COUNTS,
    "policy.timeout_s": [0, 0.0009, *BAD_SECONDS],
    "policy.cancel_grace_s": [None, *BAD_SECONDS],
    "policy.retry_delay_s": [None, *BAD_SECONDS],
    "policy.retry_delay_max_s": [None, *BAD_SECONDS],
    "policy.retry_factor": [None, 0, 0.999, 1000.5, NAN, INFINITY, "2"],
    "policy.lease_s": [0, 0.5, -1, NAN, INFINITY, "2", True],
    "policy.unlimited": [True, None, 1, "yes"],
}


def short(value: object) -> str:
    try:
        return repr(value).partition(" at 0x")[0][:24].encode("ascii", "backslashreplace").decode()
    except ValueError:
        return "a number of 400 digits"


def submission(field: str, value: object) -> Submission:
    if field.startswith("policy."):
        return Submission(kind="send", policy=Policy(**{field.removeprefix("policy."): value}))  # type: ignore[arg-type]
    return Submission(**{"kind": "send", "run_id": RUN_ID, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [pytest.param(f, v, id=f"{f}-{short(v)}") for f, values in REFUSED.items() for v in values],
)
def test_what_cannot_be_accepted_is_refused_with_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(Invalid) as refused:
        check_submission(submission(field, value))

    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field}: ")


def test_every_field_of_a_submission_and_of_a_policy_has_values_that_are_refused() -> None:
    fields = {*Submission.__struct_fields__, *(f"policy.{name}" for name in Policy.__struct_fields__)}

    assert set(REFUSED) == fields


def test_waiting_for_tasks_needs_a_run() -> None:
    with pytest.raises(Invalid, match="run_id") as refused:
        check_submission(Submission(kind="send", after=(OTHER,)))

    assert refused.value.field == "after"


def test_a_task_cannot_wait_for_itself() -> None:
    with pytest.raises(Invalid, match="itself"):
        check_submission(Submission(kind="send", id=TASK_ID, run_id=RUN_ID, after=(OTHER, TASK_ID)))


@pytest.mark.parametrize("value", [None, 7, "send", {"kind": "send"}])
def test_only_a_submission_can_be_submitted(value: Any) -> None:
    with pytest.raises(Invalid):
        check_submission(value)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary()
    | st.uuids()
    | st.datetimes(timezones=st.none() | st.just(UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(st.sampled_from(sorted(REFUSED)), junk)
def test_any_value_in_any_field_is_accepted_or_refused_and_nothing_else(field: str, value: object) -> None:
    with contextlib.suppress(Invalid):
        check_submission(submission(field, value))


# --------------------------------------------------------------------------------------------- payloads and text

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(documents, st.booleans())
def test_every_json_document_is_a_payload(document: object, ascii_only: bool) -> None:
    check_payload("payload", json.dumps(document, ensure_ascii=ascii_only).encode())


@given(st.binary(max_size=12) | st.text('[]{}",:0129eE+-.tfn\\u \x00', max_size=12).map(str.encode))
def test_what_is_accepted_as_a_payload_is_json(text: bytes) -> None:
    try:
        check_payload("payload", text)
    except Invalid:
        return
    json.loads(text)


def test_a_payload_above_the_limit_says_the_limit() -> None:
    with pytest.raises(Invalid) as refused:
        check_payload("payload", b'"' + b"x" * PAYLOAD_MAX_BYTES + b'"')

    assert refused.value.details["limit"] == PAYLOAD_MAX_BYTES


@given(st.text(st.characters()))
def test_accepted_text_can_be_stored_as_utf_8_without_nul(text: str) -> None:
    try:
        check_text("kind", text, NAME_MAX)
    except Invalid:
        return
    assert text.encode().decode() == text
    assert "\x00" not in text
    assert 0 < len(text) <= NAME_MAX


@given(st.text(st.characters()))
def test_a_message_is_made_storable_instead_of_refused(text: str) -> None:
    kept = clean_text("error", text)

    assert kept.encode().decode() == kept
    assert "\x00" not in kept
    assert len(kept) == len(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain\nlines", "plain\nlines"),
        ("a\x00b", "a\ufffdb"),
        ("\ud800", "\ufffd"),
        ("a\x1bb", "a\ufffdb"),
        ("long" * 3, "long…"),
    ],
    ids=["plain", "NUL", "surrogate", "escape", "too long"],
)
def test_what_becomes_of_a_message(text: str, kept: str) -> None:
    assert clean_text("error", text, longest=11 if "\n" in text else 5) == kept


@pytest.mark.parametrize("value", [None, 7, b"bytes"])
def test_a_message_is_text(value: object) -> None:
    with pytest.raises(Invalid):
        clean_text("error", value)


def test_names_may_come_as_a_list_or_a_tuple() -> None:
    check_names("queues", ["a", "b"])
    check_names("queues", ("a", "b"))
