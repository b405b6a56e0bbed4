"""The short way for submissions that use nothing but a payload: what asks for more never takes it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from windlass.core.retry import Policy
from windlass.core.submission import Submission
from windlass.store.transaction import is_plain

PLAIN = Submission(kind="mail", id=UUID(int=1))
SHARED = {"kind", "queue", "namespace"}  # the same for all that go this way together
OWN = {"id", "payload"}  # written for each
WITH_RUN = {"after", "after_any_outcome"}  # nothing without a run, which is not plain
OTHER: dict[str, Any] = {
    "priority": 1, "delay_s": 1.0, "available_at": datetime(2026, 1, 1, tzinfo=UTC),
    "deadline_at": datetime(2026, 1, 1, tzinfo=UTC), "concurrency_key": "k", "idempotency_key": "k",
    "policy": Policy(max_attempts=1), "requires": ("gpu",), "run_id": UUID(int=2), "trace": "00-1-1-00", "wire": b"{}",
    "replay_of": UUID(int=3), "parent_id": UUID(int=4), "schedule_id": UUID(int=5),
    "job_id": UUID(int=6),
}  # fmt: skip


def test_every_field_of_a_submission_is_known_here() -> None:
    assert set(Submission.__struct_fields__) == SHARED | OWN | WITH_RUN | OTHER.keys(), (
        "say whether the new one is plain"
    )


@pytest.mark.parametrize("field", sorted(OTHER))
def test_a_submission_that_asks_for_more_is_not_plain(field: str) -> None:
    assert is_plain([PLAIN, replace(PLAIN, id=UUID(int=6), payload=b"1")])
    assert not is_plain([PLAIN, replace(PLAIN, **{field: OTHER[field]})])


@pytest.mark.parametrize("field", sorted(SHARED))
def test_plain_submissions_share_all_but_their_payloads(field: str) -> None:
    assert not is_plain([PLAIN, replace(PLAIN, **{field: "other"})])
