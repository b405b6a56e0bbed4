"""What a worker and a process of its pool say to each other: frames of a length and a message. No pickle."""

from __future__ import annotations

import struct
from typing import Any

import msgspec

from windlass.core.failure import Failure
from windlass.core.note import Amount
from windlass.core.task import Task

LENGTH = struct.Struct("!I")


class Run(msgspec.Struct, tag=True):
    """To the process: run this attempt. The function is found by its name; a script is known by its path."""

    module: str
    name: str
    kind: str
    script: str | None
    task: Task
    payload: bytes
    left_behind: bytes | None


class SavedNow(msgspec.Struct, tag=True):
    """To the process: its oldest checkpoint that was not answered yet has been written, or not."""

    error: str | None = None


class Said(msgspec.Struct, tag=True):
    """From the process: progress, a checkpoint, or a line of the log."""

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


ToProcess = Run | SavedNow
FromProcess = Said | Done | Failed | Stopped

_encode = msgspec.msgpack.Encoder().encode
decode_to: Any = msgspec.msgpack.Decoder(ToProcess).decode
decode_from: Any = msgspec.msgpack.Decoder(FromProcess).decode


def frame(message: ToProcess | FromProcess) -> bytes:
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
