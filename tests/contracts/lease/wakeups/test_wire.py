from __future__ import annotations

import contextlib
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.contracts.lease.delivery import Wakeup
from windlass.contracts.lease.wakeups.addresses import sqs_name_of, subject_of, word_of
from windlass.contracts.lease.wakeups.carriers.nats import durable_of
from windlass.contracts.lease.wire.wakeup import BODY_MAX_BYTES, message_of, task_of
from windlass.errors import Malformed

TASK = UUID("0190a1b2-0000-7000-8000-000000000001")


def test_a_message_is_the_id_of_a_task_and_nothing_else() -> None:
    assert message_of(TASK) == b'{"task_id":"0190a1b2-0000-7000-8000-000000000001"}'
    assert task_of(message_of(TASK)) == TASK


def test_what_others_add_to_a_message_is_ignored() -> None:
    assert task_of(msgspec.json.encode({"kind": "task_wakeup", "task_id": TASK, "more": [1]})) == TASK


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{}", b'{"task_id": 5}', b'{"task_id": "x"}', b'{"task_id": null}', b"\xff", b"{" * 5000,
        b'{"task_id": "\xff"}', b" " * (BODY_MAX_BYTES + 1),
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_no_wake_up_is_told(body: bytes) -> None:
    with pytest.raises(Malformed):
        task_of(body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_wake_up_or_malformed(body: bytes) -> None:
    with contextlib.suppress(Malformed):
        task_of(body)


names = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=200)


@given(names, names)
def test_the_addresses_of_queues_are_ones_that_carriers_take(namespace: str, queue: str) -> None:
    subject, name = subject_of(namespace, queue), sqs_name_of(namespace, queue)

    assert len(subject.split(".")) == 4
    assert not set(subject) & set(" *>\t")
    assert subject.isascii()
    assert 1 <= len(name) <= 80
    assert name.replace("-", "").replace("_", "").isalnum()
    assert not set(durable_of(subject)) & set(". *>")


@given(names, names, names, names)
def test_two_queues_never_share_an_address(a: str, b: str, c: str, d: str) -> None:
    if (a, b) != (c, d):
        assert subject_of(a, b) != subject_of(c, d)
        assert sqs_name_of(a, b) != sqs_name_of(c, d)


def test_plain_names_stay_readable() -> None:
    assert subject_of("default", "orders") == "windlass.wakeup.default.orders"
    assert sqs_name_of("default", "orders") == "windlass_default_orders"
    assert word_of("a-b") == "a-b"
    assert word_of("a_b").startswith("a-b_")


def test_an_address_that_was_given_is_taken_as_it_is() -> None:
    assert Wakeup(carrier="nats", address="shop.orders").address_of("n", "q") == "shop.orders"
    assert Wakeup().address_of("n", "q") == ""
