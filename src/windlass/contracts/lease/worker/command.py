"""`windlass wrapper`: the command line of the wrapper. Needs only the packages of a worker."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from windlass.contracts.lease.wakeups.carriers.drivers import make_consumer
from windlass.contracts.lease.wakeups.carriers.internal import fetch_route
from windlass.contracts.lease.wakeups.carriers.options import CarrierOptions
from windlass.contracts.lease.wakeups.carriers.port import Call
from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.config import Config, read_config
from windlass.contracts.lease.worker.control_group import Groups, open_groups
from windlass.contracts.lease.worker.dispatcher import Dispatcher, TlsFiles, tls_context
from windlass.contracts.lease.worker.identity import Identity
from windlass.contracts.lease.worker.isolation import Isolation, find_isolation
from windlass.contracts.lease.worker.operator import functions_of
from windlass.contracts.lease.worker.retry import until_answered
from windlass.contracts.lease.worker.wrapper import Line, Wrapper
from windlass.errors import Invalid, WindlassError

log = logging.getLogger("windlass.wrapper")

USAGE, INTERRUPTED = 2, 130
CALLS_AT_ONCE = 8


def main(arguments: Sequence[str] | None = None, defaults: Path | None = None) -> None:
    """Ends with code 0 when drained, 2 for wrong use, 130 when stopped at once. `defaults` is a TOML file for settings
    that neither the file nor a flag sets, if it exists."""
    flags = parser().parse_args(arguments)
    logging.basicConfig(level=flags.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = read_config(flags.config, settings_of(flags), defaults)
        tls_context(config.certificate, config.key, config.ca)  # report unusable files first
        isolation = find_isolation(config.secret_files, config.isolation)
        code = 0 if flags.check else asyncio.run(run(config, isolation))
    except WindlassError as error:
        sys.stderr.write(f"error {error}\n")
        sys.exit(USAGE)
    if flags.check:
        write_line(ready="checked", operators=sorted(config.operators), **isolation_info(isolation))
    elif code:
        os._exit(code)  # a thread that cannot be interrupted would keep the interpreter from ending


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="windlass wrapper",
        description="Receive wake-ups, claim tasks over mTLS, run operators, report. Ctrl-C or SIGTERM drains it, a "
        "second one stops it at once.",
    )
    made.add_argument("config", nargs="?", type=Path, help="TOML file with any of these settings, and [operators.NAME]")
    made.add_argument("--server", help="where /internal listens, as https://HOST:PORT")
    made.add_argument("-q", "--queue", dest="queues", action="append", help="take wake-ups of this queue (repeatable)")
    made.add_argument("--namespace", help="the namespace of the queues; default: default")
    made.add_argument("--certificate", help="PEM file with the client certificate")
    made.add_argument("--key", help="PEM file with its key")
    made.add_argument("--ca", help="PEM file with the CA of the server's certificate")
    made.add_argument(
        "--operators", metavar="MODULE",
        help="run each operator with the function of its name in this Python module, such as shop.operators",
    )  # fmt: skip
    made.add_argument(
        "--function", action="append", metavar="NAME=MODULE:FUNCTION", default=[],
        help="run tasks of this operator with a Python function; NAME may be * (repeatable)",
    )  # fmt: skip
    made.add_argument(
        "--command", action="append", metavar="NAME=COMMAND", default=[],
        help="run them with a program that reads the task from stdin and answers on stdout (repeatable)",
    )  # fmt: skip
    made.add_argument("--untrusted", action="store_true", help="isolate the operators named on this command line")
    made.add_argument(
        "--read", action="append", metavar="PATH", default=[],
        help="a path that they may read besides system programs and Python (repeatable)",
    )  # fmt: skip
    made.add_argument("-c", "--concurrency", type=int, help="number of tasks that run side by side; default: 4")
    made.add_argument("--name", help="name of this wrapper in timelines; default: the host's name")
    made.add_argument("--state-dir", help="folder that keeps its id across restarts; default: .windlass-wrapper")
    made.add_argument("--isolation", choices=["auto", "namespaces", "landlock"], help="default: the first that works")
    for name in CarrierOptions.__struct_fields__:
        made.add_argument(f"--{name.replace('_', '-')}")
    made.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    made.add_argument(
        "--check", action="store_true", help="print the operators and how they would be isolated, and exit"
    )
    return made


NOT_SETTINGS = {"config", "operators", "function", "command", "untrusted", "read", "log_level", "check"}


def settings_of(flags: argparse.Namespace) -> dict[str, Any]:
    """The flags in the form of the file."""
    read = [str(Path(path).resolve()) for path in flags.read]
    common: dict[str, Any] = {"trusted": not flags.untrusted, "read": read}
    targets = functions_of(flags.operators) if flags.operators else {}
    targets |= dict(map(_named, flags.function))
    operators = {name: {**common, "function": target} for name, target in targets.items()}
    operators |= {name: {**common, "command": shlex.split(line)} for name, line in map(_named, flags.command)}
    plain = {name: value for name, value in vars(flags).items() if name not in NOT_SETTINGS}
    return {**plain, "operators": operators}


def _named(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise Invalid(f"{text!r} must be like NAME=…", field="operators")
    return name, value


async def run(config: Config, isolation: Isolation) -> int:
    async with open_wrapper(config, isolation) as opened:
        stop = Stop(opened.wrapper)
        lines = await _unless(stop, opened.open_lines())
        if lines is not None:
            write_line(
                ready=opened.identity.worker_id, queues=config.queues, **isolation_info(isolation), memory=opened.memory
            )
            await opened.wrapper.run(lines)
            for line in lines:
                await line.consumer.close()
        return INTERRUPTED if stop.interrupted else 0


class OpenWrapper:
    """A wrapper that is connected, and what it needs to run. `memory` says what bounds the memory of all processes of
    an untrusted program."""

    def __init__(self, config: Config, isolation: Isolation) -> None:
        self._config = config
        self.identity = Identity(config.state_dir, config.name)
        calls = CALLS_AT_ONCE + len(config.queues) + config.concurrency
        files = config.certificate, config.key, config.ca
        self._dispatcher = Dispatcher(config.server, tls_context(*files), threads=calls, tls_files=TlsFiles(*files))
        groups = open_groups()
        self.memory = "control group" if isinstance(groups, Groups) else f"watched: {groups}"
        self._programs = Programs(isolation, groups if isinstance(groups, Groups) else None)
        self.wrapper = Wrapper(
            self._dispatcher, config.operators, self._programs, worker_id=self.identity.worker_id,
            concurrency=config.concurrency, environment=os.environ,
        )  # fmt: skip

    def open_lines(self) -> asyncio.Future[list[Line]]:
        """The queues of the wrapper. Raises as `open_line` does."""
        return asyncio.gather(*(open_line(self._config, queue, self._dispatcher.call) for queue in self._config.queues))

    def close(self) -> None:
        self._programs.close()
        self._dispatcher.close()
        self.identity.close()


@asynccontextmanager
async def open_wrapper(config: Config, isolation: Isolation) -> AsyncIterator[OpenWrapper]:
    opened = OpenWrapper(config, isolation)
    try:
        yield opened
    finally:
        opened.close()


async def open_line(config: Config, queue: str, call: Call) -> Line:
    """Raises NotFound for a queue that sends no wake-ups, and Invalid if its carrier cannot be reached from here."""
    route = await until_answered(f"the route of {queue}", lambda: fetch_route(call, queue, config.namespace))
    consumer = make_consumer(route, call, config)
    return Line(queue, consumer, namespace=config.namespace, trusted=route.trusted, secrets=route.secrets)


class Stop:
    """The signals that stop a wrapper: the first drains it, a second one interrupts its running tasks."""

    def __init__(self, wrapper: Wrapper) -> None:
        self._wrapper, self.requested, self.interrupted = wrapper, asyncio.Event(), False
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        active = self._wrapper.active_count
        if self.requested.is_set():
            self.interrupted = active > 0
            self._wrapper.stop_now()
            return
        self.requested.set()
        log.info("stopping: finishing %s running tasks; signal again to stop at once", active)
        self._wrapper.stop()


async def _unless(stop: Stop, opening: asyncio.Future[Any]) -> Any:
    """The result, or None if a signal came first: the dispatcher may not answer for a long time."""
    stopped = asyncio.ensure_future(stop.requested.wait())
    await asyncio.wait({stopped, opening}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled():
        opening.exception()  # retrieved, so that asyncio does not log it
    return None


def isolation_info(isolation: Isolation) -> dict[str, Any]:
    """How untrusted operators are isolated, or why they are refused."""
    return {"isolation": isolation.way, "not": list(isolation.reasons)}


def write_line(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
