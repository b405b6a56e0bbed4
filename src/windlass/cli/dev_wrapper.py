"""Operators in `windlass dev`: a wrapper in its own process, and the file with which `windlass wrapper` in the same
folder finds the internal port and its certificates."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from windlass.cli.certs import dev_certificates
from windlass.cli.output import Unusable
from windlass.cli.wrapper_file import wrapper_file
from windlass.contracts.lease.worker.command import open_wrapper
from windlass.contracts.lease.worker.config import Config, read_config
from windlass.contracts.lease.worker.isolation import find_isolation
from windlass.contracts.lease.worker.operator import functions_of
from windlass.datasets.rules.dag import QUEUES_MADE
from windlass.errors import Invalid
from windlass.net.server.server import bind
from windlass.settings import Address, Settings

HOST = "127.0.0.1"


def with_internal_port(settings: Settings) -> Settings:
    """The settings with an address of the internal port: that of the last start if it is free, so that wrappers that
    still run find it again, else any."""
    if settings.internal is not None:
        return settings
    port = _last_port(wrapper_file(settings))
    try:
        bind(HOST, port).close()
    except Invalid:
        port = 0
    return replace(settings, internal=Address(HOST, port))


def _last_port(file: Path) -> int:
    """The port of the last start, or 0. If several are started at once, one of them gets it: it locks the file until
    its process ends."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return urlsplit(tomllib.loads(file.read_text(encoding="utf-8"))["server"]).port or 0
    except (OSError, KeyError, TypeError, ValueError):
        os.close(descriptor)
        return 0


def with_certificates(settings: Settings) -> Settings:
    """The settings with certificates of the internal port, if none are set. They are kept in the data folder."""
    if settings.internal_certificate is not None:
        return settings
    authority, server, _ = dev_certificates(settings.data_dir / "certs")
    return replace(
        settings, internal_certificate=server.certificate, internal_key=server.key, internal_ca=authority.certificate
    )


def write_wrapper_file(settings: Settings, server: str) -> None:
    """Write how a wrapper on this machine reaches the internal port. Not with certificates of the user: only the user
    knows which of them is for wrappers."""
    folder = settings.data_dir / "certs"
    if settings.internal_ca is None or settings.internal_ca.parent != folder:
        return
    authority, _, client = dev_certificates(folder)
    lines = {
        "server": server, "queues": sorted(QUEUES_MADE), "certificate": client.certificate, "key": client.key,
        "ca": authority.certificate, "state_dir": settings.data_dir / "wrapper",
    }  # fmt: skip
    text = "".join(f"{name} = {_toml(value)}\n" for name, value in lines.items())
    wrapper_file(settings).write_text(f"# Written by `windlass dev`, for `windlass wrapper`.\n{text}", encoding="utf-8")


def _toml(value: object) -> str:
    """JSON of texts and lists of texts is TOML as well."""
    return json.dumps(str(value.absolute()) if isinstance(value, Path) else value)


def find_operators(target: str) -> Path | str:
    """A TOML file with operators, or a Python module with functions. Raises Unusable if it cannot be used."""
    if target.endswith(".toml"):
        if not Path(target).is_file():
            raise Unusable(f"operators: there is no file {target}")
        return Path(target)
    module = target.removesuffix(".py").replace("/", ".")
    try:
        found = functions_of(module)
    except Invalid as error:
        raise Unusable(error.message, **error.details) from None
    if not found:
        raise Unusable(f"operators: {module} defines no functions")
    return module


def wrapper_config(settings: Settings, operators: Path | str) -> Config:
    if isinstance(operators, Path):
        return read_config(operators, {}, wrapper_file(settings))
    functions = {name: {"function": target} for name, target in functions_of(operators).items()}
    return read_config(None, {"operators": functions}, wrapper_file(settings))


@asynccontextmanager
async def dev_wrapper(config: Config) -> AsyncIterator[list[str]]:
    """Runs a wrapper in this process. Yields the names of its operators. When the block ends, it finishes its running
    tasks."""
    isolation = await asyncio.to_thread(find_isolation, config.secret_files, config.isolation)
    async with open_wrapper(config, isolation) as opened:
        lines = await opened.open_lines()
        running = asyncio.create_task(opened.wrapper.run(lines))
        try:
            yield sorted(config.operators)
        finally:
            opened.wrapper.stop()
            await running
            for line in lines:
                await line.consumer.close()
