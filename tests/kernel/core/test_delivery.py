"""The settings of a queue: defaults, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError

from windlass.contracts.callback.delivery import HEARTBEAT_TIMEOUT_MS, Push
from windlass.contracts.lease.delivery import Invoke, Wakeup
from windlass.contracts.machine.delivery import Machine
from windlass.contracts.stdio.delivery import Stdio, StdioHandler
from windlass.core.delivery import (
    MS_MAX,
    PULL,
    Delivery,
    RetryForm,
    any_delivery,
    checked_delivery,
    decode_delivery,
    policy_of,
    register_delivery,
    retry_of,
)
from windlass.core.retry import DEFAULT_POLICY
from windlass.core.submission import check_policy
from windlass.errors import Invalid, InvalidState

URL = "https://example.org/work"


@given(interval_ms=st.integers(1, MS_MAX), timeout_ms=st.none() | st.integers(1, MS_MAX))
def test_the_heartbeat_timeout_is_at_least_twice_the_interval(interval_ms: int, timeout_ms: int | None) -> None:
    push = Push(url=URL, heartbeat_interval_ms=interval_ms, heartbeat_timeout_ms=timeout_ms)
    if timeout_ms is not None and timeout_ms < 2 * interval_ms:
        with pytest.raises(Invalid, match="at least twice"):
            checked_delivery(push)
        return
    checked = checked_delivery(push)
    assert isinstance(checked, Push)
    assert checked.heartbeat_timeout_ms is not None
    assert checked.heartbeat_timeout_ms >= min(2 * interval_ms, MS_MAX)
    if timeout_ms is None and 2 * interval_ms <= HEARTBEAT_TIMEOUT_MS:
        assert checked.heartbeat_timeout_ms == HEARTBEAT_TIMEOUT_MS


@pytest.mark.parametrize(
    "delivery",
    [
        Push(url="ftp://x"),
        Push(url="https://"),
        Push(url="https://user:secret@host/"),
        Push(url="https://a b"),
        Push(url="https://a\x00b"),
        Wakeup(carrier="pigeon"),  # type: ignore[arg-type]
        Wakeup(address="x"),
        Wakeup(carrier="nats", address="a..b"),
        Wakeup(carrier="nats", address="a.>"),
        Wakeup(carrier="sqs", address="a b"),
        Wakeup(secrets=("lower",)),
        Wakeup(secrets=("TOKEN",), trusted=False),
        Invoke(),
        Invoke(url="x"),
        Invoke(url=URL, function="f"),
        Invoke(function="f/../g"),
        Invoke(url=URL, trusted=False),
        Machine(launcher="a\x1f"),
        Stdio(command=["a\x00"]),
        None,
        "pull",
    ],
    ids=repr,
)
def test_a_delivery_that_cannot_be_is_refused(delivery: object) -> None:
    with pytest.raises(Invalid, match="delivery"):
        checked_delivery(delivery)  # type: ignore[arg-type]


def test_a_queue_without_wishes_has_the_very_default_policy() -> None:
    assert policy_of(None, PULL) is DEFAULT_POLICY
    assert policy_of(RetryForm(), PULL) is DEFAULT_POLICY


def test_what_is_not_said_of_retries_is_what_the_contract_says() -> None:
    machine = policy_of(RetryForm(initial_ms=10), Machine(launcher="process"))
    assert (machine.max_attempts, machine.max_losses, machine.retry_delay_s) == (1, 0, 0.01)
    assert policy_of(RetryForm(max_losses=2), Machine(launcher="process")).max_attempts == 1


def test_the_form_of_a_policy_makes_that_policy() -> None:
    form = RetryForm(max_attempts=2, max_losses=0, initial_ms=1500, multiplier=1.5, max_ms=9000)
    policy = policy_of(form, PULL)

    check_policy(policy)
    assert (policy.retry_delay_s, policy.retry_delay_max_s) == (1.5, 9.0)
    assert retry_of(policy, PULL) == form
    assert policy_of(None, Push(url=URL, cancel_grace_period_ms=5000)).cancel_grace_s == 5.0


@pytest.mark.parametrize(
    ("delivery", "says"),
    [
        (Stdio(), "say what runs a kind"),
        (Stdio(command=["x"]), "say what runs a kind"),
        (Stdio(kinds_are_scripts=True), "could run any code"),
        (Stdio(command=["x"], python="python3"), "its own environment"),
        (Stdio(command=["x"], requirements=("numpy",)), "its own environment"),
        (Stdio(handlers={"a": StdioHandler()}), "a function or a script"),
        (Stdio(handlers={"a": StdioHandler(function="a:b", script="1")}), "a function or a script"),
        (Stdio(handlers={"a": StdioHandler(function="os.system")}), "like module:function"),
        (Stdio(handlers={"a": StdioHandler(script="1")}, requirements=("--index-url=http://bad",)), "not options"),
    ],
)
def test_stdio_settings_that_make_no_sense_are_refused(delivery: Stdio, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        checked_delivery(delivery)


def test_a_delivery_that_is_not_registered_is_named_when_it_is_read() -> None:
    with pytest.raises(InvalidState, match="delivery 'pigeon' is not known to this process, which knows pull, push"):
        decode_delivery('{"type":"pigeon"}')


def test_settings_that_cannot_be_read_are_not_taken_for_another_delivery() -> None:
    with pytest.raises(ValidationError, match="missing required field `url`"):
        decode_delivery('{"type":"push"}')


def test_a_delivery_needs_a_type_and_a_mark_of_its_own_and_comes_before_anything_is_read() -> None:
    class Second(Delivery, frozen=True, tag="pull"):
        mark = 15

    class SameMark(Delivery, frozen=True, tag="another"):
        mark = PULL.mark

    class Late(Delivery, frozen=True, tag="late"):
        mark = 15

    register_delivery(Push)  # once more: nothing happens
    any_delivery()
    for kind, says in ((Second, "belongs to another"), (SameMark, "belongs to another"), (Late, "too late")):
        with pytest.raises(ValueError, match=says):
            register_delivery(kind)
