"""The same functions as a program on a machine of its own: what they return is the file that it leaves."""

from __future__ import annotations

import json

from tests.contracts import any_wire

from windlass.sdk import machine


def export(job: machine.Job) -> None:
    made = getattr(any_wire, job.format)(**job.payload())
    job.output("result.json", content_type="application/json").path.write_text(json.dumps(made))


if __name__ == "__main__":
    machine.main(export)
