"""Control groups: when they are used, and what is written into them. The file system is made up, since a machine has
either a group that was handed over to this process or none; where there is a real one, a program is ended by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.contracts.lease.worker.test_program import TASK, Heard
from tests.kit.work import soon

from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.control_group import Groups, open_groups
from windlass.contracts.lease.worker.isolation import find_isolation
from windlass.contracts.lease.worker.operator import Limits, Operator, OperatorFailed

pytestmark = pytest.mark.slow


class Tree:
    """A control group as the kernel would show it."""

    def __init__(self, folder: Path) -> None:
        self.own, self.mounts, self.base = folder / "own", folder / "mounts", folder / "cgroup" / "service"
        self.base.mkdir(parents=True)
        self.own.write_text("3:memory:/elsewhere\n0::/service\n")
        self.mounts.write_text(f"31 23 0:26 / {folder / 'cgroup'} rw,nosuid shared:4 - cgroup2 cgroup2 rw\n")
        self.write("cgroup.controllers", "cpu memory pids")
        self.write("cgroup.procs", f"{os.getpid()}\n")

    def write(self, name: str, text: str) -> None:
        (self.base / name).write_text(text)

    def open(self) -> Groups | str:
        return open_groups(self.own, self.mounts)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_group_that_is_the_wrappers_alone_gets_one_below_for_each_program(tree: Tree) -> None:
    groups = tree.open()
    assert isinstance(groups, Groups)
    assert (tree.base / "windlass-wrapper" / "cgroup.procs").read_text() == "0"
    assert (tree.base / "cgroup.subtree_control").read_text() == "+memory +pids"

    group = groups.make(memory_bytes=1 << 30, processes=64)
    written = {file.name: file.read_text() for file in group.iterdir()}
    assert written == {"memory.max": str(1 << 30), "memory.oom.group": "1", "memory.swap.max": "0", "pids.max": "67"}

    assert not groups.ran_out_of_memory(group)
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 3\n")
    assert groups.ran_out_of_memory(group)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cgroup.controllers", "cpu pids", "no controller for memory"),
        ("cgroup.procs", "1\n2\n", "holds other processes"),
        ("../../own", "3:memory:/elsewhere\n", "no control groups of version 2"),
        ("../../mounts", "", "no control groups of version 2"),
    ],
)
def test_where_it_is_not_the_reason_is_told_and_nothing_is_changed(tree: Tree, name: str, text: str, says: str) -> None:
    tree.write(name, text)
    before = sorted(tree.base.iterdir())

    assert says in str(tree.open())
    assert sorted(tree.base.iterdir()) == before


async def test_a_program_that_cannot_enter_its_group_is_not_run(tree: Tree) -> None:
    """The made-up group has no kernel behind it: `cgroup.procs` is taken away."""
    groups, isolation = tree.open(), find_isolation([])
    if isolation.way is None:
        pytest.skip("; ".join(isolation.reasons))
    assert isinstance(groups, Groups)
    programs = Programs(isolation, groups)
    make = groups.make

    def closed(**limits: int | None) -> Path:
        group = make(**limits)
        (group / "cgroup.procs").mkdir()
        return group

    groups.make = closed  # type: ignore[method-assign]
    with pytest.raises(OperatorFailed, match="refused: this machine cannot isolate untrusted code now"):
        await soon(programs.run(Operator(command=["true"], trusted=False), TASK, Heard(), {}))
    programs.close()


async def test_the_kernel_ends_a_program_whose_processes_use_too_much_together() -> None:
    groups = open_groups()
    if isinstance(groups, str):
        pytest.skip(groups)
    programs = Programs(find_isolation([]), groups)
    code = (
        "for _ in 1 2 3 4 5 6; do (head -c 100000000 /dev/zero | tail -c 100000000 > /dev/null; sleep 60) & done; wait"
    )
    limits = Limits(memory_bytes=256 << 20)
    with pytest.raises(OperatorFailed, match="bytes of memory, all of its processes together"):
        await soon(programs.run(Operator(command=["sh", "-c", code], trusted=False, limits=limits), TASK, Heard(), {}))
    programs.close()
