"""Only tasks of the DAG that owns a dataset write to it. A task submitted by hand may not name it as an output."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.submission import Submission
from windlass.datasets.rules.writer import outputs_of
from windlass.datasets.tables.events import DatasetTable
from windlass.engine.engine import Engine
from windlass.errors import DatasetOwned


class OwnedDatasets:
    """Checks submissions against the datasets of DAGs, for one engine."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine.parts.store

    async def check(self, submissions: Sequence[Submission]) -> None:
        """Raise DatasetOwned if one of them has a dataset of a DAG among its outputs."""
        wanted = {id_ for submission in submissions if submission.job_id is None for id_ in outputs_of(submission.wire)}
        if not wanted:
            return
        async with self._store.single() as tx:
            owned = await DatasetTable(tx.session).owned(wanted)
        if owned:
            raise DatasetOwned(
                f"dataset {min(owned)} belongs to a DAG: only its jobs write to it", field="wire.outputs"
            )
