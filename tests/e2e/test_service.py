"""Tasks pushed to a service that uses the SDK: the real server, a real uvicorn; killed, stopped, cut off, drained."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.e2e import pushed
from tests.e2e.pushed import app, double, greet, refuse, resume, wait
from tests.kit.ports import free_port

from windlass import Engine, State, TaskFailed, chain, open_engine
from windlass.contracts.callback.delivery import Push
from windlass.contracts.callback.server.options import PushOptions
from windlass.core.delivery import RetryForm
from windlass.core.queue import QueueConfig
from windlass.serve import open_server

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
QUICK = RetryForm(max_attempts=3, max_losses=20, initial_ms=10, max_ms=100)


class Service:
    """The service in a process of its own, on a port that stays the same."""

    def __init__(self, folder: Path, secret: str, engine: str = "") -> None:
        """`engine`: where it calls back, if not where it is told to."""
        self.folder, self._secret, self.port, self._engine = folder, secret, free_port(), engine
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/windlass"

    async def start(self) -> None:
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            pushed.SECRET: self._secret, pushed.ENGINE: self._engine,
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.e2e.pushed", str(self.port), str(self.folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment)  # noqa: ASYNC220
        await eventually(self._listens)

    def _listens(self) -> bool:
        return _listens(self.port)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def ended(self) -> int:
        assert self.process is not None
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def notes(self) -> list[str]:
        file = self.folder / "notes"
        return file.read_text().splitlines() if file.exists() else []

    async def noted(self, line: str) -> None:
        await eventually(lambda: line in self.notes())

    def go(self) -> None:
        (self.folder / "go").touch()


async def eventually(reached: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110 (the other side is another process)
            await asyncio.sleep(0.02)


class Place:
    """An engine with its server, the app on it, and a queue `far` that pushes."""

    def __init__(self, engine: Engine, address: str, pace: float) -> None:
        self.engine, self.address, self._pace = engine, address, pace
        self.stack: Any = None

    async def set_up(self, url: str, **changes: Any) -> str:
        settings = {"heartbeat_interval_ms": 200, "heartbeat_timeout_ms": int(1500 * self._pace), **changes}
        push = Push(url=url, **settings)
        view = await self.engine.queues.put("far", delivery=push, retry=QUICK, limits=QueueConfig())
        assert view.settings.signing_secret is not None
        return view.settings.signing_secret

    async def serve(self) -> None:
        self.stack = open_server(self.engine, http=self.address, push=PushOptions(loopback=True))
        await self.stack.__aenter__()

    async def go_away(self) -> None:
        await self.stack.__aexit__(None, None, None)

    async def history(self, task_id: UUID) -> list[str]:
        return [str(entry.what) for entry in await self.engine.tasks.timeline(task_id)]


@pytest.fixture
async def place(database: str, pace: float) -> AsyncIterator[Place]:
    async with open_engine(database) as engine:
        place = Place(engine, f"127.0.0.1:{free_port()}", pace)
        await place.serve()
        app.connect_by(lambda: nullcontext(engine))
        async with app:
            yield place
        await place.go_away()


@pytest.fixture
async def service(place: Place, tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path, "")
    made._secret = await place.set_up(made.url)
    await made.start()
    yield made
    made.kill()


@asynccontextmanager
async def another(service: Service) -> AsyncIterator[Service]:
    """The same service in one more process, with a folder of its own."""
    folder = service.folder / "other"
    folder.mkdir()
    made = Service(folder, service._secret)
    await made.start()
    try:
        yield made
    finally:
        made.kill()


@asynccontextmanager
async def near_worker() -> AsyncIterator[None]:
    worker = app.worker(queues=["near"])
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await working


async def test_a_task_moves_to_a_push_queue_by_changing_its_queue_and_nothing_else(
    place: Place, service: Service
) -> None:
    async with near_worker():
        for queue in ("near", "far"):
            handle = await greet.options(queue=queue).submit("Ada", times=2)
            assert await handle.result(timeout=PATIENCE_S) == "Hello, Ada! Hello, Ada!"
            progress = await place.engine.progress(handle.id)
            assert progress is not None
            assert (progress.fraction, progress.message) == (0.5, "half way")
            (line,) = (await place.engine.parts.progress.log(handle.id)).lines
            assert (line.level, line.message) == ("INFO", "greeting Ada")

            failing = await refuse.options(queue=queue).submit()
            with pytest.raises(TaskFailed, match="there is no such thing") as failed:
                await failing.result(timeout=PATIENCE_S)
            assert "LookupError" in failed.value.remote_traceback
            assert (await place.engine.tasks.get(failing.id)).task.failures == 2

            composed = await chain(double.options(queue=queue).bind(3), double.options(queue=queue)).submit()
            assert await composed.result(timeout=PATIENCE_S) == 12


async def test_a_worker_that_is_killed_loses_nothing(place: Place, service: Service) -> None:
    handle = await resume.options(queue="far").submit()
    await service.noted("begun 1")
    service.kill()
    await service.start()

    assert await handle.result(timeout=PATIENCE_S) == 7  # what the first attempt left behind
    assert "zombie" in await place.history(handle.id)


async def test_a_worker_that_hangs_and_comes_back_after_its_attempt_was_given_away_stops(
    place: Place, service: Service
) -> None:
    handle = await wait.options(queue="far").submit()
    await service.noted("begun 1")
    service.send(signal.SIGSTOP)
    async with another(service) as other:
        await place.set_up(other.url)
        await other.noted("begun 2")
        service.send(signal.SIGCONT)
        await service.noted("stopped 1")
        other.go()
        assert await handle.result(timeout=PATIENCE_S) == 2
    assert service.notes() == ["begun 1", "stopped 1"]


async def test_cancel_reaches_the_handler_and_the_task_ends_as_cancelled(place: Place, service: Service) -> None:
    handle = await wait.options(queue="far").submit()
    await service.noted("begun 1")
    await place.engine.cancel(handle.id, "not needed any more")

    with pytest.raises(TaskFailed) as failed:
        await handle.result(timeout=PATIENCE_S)
    assert failed.value.state is State.CANCELLED
    assert service.notes() == ["begun 1", "stopped 1"]


async def test_a_service_that_is_told_to_stop_drains_and_what_came_meanwhile_waits_for_the_next(
    place: Place, service: Service
) -> None:
    first = await wait.options(queue="far").submit()
    await service.noted("begun 1")
    service.send(signal.SIGTERM)
    await eventually(lambda: not service._listens())
    second = await greet.options(queue="far").submit("Bob")
    service.go()

    assert await first.result(timeout=PATIENCE_S) == 1
    assert await service.ended() in (0, -signal.SIGTERM)
    await service.start()
    assert await second.result(timeout=PATIENCE_S) == "Hello, Bob!"


async def test_a_worker_that_cannot_reach_the_engine_for_a_while_tells_its_result_when_it_can(
    place: Place, service: Service
) -> None:
    await place.set_up(service.url, heartbeat_timeout_ms=60_000)
    handle = await wait.options(queue="far").submit()
    await service.noted("begun 1")
    await place.go_away()
    service.go()
    await service.noted("done 1")
    await place.serve()

    assert await handle.result(timeout=PATIENCE_S) == 1
    assert service.notes() == ["begun 1", "done 1"]


class Stutterer(ThreadingHTTPServer):
    """Between engine and workers: hands every push on twice, to one process or to two."""

    daemon_threads = True

    def __init__(self, *target_ports: int) -> None:
        self.target_ports = target_ports
        self.statuses: list[int] = []
        super().__init__(("127.0.0.1", 0), _Hop)


class _Hop(BaseHTTPRequestHandler):
    server: Stutterer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for port in self.server.target_ports:
            way = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            way.request("POST", self.path, body, dict(self.headers))
            self.server.statuses.append(way.getresponse().status)
            way.close()
        self.send_response(self.server.statuses[-1])
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def stuttering(*ports: int) -> Iterator[Stutterer]:
    made = Stutterer(*ports)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()


async def test_a_push_that_arrives_twice_is_run_once(place: Place, service: Service) -> None:
    with stuttering(service.port, service.port) as stutterer:
        await place.set_up(f"http://127.0.0.1:{stutterer.server_address[1]}/windlass")
        handle = await wait.options(queue="far").submit()
        await eventually(lambda: len(stutterer.statuses) == 2)
        service.go()

        assert await handle.result(timeout=PATIENCE_S) == 1
    assert stutterer.statuses == [202, 409]
    assert service.notes() == ["begun 1", "done 1"]


async def test_a_push_that_reaches_two_processes_of_a_service_is_run_by_one(place: Place, service: Service) -> None:
    """As behind `uvicorn --workers 2`: neither knows of the other, but the engine knows who began."""
    async with another(service) as other:
        with stuttering(service.port, other.port) as stutterer:
            await place.set_up(f"http://127.0.0.1:{stutterer.server_address[1]}/windlass")
            handle = await wait.options(queue="far").submit()
            await eventually(lambda: service.notes() or other.notes())
            one, idle = (service, other) if service.notes() else (other, service)
            await eventually(lambda: len(stutterer.statuses) == 2)
            idle.send(signal.SIGTERM)  # it would go on until its handler has ended, if it had one
            await idle.ended()
            one.go()

            assert await handle.result(timeout=PATIENCE_S) == 1
    assert stutterer.statuses == [202, 202]
    assert (one.notes(), idle.notes()) == (["begun 1", "done 1"], [])
    assert (await place.history(handle.id)).count("worker_started") == 1


# --------------------------------------------------------------------------------------------- a network that is gone


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """A program that carries everything to this port. Stopped, it is a network that is gone: what was sent is not
    answered, and nothing says so."""
    own = free_port()
    command = [sys.executable, str(ROOT / "tests/e2e/relay.py"), str(own), str(port)]
    program = subprocess.Popen(command)  # noqa: ASYNC220
    try:
        await eventually(lambda: _listens(own))
        yield f"http://127.0.0.1:{own}", program
    finally:
        program.kill()
        program.wait()


def _listens(port: int) -> bool:
    with socket.socket() as way:
        return way.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def cut_off(place: Place, folder: Path) -> AsyncIterator[tuple[Service, subprocess.Popen[bytes]]]:
    """A service with a network of its own to the engine."""
    async with relay(int(place.address.rsplit(":", 1)[1])) as (url, network):
        service = Service(folder, "", engine=url)
        service._secret = await place.set_up(service.url)
        await service.start()
        try:
            yield service, network
        finally:
            network.send_signal(signal.SIGCONT)
            service.kill()


async def test_a_worker_whose_network_comes_back_after_its_attempt_was_given_away_stops(
    place: Place, tmp_path: Path
) -> None:
    async with cut_off(place, tmp_path) as (service, network), another(service) as other:
        handle = await wait.options(queue="far").submit()
        await service.noted("begun 1")
        network.send_signal(signal.SIGSTOP)
        await place.set_up(other.url)
        await other.noted("begun 2")
        network.send_signal(signal.SIGCONT)
        await service.noted("stopped 1")
        other.go()

        assert await handle.result(timeout=PATIENCE_S) == 2
    seen = (await place.engine.tasks.get(handle.id)).task
    assert (seen.attempt, seen.losses, seen.failures) == (2, 1, 0)
    assert service.notes() == ["begun 1", "stopped 1"]


async def test_a_result_that_comes_after_its_attempt_was_given_away_changes_nothing(
    place: Place, tmp_path: Path
) -> None:
    async with cut_off(place, tmp_path) as (service, network), another(service) as other:
        handle = await wait.options(queue="far").submit()
        await service.noted("begun 1")
        network.send_signal(signal.SIGSTOP)
        service.go()
        await service.noted("done 1")
        await place.set_up(other.url)
        await other.noted("begun 2")
        network.send_signal(signal.SIGCONT)
        service.send(signal.SIGTERM)
        await service.ended()  # it has said all that it had to say
        other.go()

        assert await handle.result(timeout=PATIENCE_S) == 2
    assert (await place.history(handle.id)).count("reported") == 1
