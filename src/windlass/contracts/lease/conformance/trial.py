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

from windlass.contracts.lease.conformance.certificates import TlsFiles
from windlass.contracts.lease.conformance.stand_in import TERMINAL, Call, StandIn, Task, Wakeup
from windlass.errors import Invalid
from windlass.testing.conformance.kit import Broken, Kit, Level, Result, expect, ignore
from windlass.testing.conformance.listener import Listener, Reply, Request
from windlass.testing.conformance.program import Program

QUEUE, NAMESPACE, CONCURRENCY = "conformance", "conformance-space", 2
LEASE_MIN_S, LEASE_MAX_S = 1.0, 60.0


class Trial:
    """A worker under test in one case. It starts when the case first uses it, so that a case can prepare its server."""

    def __init__(
        self, server: StandIn, tls_files: TlsFiles, launch: Callable[[str], Program], timeout_s: float
    ) -> None:
        self.server, self._tls_files, self._launch, self.timeout_s = server, tls_files, launch, timeout_s
        self.lease_s = server.lease_s

    @cached_property
    def program(self) -> Program:
        return self._launch(self.server.url)

    def task(self, leases: float = 0, *, probe: bool = False, **config: Any) -> Task:
        """A task whose operator works for `leases` times the length of its lease."""
        task = self.server.submit({"work_ms": int(leases * self.lease_s * 1000), "outcome": "Completed", **config})
        if probe:
            task.config["probe_url"] = self.server.probe_url(task)
        return task

    def submit(self, leases: float = 0, *, probe: bool = False, **config: Any) -> tuple[Task, Wakeup]:
        """A task and its wake-up."""
        task = self.task(leases, probe=probe, **config)
        return task, self.wake(task)

    def wake(self, task: Task, **more: Any) -> Wakeup:
        """A message that names this task."""
        assert self.program
        return self.server.wake(json.dumps({"task_id": task.id, **more}))

    def until(self, holds: Callable[[], object]) -> bool:
        """Whether a condition becomes true within the timeout."""
        return self.server.until(holds, self.timeout_s)

    def pause(self, seconds: float) -> None:
        """Wait, to see that something does not happen."""
        self.server.until(lambda: False, seconds)

    def wait(self, name: str, count: int = 1, task: Task | None = None) -> Call:
        """The `count`-th call of this name. Waits for it if it has not come yet."""
        assert self.program
        work_s = 0.0 if task is None else float(task.config.get("work_ms", 0)) / 1000
        if not self.server.until(lambda: len(self.server.made(name, task)) >= count, self.timeout_s + work_s):
            came = len(self.server.made(name, task))
            raise Broken(
                f"{count} × {name} expected, {came} came within {self.timeout_s + work_s:g} s; "
                f"{self.server.names()}{self.program.last_output()}"
            )
        return self.server.made(name, task)[count - 1]

    def ends(self, task: Task, status: str) -> Call:
        """The accepted report of a task, which must have this status."""
        report = self.wait("task-complete", task=task)
        if report.body.get("status") != status:
            raise Broken(f"the report says {report.body.get('status')}: {report.body.get('error_message')!r:.200}")
        if status in TERMINAL and report.status != 200:
            raise Broken(f"the report was answered with {report.status}")
        return report

    def acks(self, wakeup: Wakeup) -> None:
        """The worker acks a message."""
        if not self.until(lambda: wakeup.over):
            outcome = f"given back {len(wakeup.ends)} times" if wakeup.ends else "neither acked nor given back"
            raise Broken(f"the message was {outcome}; {self.server.names()}{self.program.last_output()}")
        expect("what became of the message", "ack", wakeup.ends[-1])

    def settles(self, wakeup: Wakeup) -> None:
        """The worker acks or dead-letters a message at the first delivery."""
        if not self.until(lambda: bool(wakeup.ends)):
            raise Broken(f"the message {wakeup.body!r} was neither acked nor dead-lettered; {self.server.names()}")
        if wakeup.ends[0] == "nack":
            raise Broken(f"it gave the message {wakeup.body!r} back")

    def quiet(self, task: Task, after: int, seconds: float = 1.0) -> None:
        """The worker makes no more calls about a task than the first `after`."""
        self.server.until(lambda: len(self.server.about(task)) > after, seconds)
        if extra := self.server.about(task)[after:]:
            raise Broken(f"it went on with {extra[0].name}")

    def lives(self) -> None:
        """The worker still runs tasks."""
        task, wakeup = self.submit()
        self.ends(task, "Completed")
        self.acks(wakeup)

    def stop(self) -> None:
        self.program.tell(signal.SIGTERM)

    def trusts_impostor(self, seconds: float) -> bool:
        """Whether the worker calls a server whose certificate is of another authority."""
        received: list[str] = []

        def note(request: Request) -> Reply:
            received.append(request.path)
            return Reply(503)

        with Listener(note, ssl_context=self._tls_files.impostor) as impostor:
            self._launch(impostor.url)
            self.server.until(lambda: bool(received), seconds)
        return bool(received)


KIT = Kit[Trial]("lease")


def check_worker(
    command: Sequence[str],
    *,
    only: Collection[int] = (),
    level: Level | None = None,
    lease_s: float = 2.0,
    timeout_s: float = 10.0,
    parallel: int = 1,
    on_result: Callable[[Result], None] = ignore,
) -> list[Result]:
    """Run the cases against the worker that `command` starts; `on_result` is called with each result, in order."""
    if not LEASE_MIN_S <= lease_s <= LEASE_MAX_S:
        raise Invalid(f"must be {LEASE_MIN_S:g} to {LEASE_MAX_S:g} seconds", field="lease")
    cases = KIT.select(only, level)
    with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as tls_folder:
        tls_files = TlsFiles(Path(tls_folder))

        @contextmanager
        def start() -> Iterator[Trial]:
            with ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="windlass-conformance-")))
                server = stack.enter_context(StandIn(tls_files.server, lease_s=lease_s, visibility_s=1.5 * lease_s))

                def launch(url: str) -> Program:
                    return stack.enter_context(Program(command, {**os.environ, **environment(url, tls_files, folder)}))

                yield Trial(server, tls_files, launch, timeout_s)

        return KIT.run(cases, start, parallel=parallel, on_result=on_result)


def environment(url: str, tls_files: TlsFiles, folder: Path) -> dict[str, str]:
    """The environment variables of the worker."""
    return {
        "LEASE_SERVER": url,
        "LEASE_CERTIFICATE": str(tls_files.client.certificate),
        "LEASE_KEY": str(tls_files.client.key),
        "LEASE_CA": str(tls_files.ca),
        "LEASE_QUEUE": QUEUE,
        "LEASE_NAMESPACE": NAMESPACE,
        "LEASE_CONCURRENCY": str(CONCURRENCY),
        "LEASE_FOLDER": str(folder),
    }
