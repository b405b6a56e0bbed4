"""The revision of a commit, its span, and commits that are refused."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.datasets.rules.commit import Commit, Committed, Content, Fence, Neighbor
from windlass.datasets.rules.commit import commit as committed
from windlass.datasets.rules.partition import Key, Range, Scheme, Span, Time
from windlass.errors import LeaseLost, OutputInvalid, PartitionOverlap

ONE, TWO = UUID(int=1), UUID(int=2)
A, B = "a" * 64, "b" * 64


@pytest.mark.parametrize(
    ("existing", "task_id", "manifest", "revision", "new"),
    [
        (None, ONE, A, 1, True),
        (None, ONE, None, 1, True),
        (Committed(ONE, 1, A), ONE, A, 1, False),
        (Committed(ONE, 3, A), ONE, A, 3, False),
        (Committed(ONE, 1, A), ONE, B, 2, True),
        (Committed(ONE, 1, A), TWO, A, 2, True),
        (Committed(ONE, 7, A), TWO, B, 8, True),
        (Committed(ONE, 1), ONE, None, 1, False),
        (Committed(ONE, 1), TWO, None, 2, True),
    ],
)
def test_a_repeated_commit_is_the_same_revision_and_any_other_the_next(
    existing: Committed | None, task_id: UUID, manifest: str | None, revision: int, new: bool
) -> None:
    content = Content("eu", manifest_sha256=manifest)

    assert committed(existing, content, Fence(task_id, 2, 2)) == Commit("eu", None, revision, new)


@pytest.mark.parametrize(("attempt", "current"), [(1, 2), (2, 1)])
def test_only_the_current_attempt_commits(attempt: int, current: int) -> None:
    with pytest.raises(LeaseLost, match=f"attempt {attempt} is over, the task is at attempt {current}"):
        committed(None, Content("eu"), Fence(ONE, attempt, current))


@pytest.mark.parametrize(
    ("scheme", "content", "span"),
    [
        (Range(1000), Content("0-999"), Span(0, 999)),
        (Range(1000), Content("0-999", 0, 999), Span(0, 999)),
        (Time("1d"), Content("1970-01-02"), Span(86400, 2 * 86400 - 1)),
        (Key(), Content("eu"), None),
        (Key(), Content("0-999"), None),
        (None, Content("eu"), None),
        (None, Content("5-7", 5, 7), Span(5, 7)),
        (None, Content("5-7"), None),
    ],
)
def test_the_span_of_a_partition_is_that_of_its_scheme_or_the_one_it_gives(
    scheme: Scheme | None, content: Content, span: Span | None
) -> None:
    assert committed(None, content, Fence(ONE, 1, 1), scheme=scheme).span == span


@pytest.mark.parametrize(
    ("scheme", "content", "field", "says"),
    [
        (Range(1000), Content("1-1000"), "outputs[3].partition_key", "aligned to 0"),
        (Range(1000), Content("0-999", 0, 998), "outputs[3].start", "start and end must be 0 and 999"),
        (Range(1000), Content("eu"), "outputs[3].partition_key", "'eu' is no partition here"),
        (Time("1d"), Content("2026-02-30"), "outputs[3].partition_key", "is no partition here"),
        (Key(), Content(""), "outputs[3].partition_key", "must"),
        (None, Content(""), "outputs[3].partition_key", "must"),
        (None, Content("a\0"), "outputs[3].partition_key", "must"),
        (None, Content("5-8", 5, 7), "outputs[3].partition_key", "must be {start}-{end}"),
        (None, Content("7-5", 7, 5), "outputs[3].partition_key", "start not after end"),
        (None, Content("5-7", 5), "outputs[3]", "must have both start and end"),
        (None, Content("5-7", None, 7), "outputs[3]", "must have both start and end"),
    ],
)
def test_a_partition_that_the_scheme_does_not_have_is_refused(
    scheme: Scheme | None, content: Content, field: str, says: str
) -> None:
    with pytest.raises(OutputInvalid) as refused:
        committed(None, content, Fence(ONE, 1, 1), scheme=scheme, field="outputs[3]")

    assert refused.value.code == "output_invalid"
    assert refused.value.field == field
    assert says in refused.value.message
    assert refused.value.message.count(": ") == 1


@pytest.mark.parametrize(("first", "last"), [(0, 10), (19, 25), (10, 19), (12, 13), (0, 99)])
def test_a_partition_may_not_overlap_another_of_the_same_version(first: int, last: int) -> None:
    content = Content(f"{first}-{last}", first, last)
    with pytest.raises(PartitionOverlap, match="overlaps other, which is committed") as refused:
        committed(None, content, Fence(ONE, 1, 1), neighbors=[Neighbor("other", Span(10, 19))])

    assert (refused.value.code, refused.value.field) == ("partition_overlap", "outputs[0].partition_key")


@pytest.mark.parametrize(("first", "last"), [(0, 9), (20, 29), (10, 19)])
def test_a_partition_beside_another_or_the_same_again_is_committed(first: int, last: int) -> None:
    content = Content(f"{first}-{last}", first, last)
    neighbors = [Neighbor("10-19", Span(10, 19)), Neighbor("30-39", Span(30, 39))]

    assert committed(None, content, Fence(ONE, 1, 1), neighbors=neighbors).revision == 1


STEPS = st.lists(st.tuples(st.sampled_from([ONE, TWO]), st.sampled_from([A, B, None])), max_size=20)


@given(steps=STEPS)
@settings(deadline=None)
def test_revisions_grow_by_one_and_only_with_other_content_or_another_task(
    steps: list[tuple[UUID, str | None]],
) -> None:
    newest: Committed | None = None
    for task_id, manifest in steps:
        made = committed(newest, Content("eu", manifest_sha256=manifest), Fence(task_id, 1, 1))
        before = newest.revision if newest else 0
        differs = newest is None or (newest.task_id, newest.manifest_sha256) != (task_id, manifest)
        assert made.new is differs
        assert made.revision == before + differs
        newest = Committed(task_id, made.revision, manifest)
