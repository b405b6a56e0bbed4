"""What a program on its machine is to do, and the files that it makes for that."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from windlass.sdk.machine.http import Client, Reply
from windlass.sdk.machine.patience import Transient, persist
from windlass.sdk.machine.store import ObjectStore
from windlass.wire.decode import converted

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9_=+,@()'.-]([A-Za-z0-9_=+,@()' .-]{0,198}[A-Za-z0-9_=+,@()'.-])?")  # a part of any key
PAYLOAD_MAX_BYTES = 256 * 1024 * 1024
PAYLOAD_PATIENCE_S = 60.0
log = logging.getLogger("windlass.machine")


class ExportError(Exception):
    """The task cannot be done; the message is told to whoever asked for it."""


class Misconfigured(ExportError):
    """The environment is not that of a machine."""


def fetched(url: str) -> bytes:
    """A payload that is too long for a variable."""
    client = Client()

    def once() -> Reply:
        reply = client.request("GET", url, limit=PAYLOAD_MAX_BYTES)
        if reply.passing:
            raise Transient(reply.line, reply.retry_after_s)
        return reply

    try:
        reply = persist(once, until=time.monotonic() + PAYLOAD_PATIENCE_S, wait=time.sleep)
    except Transient as error:
        raise ExportError(f"Failed to fetch the payload: {error}") from None
    finally:
        client.close()
    if reply.status != 200 or reply.body is None:
        raise ExportError(f"Failed to fetch the payload: {reply.line}")
    return bytes(reply.body)


class Output:
    """The file that the program makes. `path` is empty at first, and gone at the end."""

    __slots__ = ("content_type", "name", "path")

    def __init__(self, path: Path, name: str, content_type: str) -> None:
        self.path = path
        self.name = name
        self.content_type = content_type


class Job(msgspec.Struct, kw_only=True):
    """One task, as the environment tells it. `options` are those of the request; `settings` is the environment."""

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
    callback_patience_s: float = 60.0
    settings: dict[str, str] = {}
    _outputs: list[Output] = []

    def __repr__(self) -> str:
        return f"Job({self.task_id!r})"  # all else may be secret

    def output(self, name: str, *, content_type: str = "application/octet-stream") -> Output:
        """The file that is uploaded when the program is done; `name` is the one that people download."""
        if not NAME.fullmatch(name) or name in {".", ".."}:
            raise ExportError(f"{name!r} is no name for a file")
        if self._outputs:
            raise ExportError("a task has one output")
        moment = time.time_ns() // 1_000_000
        path = Path(tempfile.gettempdir()) / f"{self.task_id}-{moment}-{name}"
        output = Output(path, name, content_type)
        self._outputs.append(output)  # first, so that the file goes whatever happens now
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return output

    def read_options(self, kind: type[T]) -> T:
        """The options as a msgspec struct; what is null counts as not said, what is unknown is ignored."""
        said = {name: value for name, value in self.options.items() if value is not None}
        try:
            return converted(said, kind)
        except msgspec.ValidationError as error:
            raise ExportError(f"EXPORT_OPTIONS: {error}") from None

    def payload(self) -> Any:
        """The payload of the task, for programs that take any task and not only exports; None if there is none."""
        told = self.settings.get("PAYLOAD", "").encode()
        url = self.settings.get("PAYLOAD_URL")
        try:
            return msgspec.json.decode(fetched(url) if url and not told else told or b"null")
        except msgspec.DecodeError as error:
            raise ExportError(f"the payload is no JSON: {error}") from None

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
