"""Arrays in shared memory, and objects that stay in the worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from tests.contracts.stdio.talk import blocks

from windlass.stdio import NDArray, Proxy, Service, SharedMemory, TaskError, share

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


# --------------------------------------------------------------------------------------------- arrays


@pytest.mark.parametrize(
    "dtype",
    [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint64",
        "float32",
        "float64",
        "complex64",
        "complex128",
        "bool",
        ">f4",
    ],
)
def test_both_sides_see_the_same_memory(service: Service, dtype: str) -> None:
    with NDArray(dtype, [2, 3, 4]) as array:
        array.ndarray()[:] = 1
        service.task("a.ndarray()[1, 2, 3] = 0", {"a": array}).wait_for(PATIENCE_S)

        assert array.ndarray().shape == (2, 3, 4)
        assert (array.ndarray().sum(), array.ndarray()[1, 2, 3]) == (23, 0)


def test_an_array_of_the_worker_becomes_ours(service: Service) -> None:
    before = blocks()
    made = service.task("import numpy as np\ntask.share(np.arange(6, dtype='int32').reshape(2, 3))").result(PATIENCE_S)

    assert made.ndarray().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.asarray(made).sum() == 15
    assert len(blocks() - before) == 1
    made.dispose()
    assert blocks() == before


def test_an_array_that_comes_back_is_still_ours_and_the_same(service: Service) -> None:
    with share(np.arange(4.0)) as array:
        back = service.task("a", {"a": array}).result(PATIENCE_S)
        back.ndarray()[0] = 9
        back.dispose()

        assert array.ndarray()[0] == 9
        assert service.task("float(a.ndarray()[0])", {"a": array}).result(PATIENCE_S) == 9


def test_arrays_travel_inside_of_lists_and_objects(service: Service) -> None:
    with share(np.ones(3)) as one, SharedMemory(create=True, rsize=16) as block:
        block.buf[:2] = b"hi"
        script = "task.outputs['n'] = float(many[0]['deep'].ndarray().sum())\nbytes(many[1].buf[:2]).decode()"
        task = service.task(script, {"many": [{"deep": one}, block]}).wait_for(PATIENCE_S)

    assert task.outputs == {"n": 3.0, "result": "hi"}


def test_an_array_of_the_worker_goes_on_to_another_worker(service: Service) -> None:
    made = service.task("a = task.array('int16', [3]); a.ndarray()[:] = 7; a").result(PATIENCE_S)
    with made, Service() as other:
        assert other.task("int(a.ndarray().sum())", {"a": made}).result(PATIENCE_S) == 21


def test_an_empty_array_and_one_without_axes(service: Service) -> None:
    with NDArray("float32", [0, 3]) as empty, NDArray("float32", []) as single:
        assert service.task("list(a.ndarray().shape)", {"a": empty}).result(PATIENCE_S) == [0, 3]
        assert service.task("a.ndarray().ndim", {"a": single}).result(PATIENCE_S) == 0


def test_arrays_work_without_numpy() -> None:
    shown = (
        "import sys; sys.modules['numpy'] = None\n"
        "from windlass.stdio import NDArray\n"
        "with NDArray('bool', [3]) as a, NDArray('complex128', [2]) as b: print(a.shm.rsize, b.shm.rsize)"
    )
    assert subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True).stdout == "3 32\n"


def test_wrong_arrays_are_refused(service: Service) -> None:
    with SharedMemory(create=True, rsize=4) as block:
        with pytest.raises(OSError, match="has 4 bytes, its array needs 8"):
            NDArray("float64", [1], block)
        with pytest.raises(OSError, match="bytes, not 8"):
            SharedMemory(block.name, rsize=8)
    with pytest.raises(ValueError, match="at least 1"):
        SharedMemory(create=True)
    with pytest.raises(ValueError, match="cannot have the length -1"):
        NDArray("int8", [-1])
    with pytest.raises(TypeError, match=r"windlass\.stdio\.share"):
        service.task("1", {"a": np.ones(2)}).start()


def test_a_script_that_is_done_with_its_block_leaves_nothing(service: Service) -> None:
    before = blocks()
    service.task("with task.array('int8', [9]) as a: a.ndarray()[:] = 1").wait_for(PATIENCE_S)

    assert blocks() == before


# --------------------------------------------------------------------------------------------- objects


def test_an_object_of_the_worker_is_used_as_if_it_were_here(service: Service) -> None:
    now = service.task("import datetime; datetime.datetime(2020, 2, 3, 4)").result(PATIENCE_S)

    assert isinstance(now, Proxy)
    assert (now.year, now.weekday(), str(now)) == (2020, 0, "2020-02-03 04:00:00")
    assert now.replace(year=2021, hour=5).isoformat() == "2021-02-03T05:00:00"
    assert "isoformat" in dir(now)
    with pytest.raises(TaskError, match="AttributeError"):
        _ = now.nothing


def test_attributes_items_and_calls(service: Service) -> None:
    script = (
        "class Box:\n    def __init__(self): self.held = {}\n    def __getitem__(self, k): return self.held[k]\n"
        "    def __setitem__(self, k, v): self.held[k] = v\n    def __len__(self): return len(self.held)\n"
        "    def __iter__(self): return iter(self.held)\n    def __call__(self, *a, **k): return [list(a), k]\n"
        "    def me(self, other): return other is self\n"
        "Box()"
    )
    box = service.task(script).result(PATIENCE_S)
    box["a"] = {"deep": [1]}
    box.size = 3

    assert (box["a"], len(box), list(box), "a" in box, box.size) == ({"deep": [1]}, 1, ["a"], True, 3)
    assert box(1, two=2) == [[1], {"two": 2}]
    assert box.me(box) is True
    assert box.held == {"a": {"deep": [1]}}
    assert service.task("x is x and len(x)", {"x": box}).result(PATIENCE_S) == 1


def test_what_a_client_no_longer_needs_is_forgotten_by_the_worker(service: Service) -> None:
    known = "len([name for name in task._host.exports if name.startswith('_appose_auto_')])"
    before = service.task(known).result(PATIENCE_S)
    for _ in range(50):
        made = service.task("object()").result(PATIENCE_S)
        assert str(made).startswith("<object")
    del made
    service.get_var("task")

    assert service.task(known, queue="main").result(PATIENCE_S) - before <= 2


def test_variables_are_put_got_and_reached_by_proxy(service: Service) -> None:
    service.put_var("numbers", [3, 1, 2])

    assert service.get_var("numbers") == [3, 1, 2]
    assert service.call("sorted", [3, 1], reverse=True) == [3, 1]
    assert service.proxy("numbers").index(2) == 2
    with pytest.raises(ValueError, match="is not a name"):
        service.get_var("__import__('os').getpid()")


def test_a_worker_of_unknown_language_has_no_proxies() -> None:
    with pytest.raises(ValueError, match="may not run Python"):
        Service(["cat"]).get_var("x")
