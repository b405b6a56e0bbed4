"""Which versions of a dataset may be purged."""

from __future__ import annotations

import pytest

from windlass.datasets.rules.deployment import DeploymentState
from windlass.datasets.rules.purge import PointingDeployment, needed_by

S = DeploymentState


@pytest.mark.parametrize("state", DeploymentState)
def test_a_version_is_kept_by_deployments_that_are_live_or_may_be_again(state: DeploymentState) -> None:
    keeps = state in {S.ACTIVE, S.BUILDING, S.READY, S.FAILED}

    one = PointingDeployment(3, state, previous=False, retired=False)

    assert needed_by([one]) == (one if keeps else None)
    assert needed_by([one._replace(previous=True)]) is not None
    assert needed_by([one._replace(previous=True, retired=True)]) is None


def test_any_of_several_deployments_keeps_a_version() -> None:
    old, active = (PointingDeployment(n, state, False, False) for n, state in ((1, S.SUPERSEDED), (2, S.ACTIVE)))

    assert needed_by([old, active]) == active
    assert needed_by([old]) is None
    assert needed_by([]) is None
