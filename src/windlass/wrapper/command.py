"""`windlass wrapper`: the command line of the wrapper, with nothing but the standard library and what a worker has."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windlass.core.error import Invalid, WindlassError
from windlass.queues.option import CarrierOptions
from windlass.wrapper.carrier import open_line
from windlass.wrapper.child import Programs
from windlass.wrapper.config import Config, read_config
from windlass.wrapper.dispatcher import Dispatcher, Papers, tls_context
from windlass.wrapper.group import Groups, open_groups
from windlass.wrapper.identity import Identity
from windlass.wrapper.isolation import Isolation, find_isolation
from windlass.wrapper.wrapper import Wrapper

log = logging.getLogger("windlass.wrapper")

USAGE, INTERRUPTED = 2, 130
CALLS_AT_ONCE = 8


def main(arguments: Sequence[str] | None = None) -> None:
    """Ends with code 0 when it was drained, 2 for wrong use, 130 when it was told to stop at once."""
    given = parser().parse_args(arguments)
    logging.basicConfig(level=given.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = read_config(given.config, flags_of(given))
        tls_context(config.certificate, config.key, config.ca)  # files that cannot be used are told first
        isolation = find_isolation(config.secret_files, config.isolation)
        code = 0 if given.check else asyncio.run(run(config, isolation))
    except WindlassError as error:
        sys.stderr.write(f"error {error}\n")
        sys.exit(USAGE)
    if given.check:
        say(ready="checked", operators=sorted(config.operators), **told(isolation))
    elif code:
        os._exit(code)  # a thread that nothing can interrupt would keep the interpreter from ending


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="windlass wrapper",
        description="Take wake-ups, claim over mTLS, run operators, report. Ctrl-C or SIGTERM drains it, a second one "
        "stops it at once.",
    )
    made.add_argument("config", nargs="?", type=Path, help="TOML file with any of these settings, and [operators.NAME]")
    made.add_argument("--server", help="where /internal listens, as https://HOST:PORT")
    made.add_argument("-q", "--queue", dest="queues", action="append", help="take wake-ups of this queue (repeatable)")
    made.add_argument("--namespace", help="the namespace of the queues; default: default")
    made.add_argument("--certificate", help="PEM file with the client certificate")
    made.add_argument("--key", help="PEM file with its key")
    made.add_argument("--ca", help="PEM file with the certificate of the CA that the server's is from")
    made.add_argument(
        "--function", action="append", metavar="NAME=MODULE:FUNCTION", default=[],
        help="run tasks of this operator by a Python function; NAME may be * (repeatable)",
    )  # fmt: skip
    made.add_argument(
        "--command", action="append", metavar="NAME=COMMAND", default=[],
        help="run them by a program, which gets the task on stdin and answers on stdout (repeatable)",
    )  # fmt: skip
    made.add_argument("--untrusted", action="store_true", help="isolate the operators named on this command line")
    made.add_argument(
        "--read", action="append", metavar="PATH", default=[],
        help="what those may read besides system programs and Python (repeatable)",
    )  # fmt: skip
    made.add_argument("-c", "--concurrency", type=int, help="how many tasks run side by side; default: 4")
    made.add_argument("--name", help="how this wrapper is called in timelines; default: the host's name")
    made.add_argument("--state-dir", help="where it keeps its id across restarts; default: .windlass-wrapper")
    made.add_argument("--isolation", choices=["auto", "namespaces", "landlock"], help="default: the first that works")
    for name in CarrierOptions.__struct_fields__:
        made.add_argument(f"--{name.replace('_', '-')}")
    made.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    made.add_argument("--check", action="store_true", help="say what would be run, and how it would be isolated")
    return made


NOT_SETTINGS = {"config", "function", "command", "untrusted", "read", "log_level", "check"}


def flags_of(given: argparse.Namespace) -> dict[str, Any]:
    """As they would stand in the file."""
    common: dict[str, Any] = {"trusted": not given.untrusted, "read": [str(Path(one).resolve()) for one in given.read]}
    operators = {name: {**common, "function": target} for name, target in map(_named, given.function)}
    operators |= {name: {**common, "command": shlex.split(line)} for name, line in map(_named, given.command)}
    plain = {name: value for name, value in vars(given).items() if name not in NOT_SETTINGS}
    return {**plain, "operators": operators}


def _named(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise Invalid(f"{text!r} is not like NAME=…", field="operators")
    return name, value


async def run(config: Config, isolation: Isolation) -> int:
    identity = Identity(config.state_dir, config.name)
    calls = CALLS_AT_ONCE + len(config.queues) + config.concurrency
    files = config.certificate, config.key, config.ca
    papers = Papers(*files)
    dispatcher = Dispatcher(config.server, tls_context(*files), threads=calls, papers=papers)
    groups = open_groups()
    programs = Programs(isolation, groups if isinstance(groups, Groups) else None)
    wrapper = Wrapper(
        dispatcher, config.operators, programs, worker_id=identity.worker_id, concurrency=config.concurrency,
        environment=os.environ,
    )  # fmt: skip
    code = 0
    try:
        stop = on_signals(wrapper)
        lines = await _unless(
            stop, asyncio.gather(*(open_line(config, queue, dispatcher.call) for queue in config.queues))
        )
        if lines is not None:
            say(ready=identity.worker_id, queues=config.queues, **told(isolation), memory=memory_told(groups))
            await wrapper.run(lines)
            for line in lines:
                await line.consumer.close()
        code = INTERRUPTED if stop.hurried else 0
    finally:
        programs.close()
        dispatcher.close()
        identity.close()
    return code


class Stop:
    """How often it was told to stop."""

    def __init__(self) -> None:
        self.told, self.hurried = asyncio.Event(), False


def on_signals(wrapper: Wrapper) -> Stop:
    stop = Stop()

    def received() -> None:
        if stop.told.is_set():
            stop.hurried = wrapper.active_count > 0
            wrapper.stop_now()
            return
        stop.told.set()
        log.info("stopping: finishing %s that run; once more: at once", wrapper.active_count)
        wrapper.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, received)
    return stop


async def _unless(stop: Stop, opening: asyncio.Future[Any]) -> Any:
    """Its result, or None if it was told to stop first: the dispatcher may be away for long."""
    told = asyncio.ensure_future(stop.told.wait())
    await asyncio.wait({told, opening}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if opening.done():
        return opening.result()
    opening.cancel()
    await asyncio.wait({opening})
    if not opening.cancelled():
        opening.exception()  # whatever it was, nobody waits for it
    return None


def told(isolation: Isolation) -> dict[str, Any]:
    """How untrusted operators would be kept apart, or why they would be refused."""
    return {"isolation": isolation.way, "not": list(isolation.reasons)}


def memory_told(groups: Groups | str) -> str:
    """Who bounds the memory of an untrusted program with all of its processes."""
    return "control group" if isinstance(groups, Groups) else f"watched: {groups}"


def say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
