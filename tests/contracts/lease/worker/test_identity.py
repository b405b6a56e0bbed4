"""Who a wrapper is stays the same across restarts, and differs between those that run side by side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from windlass.contracts.lease.worker.identity import Identity
from windlass.errors import Invalid


def test_a_wrapper_keeps_its_id_across_restarts(tmp_path: Path) -> None:
    first = Identity(tmp_path / "state", "blocks")
    worker_id = first.worker_id
    first.close()
    second = Identity(tmp_path / "state", "blocks")

    assert second.worker_id == worker_id
    assert worker_id == f"wrapper:blocks/{second.id}"


def test_wrappers_side_by_side_have_different_ids_and_each_comes_back(tmp_path: Path) -> None:
    together = [Identity(tmp_path) for _ in range(3)]
    ids = [one.id for one in together]
    assert len(set(ids)) == 3
    together[1].close()

    assert Identity(tmp_path).id == ids[1]


def test_a_wrapper_that_is_killed_leaves_its_id_to_its_successor(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom windlass.contracts.lease.worker.identity import Identity\n"
        "print(Identity(Path(sys.argv[1])).id, flush=True)\nos.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)

    assert killed.returncode == -9
    assert Identity(tmp_path).id == killed.stdout.strip()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(Invalid, match="state_dir"):
        Identity(tmp_path / "file")
