"""Row P13, inside the environment of one contestant: `python -m bench.stdio windlass|appose SHARE` prints its figures.

Both do the same with their own client and worker. There are two ways to keep 16 tasks in flight, a window and threads;
the faster one counts for each. Standard library, numpy and the contestant only.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

SCRIPT, IN_FLIGHT = "x + 1", 16
ARRAY = (256 << 20,)  # bytes


def windlass_service() -> Any:
    from windlass.stdio import Service

    return Service(init="import numpy")


def appose_service() -> Any:
    from appose.service import Service

    start = "import appose.python_worker; appose.python_worker.main()"
    return Service(Path.cwd(), None, sys.executable, "-c", start).init("import numpy")


def array_of(name: str) -> Any:
    if name == "windlass":
        from windlass.stdio import NDArray

        return NDArray("uint8", ARRAY)
    import appose

    return appose.NDArray("uint8", list(ARRAY))


def one_by_one(service: Any, count: int, queue: str | None = None) -> float:
    began = time.perf_counter()
    for number in range(count):
        _check(service.task(SCRIPT, {"x": number}, queue).wait_for(), number)
    return count / (time.perf_counter() - began)


def in_a_window(service: Any, count: int) -> float:
    began, flying = time.perf_counter(), deque[tuple[int, Any]]()
    for number in range(count):
        task = service.task(SCRIPT, {"x": number})
        task.start()
        flying.append((number, task))
        if len(flying) >= IN_FLIGHT:
            sent, oldest = flying.popleft()
            _check(oldest.wait_for(), sent)
    for sent, task in flying:
        _check(task.wait_for(), sent)
    return count / (time.perf_counter() - began)


def in_threads(service: Any, count: int) -> float:
    starting = threading.Lock()  # the reference's client is not thread-safe; its own tests do the same

    def work() -> None:
        for number in range(count // IN_FLIGHT):
            task = service.task(SCRIPT, {"x": number})
            with starting:
                task.start()
            _check(task.wait_for(), number)

    threads = [threading.Thread(target=work) for _ in range(IN_FLIGHT)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (time.perf_counter() - began)


def start_up_ms(make: Callable[[], Any], rounds: int) -> float:
    """From the start to the first answer, without the import of numpy, which is the same for both."""
    times = []
    for _ in range(rounds):
        service = make()
        service._init = service._init_script = None
        began = time.perf_counter()
        _check(service.task(SCRIPT, {"x": 1}).wait_for(), 1)
        times.append(time.perf_counter() - began)
        service.close()
        service.wait_for()
    return 1e3 * statistics.median(times)


def hand_over_ms(name: str, service: Any, rounds: int) -> float:
    """Pass an existing array of 256 MB to the worker, which reads one element and answers."""
    times = []
    with array_of(name) as array:
        array.ndarray()[:] = 7
        for _ in range(rounds):
            began = time.perf_counter()
            found = service.task("int(a.ndarray()[-1])", {"a": array}).wait_for().outputs["result"]
            times.append(time.perf_counter() - began)
            assert found == 7
    return 1e3 * statistics.median(times)


def _check(task: Any, number: int) -> None:
    assert task.outputs["result"] == number + 1, task.outputs


def main(name: str, share: float) -> None:
    make = {"windlass": windlass_service, "appose": appose_service}[name]
    service = make()
    one_by_one(service, 50)
    count = max(320, int(6000 * share))
    figures = {
        "rate": one_by_one(service, count // 2),
        "in_flight_rate": max(in_a_window(service, count), in_threads(service, count)),
        "main_rate": one_by_one(service, count if name == "windlass" else max(20, int(60 * share)), "main"),
        "hand_over_ms": hand_over_ms(name, service, max(5, int(30 * share))),
        "start_up_ms": start_up_ms(make, max(3, int(11 * share))),
    }
    service.close()
    service.wait_for()
    sys.stdout.write(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
