"""One worker of the lease contract under trial: its process, and the dispatcher that it talks to."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from windlass.core.error import Invalid
from windlass.testing.conformance import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.lease.paper import Papers
from windlass.testing.lease.stand_in import TERMINAL, Call, StandIn, Task, Wakeup
from windlass.testing.listener import Listener, Reply, Request
from windlass.testing.program import Program

QUEUE, NAMESPACE, CONCURRENCY = "conformance", "conformance-space", 2
LEASE_MIN_S, LEASE_MAX_S = 1.0, 60.0


class Trial:
    """A worker, started for one case: at the first thing that is asked of it, so that a case can prepare its server."""

    def __init__(self, server: StandIn, papers: Papers, launch: Callable[[str], Program], patience_s: float) -> None:
        self.server, self._papers, self._launch, self.patience_s = server, papers, launch, patience_s
        self.lease_s = server.lease_s

    @cached_property
    def program(self) -> Program:
        return self._launch(self.server.url)

    def task(self, leases: float = 0, *, probe: bool = False, **config: Any) -> Task:
        """A task whose operator works for so many times the length of its lease."""
        task = self.server.submit({"work_ms": int(leases * self.lease_s * 1000), "outcome": "Completed", **config})
        if probe:
            task.config["probe_url"] = self.server.probe_url(task)
        return task

    def submit(self, leases: float = 0, *, probe: bool = False, **config: Any) -> tuple[Task, Wakeup]:
        """The same, and its wake-up."""
        task = self.task(leases, probe=probe, **config)
        return task, self.wake(task)

    def wake(self, task: Task, **more: Any) -> Wakeup:
        """A message that names this task."""
        assert self.program
        return self.server.wake(json.dumps({"task_id": task.id, **more}))

    def until(self, holds: Callable[[], object]) -> bool:
        """Whether it came to hold while one was patient."""
        return self.server.until(holds, self.patience_s)

    def pause(self, seconds: float) -> None:
        """For what must not come."""
        self.server.until(lambda: False, seconds)

    def wait(self, name: str, count: int = 1, task: Task | None = None) -> Call:
        """The call of this name with this number, whether it has come already or comes now."""
        assert self.program
        work_s = 0.0 if task is None else float(task.config.get("work_ms", 0)) / 1000
        if not self.server.until(lambda: len(self.server.made(name, task)) >= count, self.patience_s + work_s):
            came = len(self.server.made(name, task))
            raise Broken(
                f"{count} × {name} expected, {came} came within {self.patience_s + work_s:g} s; "
                f"{self.server.names()}{self.program.last_words()}"
            )
        return self.server.made(name, task)[count - 1]

    def ends(self, task: Task, status: str) -> Call:
        """The report of a task, which says this and is accepted."""
        report = self.wait("task-complete", task=task)
        if report.body.get("status") != status:
            raise Broken(f"the report says {report.body.get('status')}: {report.body.get('error_message')!r:.200}")
        if status in TERMINAL and report.status != 200:
            raise Broken(f"the report was answered with {report.status}")
        return report

    def acks(self, wakeup: Wakeup) -> None:
        """It is done with a message, in good order."""
        if not self.until(lambda: wakeup.over):
            told = f"given back {len(wakeup.ends)} times" if wakeup.ends else "neither acked nor given back"
            raise Broken(f"the message was {told}; {self.server.names()}{self.program.last_words()}")
        expect("what became of the message", "ack", wakeup.ends[-1])

    def puts_away(self, wakeup: Wakeup) -> None:
        """It acks or buries a message, at the first delivery."""
        if not self.until(lambda: bool(wakeup.ends)):
            raise Broken(f"the message {wakeup.body!r} was neither acked nor buried; {self.server.names()}")
        if wakeup.ends[0] == "nack":
            raise Broken(f"it gave the message {wakeup.body!r} back")

    def quiet(self, task: Task, after: int, seconds: float = 1.0) -> None:
        """Nothing more may be said of a task than so many calls."""
        self.server.until(lambda: len(self.server.about(task)) > after, seconds)
        if extra := self.server.about(task)[after:]:
            raise Broken(f"it went on with {extra[0].name}")

    def lives(self) -> None:
        """It still runs what it is woken for."""
        task, wakeup = self.submit()
        self.ends(task, "Completed")
        self.acks(wakeup)

    def stop(self) -> None:
        self.program.tell(signal.SIGTERM)

    def trusts_impostor(self, seconds: float) -> bool:
        """Whether it says anything to a server whose certificate is of another authority."""
        heard: list[str] = []

        def note(request: Request) -> Reply:
            heard.append(request.path)
            return Reply(503)

        with Listener(note, ssl_context=self._papers.impostor) as impostor:
            self._launch(impostor.url)
            self.server.until(lambda: bool(heard), seconds)
        return bool(heard)


KIT = Kit[Trial]("lease")


def check_worker(
    command: Sequence[str],
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    lease_s: float = 2.0,
    patience_s: float = 10.0,
    parallel: int = 1,
    told: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Hold the cases against the worker that `command` starts; `told` hears of each as it ends."""
    if not LEASE_MIN_S <= lease_s <= LEASE_MAX_S:
        raise Invalid(f"must be {LEASE_MIN_S:g} to {LEASE_MAX_S:g} seconds", field="lease")
    cases = KIT.select(only, level)
    with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as papers_folder:
        papers = Papers(Path(papers_folder))

        @contextmanager
        def start() -> Iterator[Trial]:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-conformance-")))
                server = stack.enter_context(StandIn(papers.server, lease_s=lease_s, visibility_s=1.5 * lease_s))

                def launch(url: str) -> Program:
                    return stack.enter_context(Program(command, {**os.environ, **environment(url, papers, folder)}))

                yield Trial(server, papers, launch, patience_s)

        return KIT.run(cases, start, parallel=parallel, told=told)


def environment(url: str, papers: Papers, folder: Path) -> dict[str, str]:
    """What the worker is told."""
    return {
        "LEASE_SERVER": url,
        "LEASE_CERTIFICATE": str(papers.client.certificate),
        "LEASE_KEY": str(papers.client.key),
        "LEASE_CA": str(papers.ca),
        "LEASE_QUEUE": QUEUE,
        "LEASE_NAMESPACE": NAMESPACE,
        "LEASE_CONCURRENCY": str(CONCURRENCY),
        "LEASE_FOLDER": str(folder),
    }
