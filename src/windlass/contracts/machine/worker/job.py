"""The job of a machine's program, and the output file that it writes."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from windlass.contracts.machine.worker.send import AGENT
from windlass.contracts.machine.worker.store import ObjectStore
from windlass.net.backoff import Transient
from windlass.net.decode import converted
from windlass.net.http import Client

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9_=+,@()'.-]([A-Za-z0-9_=+,@()' .-]{0,198}[A-Za-z0-9_=+,@()'.-])?")  # a part of any key
PAYLOAD_MAX_BYTES = 256 * 1024 * 1024
PAYLOAD_RETRY_S = 60.0
log = logging.getLogger("windlass.machine")


class ExportError(Exception):
    """The task fails. The server gets the message."""


class Misconfigured(ExportError):
    """A variable of the environment is missing or wrong."""


class Output(msgspec.Struct):
    """The file that the program writes. It is created empty, and removed at the end."""

    path: Path
    name: str
    content_type: str


class Job(msgspec.Struct, kw_only=True):
    """One task, read from the environment. `options` are those of the request; `settings` is the environment."""

    task_id: str
    pi: str
    callback_url: str
    store: ObjectStore
    options: dict[str, Any] = {}
    format: str = "mods"
    batch_id: str = "default"
    machine_id: str = "local"
    traceparent: str = ""
    attempt: int = 1
    upload_timeout_s: float = 120.0
    callback_timeout_s: float = 10.0
    callback_retry_s: float = 60.0
    settings: dict[str, str] = {}
    _outputs: list[Output] = []

    def __repr__(self) -> str:
        return f"Job({self.task_id!r})"  # all else may be secret

    def output(self, name: str, *, content_type: str = "application/octet-stream") -> Output:
        """Create the file that is uploaded when the program is done. Users download it as `name`."""
        if not NAME.fullmatch(name) or name in {".", ".."}:
            raise ExportError(f"{name!r} is not a valid file name")
        if self._outputs:
            raise ExportError("a task can have only one output")
        moment = time.time_ns() // 1_000_000
        path = Path(tempfile.gettempdir()) / f"{self.task_id}-{moment}-{name}"
        output = Output(path, name, content_type)
        self._outputs.append(output)  # before the file exists, so that it is always removed
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return output

    def read_options(self, kind: type[T]) -> T:
        """The options as a msgspec struct. A null counts as missing; unknown options are ignored."""
        options = {name: value for name, value in self.options.items() if value is not None}
        try:
            return converted(options, kind)
        except msgspec.ValidationError as error:
            raise ExportError(f"EXPORT_OPTIONS: {error}") from None

    def payload(self) -> Any:
        """The payload of the task, or None. For programs that run any task, not only exports."""
        inline = self.settings.get("PAYLOAD", "").encode()
        url = self.settings.get("PAYLOAD_URL")
        try:
            return msgspec.json.decode(_fetch(url) if url and not inline else inline or b"null")
        except msgspec.DecodeError as error:
            raise ExportError(f"the payload is not JSON: {error}") from None

    def made(self) -> Output:
        if not self._outputs:
            raise ExportError("the program made no output")
        return self._outputs[0]

    def remove_files(self) -> None:
        for output in self._outputs:
            try:
                output.path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s could not be removed: %s", output.path, error)


def _fetch(url: str) -> bytes:
    """Fetch a payload that is too long for an environment variable."""
    with closing(Client(agent=AGENT, proxies=True)) as client:
        try:
            reply = client.persist("GET", url, limit=PAYLOAD_MAX_BYTES, until=time.monotonic() + PAYLOAD_RETRY_S)
        except Transient as error:
            raise ExportError(f"Failed to fetch the payload: {error}") from None
    if reply.status != 200 or reply.body is None:
        raise ExportError(f"Failed to fetch the payload: {reply.line}")
    return reply.content
