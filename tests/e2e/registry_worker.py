"""The worker of `examples/registry_worker.py` with a workflow that leaves a trace of what it does, as a process:
`python -m tests.e2e.registry_worker HOST:PORT KEY FILE`. Ends by being killed, or with SIGTERM when it has finished."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS, SLEEP_S = 5, 1


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("registry_worker_example", ROOT / "examples/registry_worker.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(address: str, key: str, file: str) -> None:
    faulthandler.register(signal.SIGUSR1)  # for the one who asks why a run does not end
    example = load_example()
    trace = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, run: Any, step: int) -> None:
        os.write(trace, f"{what} {run.id} {step}\n".encode())  # appended as a whole, in the order of the moments

    def soak(run: Any) -> list[int]:
        """Five steps, with a sleep after the second and the fourth."""
        results = []
        for step in range(STEPS):
            executed = []

            def work(step: int = step, executed: list[int] = executed) -> int:
                note("begun", run, step)
                executed.append(step)
                return step * step

            results.append(run.step(f"step {step}", work))
            if executed:
                note("recorded", run, step)
            if step in (1, 3):
                run.sleep(SLEEP_S)
        return results

    worker = example.Worker(address, key, "soak", {"soak": soak}, concurrency=16)
    signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:4])
