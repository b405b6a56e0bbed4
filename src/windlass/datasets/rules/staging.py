"""Which folders of the lake may be deleted: those of attempts that are over and have committed nothing.

A folder is known by its path alone, so the path has to be that of a staging folder to the letter. Everything else in
the store belongs to somebody else. This module decides; it neither lists nor deletes.
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from windlass.core.states import Instant
from windlass.datasets.rules.manifest import folder_name

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STAGING = re.compile(
    rf"(?P<folder>[A-Za-z0-9_=-][A-Za-z0-9._=-]*)/(?P<dataset>{_UUID})/(?P<version>{_UUID})/(?P<task>{_UUID})"
    r"/(?P<attempt>[1-9][0-9]{0,8})/(?P<output>0|[1-9][0-9]{0,3})/(?=.)",
    re.ASCII | re.DOTALL,
)


class Staging(NamedTuple):
    """The folder of one output of one attempt. `folder` stands for the namespace."""

    folder: str
    dataset_uuid: UUID
    dataset_version: UUID
    task_id: UUID
    attempt: int
    output_index: int

    @property
    def key(self) -> str:
        """Its path below the lake, without a slash at its end."""
        ids = f"{self.dataset_uuid}/{self.dataset_version}/{self.task_id}"
        return f"{self.folder}/{ids}/{self.attempt}/{self.output_index}"

    @property
    def after(self) -> str:
        """A key that comes after all keys in the folder: `0` is the character after the slash."""
        return f"{self.key}0"


def staging_of(key: str) -> Staging | None:
    """The staging folder in which an object lies; None if it lies in none."""
    found = _STAGING.match(key)
    if found is None:
        return None
    return Staging(
        found["folder"], UUID(found["dataset"]), UUID(found["version"]), UUID(found["task"]), int(found["attempt"]),
        int(found["output"]),
    )  # fmt: skip


class Recorded(NamedTuple):
    """What the database knows of a staging folder, all in one snapshot. `namespace` is that of its version, None if
    there is no such version. `attempt` is the current one of its task, None if the task does not exist (any more)."""

    namespace: str | None
    task_namespace: str | None = None
    attempt: int | None = None
    ended: bool = False
    committed: bool = False


class Verdict(StrEnum):
    """What is done with a staging folder."""

    UNKNOWN = "unknown"  # this database did not make it
    COMMITTED = "committed"
    OPEN = "open"  # its attempt may still commit it
    YOUNG = "young"
    DELETE = "delete"


def judge(staging: Staging, recorded: Recorded, newest_at: Instant, now: Instant, keep: timedelta) -> Verdict:
    """What to do with a staging folder. `newest_at` is when the newest of its objects was written.

    Only the current attempt of a task commits, in the transaction that ends the task. So an attempt that is over in the
    snapshot has committed in the same snapshot, or never will."""
    if recorded.namespace is None or folder_name(recorded.namespace) != staging.folder:
        return Verdict.UNKNOWN
    if recorded.task_namespace not in (None, recorded.namespace):
        return Verdict.UNKNOWN
    if recorded.committed:
        return Verdict.COMMITTED
    if not is_over(staging.attempt, recorded):
        return Verdict.OPEN
    return Verdict.DELETE if newest_at < now - keep else Verdict.YOUNG


def is_over(attempt: int, recorded: Recorded) -> bool:
    """Whether an attempt can report no more. One that was lost can, until the next one begins or its task ends. A task
    that does not exist was deleted some time after its end."""
    if recorded.attempt is None:
        return True
    return attempt < recorded.attempt or (attempt == recorded.attempt and recorded.ended)
