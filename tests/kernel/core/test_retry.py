"""How long a task waits between two tries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from windlass.core.failure import Category, Failure
from windlass.core.retry import DEFAULT_POLICY, JITTER_SHARE, Policy, capped_power, retry_delay_s
from windlass.core.submission import check_policy
from windlass.core.validation import COUNT_MAX, SECONDS_MAX

seconds = st.floats(0, SECONDS_MAX)
jitters = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, COUNT_MAX)
CRASH = Failure(Category.USER_CODE, "it broke")
policies = st.builds(
    Policy, retry_delay_s=seconds, retry_factor=st.floats(1, 1000), retry_delay_max_s=seconds, max_attempts=counts
)


def after(retry_after_s: float | None) -> Failure:
    return replace(CRASH, retry_after_s=retry_after_s)


@pytest.mark.parametrize(
    ("failures", "delay_s"), [(1, 1), (2, 2), (3, 4), (4, 8), (9, 256), (10, 300), (11, 300), (1_000_000, 300)]
)
def test_by_default_the_delay_doubles_from_one_second_to_five_minutes(failures: int, delay_s: float) -> None:
    assert retry_delay_s(DEFAULT_POLICY, CRASH, failures, 0.0) == delay_s


@pytest.mark.parametrize(
    ("policy", "failures", "delay_s"),
    [
        (Policy(retry_delay_s=7, retry_factor=1), 40, 7),
        (Policy(retry_delay_s=7, retry_factor=10), 2, 70),
        (Policy(retry_delay_s=0), 40, 0),
        (Policy(retry_delay_s=0), 1_000_000, 0),
        (Policy(retry_delay_s=500), 1, 300),
        (Policy(retry_delay_max_s=0), 3, 0),
        (Policy(retry_factor=1000, retry_delay_max_s=60), 1_000_000, 60),
    ],
    ids=["constant", "tenfold", "at once", "at once for ever", "first above the longest", "longest is zero", "huge"],
)
def test_the_policy_sets_the_delay(policy: Policy, failures: int, delay_s: float) -> None:
    assert retry_delay_s(policy, CRASH, failures, 0.0) == delay_s


@pytest.mark.parametrize(("jitter", "delay_s"), [(0.0, 60), (0.5, 66), (0.9, 70.8)])
def test_a_delay_named_by_the_worker_wins_over_the_formula_and_gets_the_same_jitter(
    jitter: float, delay_s: float
) -> None:
    assert retry_delay_s(DEFAULT_POLICY, after(60), 9, jitter) == pytest.approx(delay_s)


def test_a_worker_may_ask_for_another_try_at_once() -> None:
    assert retry_delay_s(DEFAULT_POLICY, after(0), 9, 0.9) == 0


def test_a_worker_may_ask_for_more_than_the_longest_delay_of_the_policy() -> None:
    assert retry_delay_s(Policy(retry_delay_max_s=10), after(3600), 1, 0.0) == 3600


@pytest.mark.parametrize(("failures", "jitter"), [(0, 0.0), (-1, 0.0), (1, 1.0), (1, -0.1)])
def test_there_is_no_delay_without_a_failure_or_with_an_impossible_jitter(failures: int, jitter: float) -> None:
    with pytest.raises(AssertionError):
        retry_delay_s(DEFAULT_POLICY, CRASH, failures, jitter)


@given(policies, counts, jitters)
def test_the_delay_is_bounded_by_the_longest_and_a_fifth(policy: Policy, failures: int, jitter: float) -> None:
    check_policy(policy)

    assert 0 <= retry_delay_s(policy, CRASH, failures, 0.0) <= policy.retry_delay_max_s
    assert retry_delay_s(policy, CRASH, failures, jitter) <= policy.retry_delay_max_s * (1 + JITTER_SHARE)


@given(policies, counts, counts)
def test_more_failures_never_wait_less_before_jitter(policy: Policy, some: int, others: int) -> None:
    fewer, more = sorted((some, others))

    assert retry_delay_s(policy, CRASH, fewer, 0.0) <= retry_delay_s(policy, CRASH, more, 0.0)


@given(policies, counts, jitters, st.none() | seconds)
def test_jitter_only_lengthens_and_by_at_most_a_fifth(
    policy: Policy, failures: int, jitter: float, retry_after_s: float | None
) -> None:
    plain = retry_delay_s(policy, after(retry_after_s), failures, 0.0)

    assert plain <= retry_delay_s(policy, after(retry_after_s), failures, jitter) <= plain * (1 + JITTER_SHARE)


@given(st.floats(0, 1e6), st.floats(1, 1000), st.integers(0, 60), st.floats(0, 1e9))
def test_a_capped_power_is_the_power_or_the_cap(base: float, factor: float, exponent: int, cap: float) -> None:
    assert capped_power(base, factor, exponent, cap) == min(base * factor**exponent, cap)


def test_whole_numbers_are_not_raised_to_numbers_with_millions_of_digits() -> None:
    assert capped_power(1, 1000, COUNT_MAX, 60) == 60
