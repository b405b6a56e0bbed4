"""Each HTTP contract has a status for every error of ours, so that a new error is never a defect by accident."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from windlass.contracts.callback.wire import status as callback
from windlass.contracts.lease.wire import status as lease
from windlass.contracts.machine.wire import status as machine
from windlass.net.status import STATUS


@pytest.mark.parametrize("table", [callback.STATUS, lease.STATUS, machine.STATUS], ids=["callback", "lease", "machine"])
def test_every_error_has_a_status(table: Mapping[str, object]) -> None:
    assert table.keys() == STATUS.keys()
