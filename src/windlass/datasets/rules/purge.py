"""Which versions of a dataset may be purged: those that no deployment needs any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from windlass.datasets.rules.deployment import LIVE, DeploymentState

# A failed one builds again when a person retries its task.
KEEPS = LIVE | {DeploymentState.FAILED}


class PointingDeployment(NamedTuple):
    """A deployment that points to a version. `previous`: a rollback goes back to it. `retired`: its DAG is."""

    number: int
    state: DeploymentState
    previous: bool
    retired: bool


def needed_by(pointing: Iterable[PointingDeployment]) -> PointingDeployment | None:
    """The deployment because of which a version cannot be purged. A retired DAG keeps nothing."""
    return next((one for one in pointing if not one.retired and (one.state in KEEPS or one.previous)), None)
