"""The worker of `examples/` with the workflows of the conformance cases. Run as a program, in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.e2e.registry_worker import load_example


def echo(run: Any) -> Any:
    return run.input


def fail(run: Any) -> Any:
    raise RuntimeError(run.input["message"])


def steps(run: Any) -> Any:
    def number(value: int) -> int:
        time.sleep(run.input.get("work_ms", 0) / 1000)
        return value

    return [run.step(f"step-{value}", number, value) for value in range(1, run.input["count"] + 1)]


def step_fails(run: Any) -> Any:
    return run.step("doomed", lambda: fail(run))


def sleep(run: Any) -> Any:
    before = run.step("before", lambda: "before")
    run.sleep(run.input["seconds"])
    return [before, run.step("after", lambda: "after")]


def work(run: Any) -> Any:
    time.sleep(run.input["work_ms"] / 1000)
    return run.input["work_ms"]


if __name__ == "__main__":
    workflows = {f"conformance.{each.__name__}": each for each in (echo, fail, steps, step_fails, sleep, work)}
    worker = load_example().Worker(
        os.environ["KAGZI_SERVER"], os.environ["WINDLASS_API_KEY"], os.environ["KAGZI_TASK_QUEUE"], workflows,
        int(os.environ["KAGZI_MAX_CONCURRENT"]), os.environ["KAGZI_NAMESPACE"],
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
    worker.run()
