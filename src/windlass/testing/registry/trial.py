"""One worker of the registry contract under trial: its process, and the server that it talks to."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import grpc

from windlass.core.check import check_count
from windlass.testing.conformance import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.program import Program
from windlass.testing.registry.stand_in import Call, Run, StandIn, read_json

QUEUE, NAMESPACE, KEY, CONCURRENCY = "conformance", "conformance-space", "wl_conformance-key", 2
ARRIVES_S = 0.5  # within which an answer has reached the worker
TYPES = ("echo", "fail", "steps", "step_fails", "sleep", "work")


class Trial:
    """A worker, started for one case: at the first thing that is asked of it, so that a case can prepare its server."""

    def __init__(self, server: StandIn, launch: Callable[[], Program]) -> None:
        self.server, self._launch = server, launch
        self.beat_s = server.heartbeat_s
        self._work_s = 0.0  # the most that a run was asked to work

    @cached_property
    def program(self) -> Program:
        return self._launch()

    def start(self, kind: str, payload: object) -> Run:
        """A run for it."""
        assert self.program
        return self.server.start(f"conformance.{kind}", payload)

    def until(self, holds: Callable[[], object]) -> bool:
        """Whether it came to hold while one was patient."""
        return self.server.until(holds, self.patience_s)

    @property
    def patience_s(self) -> float:
        return self.server.patience_s + self.beat_s + self._work_s

    def pause(self, seconds: float) -> None:
        """For what must not come."""
        self.server.until(lambda: False, seconds)

    def work(self, beats: float) -> dict[str, float]:
        """The input of a run that works for so many heartbeat intervals."""
        self._work_s = max(self._work_s, beats * self.beat_s)
        return {"work_ms": beats * self.beat_s * 1000}

    def wait(self, name: str, count: int = 1, run: Run | None = None) -> Call:
        """The call of this name with this number, whether it has come already or comes now."""
        assert self.program
        patience_s = self.patience_s + count * self.beat_s
        if not self.server.until(lambda: len(self.server.made(name, run)) >= count, patience_s):
            came = len(self.server.made(name, run))
            raise Broken(
                f"{count} × {name} expected, {came} came within {patience_s:g} s; "
                f"{self.server.names()}{self.program.last_words()}"
            )
        return self.server.made(name, run)[count - 1]

    def executes(self, run: Run) -> None:
        """Until it has the run, and not only the answer to its poll on the way."""
        if not self.until(lambda: run.running):
            raise Broken(f"it did not take the run; {self.server.names()}{self.program.last_words()}")
        self.pause(ARRIVES_S)

    def completes(self, run: Run) -> Any:
        """Its output. Raises Broken if it ends otherwise, or does not end."""
        self.until(lambda: self.server.made("CompleteWorkflow", run) or self.server.made("FailWorkflow", run))
        if failed := self.server.made("FailWorkflow", run):
            raise Broken(f"{run.kind} was failed: {failed[0].request.error.message[:300]!r}")
        return read_json("the output", self.wait("CompleteWorkflow", run=run).request.output)

    def lives(self) -> None:
        """It still runs what it is given."""
        run = self.start("echo", "alive")
        expect("the output of a run afterwards", "alive", self.completes(run))

    def quiet(self, run: Run, after: int, seconds: float = 1.0) -> None:
        """Nothing more may be said of a run than so many calls."""
        self.server.until(lambda: len(self.server.about(run)) > after, seconds)
        if extra := self.server.about(run)[after:]:
            raise Broken(f"it went on with {extra[0].name}")

    def leaves(self) -> None:
        """It deregisters for good; to announce that it drains may come before."""
        self.wait("DeregisterWorker")
        if not self.until(lambda: not self.server.registered):
            raise Broken(f"it did not call DeregisterWorker without drain; {self.server.names()}")

    def stop(self) -> None:
        self.program.tell(signal.SIGTERM)

    def ends(self) -> None:
        """With code 0."""
        expect("the exit code", 0, self.program.wait(self.patience_s))


KIT = Kit[Trial]("registry", breaks=(grpc.RpcError,))


def check_worker(
    command: Sequence[str],
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    heartbeat_s: int = 1,
    patience_s: float = 10.0,
    parallel: int = 1,
    told: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Hold the cases against the worker that `command` starts; `told` hears of each as it ends."""

    check_count("heartbeat_s", heartbeat_s, least=1, most=60)

    @contextmanager
    def start() -> Iterator[Trial]:
        with ExitStack() as stack:
            server = stack.enter_context(StandIn(namespace=NAMESPACE, heartbeat_s=heartbeat_s, patience_s=patience_s))
            told_it = {**os.environ, **environment(server.address)}
            yield Trial(server, lambda: stack.enter_context(Program(command, told_it)))

    return KIT.run(KIT.select(only, level), start, parallel=parallel, told=told)


def environment(address: str) -> dict[str, str]:
    """What the worker is told."""
    return {
        "KAGZI_SERVER": address,
        "KAGZI_SERVER_URL": f"http://{address}",
        "KAGZI_TASK_QUEUE": QUEUE,
        "KAGZI_NAMESPACE": NAMESPACE,
        "KAGZI_MAX_CONCURRENT": str(CONCURRENCY),
        "WINDLASS_API_KEY": KEY,
    }
