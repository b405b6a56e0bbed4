"""`kill -9` of a worker or of a client leaves no block of shared memory and no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from tests.contracts.stdio.talk import WorkerProcess, blocks
from tests.kit.processes import alive

from windlass.stdio import Service, TaskError

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
CLIENT = """
import sys, threading
from windlass.stdio import NDArray, Service
ours = NDArray("float64", [1000])
service = Service().start()
theirs = service.task("task.export(kept=task.array('float64', [1000])); task.array('int8', [10])").result()
script = "import os, subprocess; child = subprocess.Popen(['sleep', '600']); [os.getpid(), child.pid]"
processes = service.task(script).result()
if sys.argv[1] == "busy":
    launched = threading.Event()
    task = service.task("import time\\nwhile True: time.sleep(1)", {"a": ours}).listen(lambda _: launched.set())
    task.start()
    launched.wait()
print(*processes, flush=True)
threading.Event().wait()
"""


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _leaves_no_block() -> Iterator[None]:
    before = blocks()
    yield
    eventually(lambda: blocks() <= before)


@pytest.mark.parametrize("worker_is", ["busy", "idle"])
def test_a_client_that_is_killed_takes_worker_children_and_memory_with_it(worker_is: str) -> None:
    before = blocks()
    command = [sys.executable, "-c", CLIENT, worker_is]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stderr is not None
    worker, child = map(int, client.stdout.readline().split())
    assert len(blocks() - before) == 3

    client.kill()
    client.wait(PATIENCE_S)

    eventually(lambda: not alive(worker) and not alive(child))
    eventually(lambda: blocks() <= before)
    client.stdout.close()
    client.stderr.close()


def test_a_worker_that_is_killed_takes_its_children_and_memory_with_it() -> None:
    before = blocks()
    service = Service().start()
    made = service.task("task.export(kept=task.array('float64', [1000])); task.array('int8', [10])").result(PATIENCE_S)
    child = service.task("import subprocess; subprocess.Popen(['sleep', '600']).pid").result(PATIENCE_S)
    hangs = service.task("import time\nwhile True: time.sleep(1)").start()
    assert len(blocks() - before) == 2

    os.kill(service.pid, signal.SIGKILL)
    with pytest.raises(TaskError, match="SIGKILL"):
        hangs.wait_for(PATIENCE_S)
    service.wait_for(PATIENCE_S)

    eventually(lambda: not alive(child))
    assert made.ndarray().shape == (10,)  # what we took over is ours
    made.dispose()
    assert blocks() == before


def test_a_worker_that_is_killed_under_a_plain_client_leaves_no_memory() -> None:
    before = blocks()
    with WorkerProcess() as talk:
        talk.run("m", "task.export(kept=task.array('int8', [10])); 1")
        assert len(blocks() - before) == 1
        talk.process.kill()
        eventually(lambda: blocks() == before)


def test_a_worker_that_ends_leaves_what_its_client_has_and_nothing_else() -> None:
    before = blocks()
    with Service() as service:
        made = service.task("task.export(kept=task.array('int8', [10])); task.array('int8', [10])").result(PATIENCE_S)
    assert blocks() - before == {made.shm.name}
    made.dispose()


def test_a_client_that_ends_without_closing_anything_leaves_nothing_and_complains_of_nothing() -> None:
    before = blocks()
    program = (
        "from windlass.stdio import NDArray, Service\n"
        "a = NDArray('int8', [5]); s = Service().start()\n"
        "b = s.task('task.array(\"int8\", [5])').result()\n"
        "print(s.pid)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stderr == ""
    eventually(lambda: not alive(int(done.stdout)))
    assert blocks() == before


def test_a_long_life_with_many_blocks_leaves_none_known() -> None:
    with Service() as service:
        for _ in range(100):
            service.task("task.array('int8', [5])").result(PATIENCE_S).dispose()
        known = "import sys; len(sys.modules[type(task).__module__.rpartition('.')[0] + '.shm']._owned)"
        assert service.task(known).result(PATIENCE_S) <= 70
