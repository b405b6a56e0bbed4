"""A worker of the registry contract under test: its process and the server that it talks to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import grpc

from windlass.contracts.registry.conformance.stand_in import Call, Run, StandIn, read_json
from windlass.core.validation import check_count
from windlass.testing.conformance.kit import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.conformance.program import Program

QUEUE, NAMESPACE, KEY, CONCURRENCY = "conformance", "conformance-space", "wl_conformance-key", 2
ARRIVES_S = 0.5  # time for an answer to reach the worker
TYPES = ("echo", "fail", "steps", "step_fails", "sleep", "work")


class Trial:
    """A worker for one case. It is started on first use, so that a case can prepare the server."""

    def __init__(self, server: StandIn, launch: Callable[[], Program]) -> None:
        self.server, self._launch = server, launch
        self.heartbeat_s = server.heartbeat_s
        self._work_s = 0.0  # the longest work of a run

    @cached_property
    def program(self) -> Program:
        return self._launch()

    def start(self, kind: str, payload: object) -> Run:
        """Starts a run for the worker."""
        assert self.program
        return self.server.start(f"conformance.{kind}", payload)

    def until(self, holds: Callable[[], object]) -> bool:
        """Returns whether the condition held in time."""
        return self.server.until(holds, self.timeout_s)

    @property
    def timeout_s(self) -> float:
        return self.server.timeout_s + self.heartbeat_s + self._work_s

    def pause(self, seconds: float) -> None:
        """Waits while no call is expected."""
        self.server.until(lambda: False, seconds)

    def work(self, intervals: float) -> dict[str, float]:
        """The input of a run that works for this many heartbeat intervals."""
        self._work_s = max(self._work_s, intervals * self.heartbeat_s)
        return {"work_ms": intervals * self.heartbeat_s * 1000}

    def wait(self, name: str, count: int = 1, run: Run | None = None) -> Call:
        """Returns the `count`th call of this name. Waits for it if necessary."""
        assert self.program
        timeout_s = self.timeout_s + count * self.heartbeat_s
        if not self.server.until(lambda: len(self.server.made(name, run)) >= count, timeout_s):
            came = len(self.server.made(name, run))
            problem = f"{count} × {name} expected, {came} came within {timeout_s:g} s"
            raise Broken(f"{problem}; {self.server.names()}{self.program.last_output()}")
        return self.server.made(name, run)[count - 1]

    def executes(self, run: Run) -> None:
        """Waits until the worker has the run, not only the poll response in flight."""
        if not self.until(lambda: run.running):
            raise Broken(f"it did not start the run; {self.server.names()}{self.program.last_output()}")
        self.pause(ARRIVES_S)

    def completes(self, run: Run) -> Any:
        """Returns the output of the run. Raises Broken if it does not complete."""
        self.until(lambda: self.server.made("CompleteWorkflow", run) or self.server.made("FailWorkflow", run))
        if failed := self.server.made("FailWorkflow", run):
            raise Broken(f"{run.kind} was failed: {failed[0].request.error.message[:300]!r}")
        return read_json("the output", self.wait("CompleteWorkflow", run=run).request.output)

    def lives(self) -> None:
        """Checks that the worker still executes runs."""
        run = self.start("echo", "alive")
        expect("the output of a run afterwards", "alive", self.completes(run))

    def quiet(self, run: Run, after: int, seconds: float = 1.0) -> None:
        """Checks that there are at most `after` calls about the run."""
        self.server.until(lambda: len(self.server.about(run)) > after, seconds)
        if extra := self.server.about(run)[after:]:
            raise Broken(f"it continued with {extra[0].name}")

    def leaves(self) -> None:
        """Waits until the worker deregisters without drain. It may announce a drain before."""
        self.wait("DeregisterWorker")
        if not self.until(lambda: not self.server.registered):
            raise Broken(f"it did not call DeregisterWorker without drain; {self.server.names()}")

    def stop(self) -> None:
        self.program.tell(signal.SIGTERM)

    def ends(self) -> None:
        """Checks that the worker exits with code 0."""
        expect("the exit code", 0, self.program.wait(self.timeout_s))


KIT = Kit[Trial]("registry", breaks=(grpc.RpcError,))


def check_worker(
    command: Sequence[str],
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    heartbeat_s: int = 1,
    timeout_s: float = 10.0,
    parallel: int = 1,
    on_result: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Run the cases against the worker that `command` starts; `on_result` is called with each result, in order."""
    check_count("heartbeat_s", heartbeat_s, least=1, most=60)

    @contextmanager
    def start() -> Iterator[Trial]:
        with ExitStack() as stack:
            server = stack.enter_context(StandIn(namespace=NAMESPACE, heartbeat_s=heartbeat_s, timeout_s=timeout_s))
            variables = {
                **os.environ,
                "KAGZI_SERVER": server.address,
                "KAGZI_SERVER_URL": f"http://{server.address}",
                "KAGZI_TASK_QUEUE": QUEUE,
                "KAGZI_NAMESPACE": NAMESPACE,
                "KAGZI_MAX_CONCURRENT": str(CONCURRENCY),
                "WINDLASS_API_KEY": KEY,
            }
            yield Trial(server, lambda: stack.enter_context(Program(command, variables)))

    return KIT.run(KIT.select(only, level), start, parallel=parallel, on_result=on_result)
