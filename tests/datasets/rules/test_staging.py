"""Which folders of the lake may be deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.datasets.rules.manifest import folder_name, staging_prefix
from windlass.datasets.rules.staging import Recorded, Staging, Verdict, judge, staging_of

NOW = datetime(2026, 5, 1, tzinfo=UTC)
DAY = timedelta(days=1)
OLD = NOW - DAY - timedelta(seconds=1)
DATASET, VERSION, TASK = (UUID(int=n << 64) for n in (0xA1, 0xB2, 0xC3))
FOLDER = Staging("shop", DATASET, VERSION, TASK, 2, 0)


@given(namespace=st.text(min_size=1, max_size=20), attempt=st.integers(1, 10**9 - 1), output=st.integers(0, 63))
def test_every_staging_folder_is_found_by_the_keys_in_it(namespace: str, attempt: int, output: int) -> None:
    prefix = staging_prefix("", namespace, DATASET, VERSION, TASK, attempt, output).removeprefix("/")

    found = staging_of(f"{prefix}day=1/part.parquet")

    assert found == Staging(folder_name(namespace), DATASET, VERSION, TASK, attempt, output)
    assert f"{found.key}/" == prefix
    assert prefix < f"{prefix}\U0010ffff" < found.after


@pytest.mark.parametrize(
    "key",
    [
        "windlass-lake.txt",
        f"{FOLDER.key}",
        f"{FOLDER.key}/",
        f"x/{FOLDER.key}/part.parquet",
        f"{FOLDER.key}-evil/part.parquet",
        f"../{FOLDER.key}/part.parquet",
        f".hidden/{DATASET}/{VERSION}/{TASK}/1/0/part",
        f"a b/{DATASET}/{VERSION}/{TASK}/1/0/part",
        f"shop/{DATASET}/{VERSION}/{str(TASK).upper()}/1/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK.hex}/1/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/0/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/01/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/1/00/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/-1/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/{10**9}/0/part",
        f"shop/{DATASET}/{VERSION}/{TASK}/１/0/part",
        f"shop/_results/{TASK}/part.parquet",
        "",
    ],
)
def test_a_name_that_is_not_exactly_that_of_a_staging_folder_is_none(key: str) -> None:
    assert staging_of(key) is None


OVER = Recorded("shop", "shop", attempt=3)


@pytest.mark.parametrize(
    ("recorded", "newest_at", "verdict"),
    [
        (OVER, OLD, Verdict.DELETE),
        (OVER, NOW - DAY, Verdict.YOUNG),
        (OVER, NOW + DAY, Verdict.YOUNG),  # the clock of the store is ahead
        (OVER._replace(attempt=2, ended=True), OLD, Verdict.DELETE),
        (OVER._replace(attempt=2), OLD, Verdict.OPEN),  # it runs, or was lost and may still report
        (OVER._replace(attempt=1, ended=True), OLD, Verdict.OPEN),  # it has not begun: not ours to understand
        (OVER._replace(attempt=None, task_namespace=None), OLD, Verdict.DELETE),  # by the retention of tasks
        (OVER._replace(committed=True), OLD, Verdict.COMMITTED),
        (OVER._replace(attempt=None, task_namespace=None, committed=True), OLD, Verdict.COMMITTED),
        (OVER._replace(attempt=2, ended=True, committed=True), OLD, Verdict.COMMITTED),
        (OVER._replace(namespace=None), OLD, Verdict.UNKNOWN),
        (OVER._replace(namespace="other", task_namespace="other"), OLD, Verdict.UNKNOWN),
        (OVER._replace(task_namespace="other"), OLD, Verdict.UNKNOWN),
    ],
)
def test_only_an_old_folder_of_an_attempt_that_is_over_and_committed_nothing_is_deleted(
    recorded: Recorded, newest_at: datetime, verdict: Verdict
) -> None:
    assert judge(FOLDER, recorded, newest_at, NOW, DAY) is verdict
