"""What the conformance cases ask of a program, with the frame of the SDK."""

from __future__ import annotations

import time

import msgspec

from windlass.sdk import machine


class Options(msgspec.Struct):
    bytes: int = 100
    work_ms: int = 0
    fail: str = ""


def export(job: machine.Job) -> None:
    options = job.read_options(Options)
    output = job.output(f"{job.pi}.bin", content_type="application/octet-stream")
    with output.path.open("wb") as file:
        time.sleep(options.work_ms / 1000)
        if options.fail:
            raise machine.ExportError(options.fail)
        left = options.bytes
        while left > 0:
            left -= file.write(b"x" * min(left, 65536))


if __name__ == "__main__":
    machine.main(export)
