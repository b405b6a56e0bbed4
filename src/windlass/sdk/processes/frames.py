"""Messages between a worker and a process of its pool: frames of a length and a msgpack message. No pickle."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from windlass.core.failure import Failure
from windlass.core.progress import Amount
from windlass.core.task import Task

LENGTH = struct.Struct("!I")


class Run(msgspec.Struct, tag=True):
    """To the process: run this attempt of the function with this name. A script is found by its path."""

    module: str
    name: str
    kind: str
    script: str | None
    task: Task
    payload: bytes
    checkpoint: bytes | None


class CheckpointAnswer(msgspec.Struct, tag=True):
    """To the process: the oldest unanswered checkpoint has been written, or failed with this error."""

    error: str | None = None


class ProgressMessage(msgspec.Struct, tag=True):
    """From the process: progress, a checkpoint, or a log line."""

    progress: Amount | None = None
    checkpoint: bytes | None = None
    level: str | None = None
    message: str = ""


class Done(msgspec.Struct, tag=True):
    """From the process: the handler returned this."""

    result: bytes


class Failed(msgspec.Struct, tag=True):
    """From the process: the handler raised."""

    failure: Failure


class Stopped(msgspec.Struct, tag=True):
    """From the process: the handler ended itself as cancelled."""

    message: str


ToProcess = Run | CheckpointAnswer
FromProcess = ProgressMessage | Done | Failed | Stopped

_encode = msgspec.msgpack.Encoder().encode
decode_to: Any = msgspec.msgpack.Decoder(ToProcess).decode
decode_from: Any = msgspec.msgpack.Decoder(FromProcess).decode


def frame(message: ToProcess | FromProcess) -> bytes:
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
