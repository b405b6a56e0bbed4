"""Makes the environment variables of a machine. `worker.environment` lists those that our worker reads; a machine also
gets TASK_KIND and RUN_TIMEOUT_MS.

`UPLOAD_URL` ends with a slash before its query; the name of the file goes between the two. The URLs contain a signature
that is valid for this attempt only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from windlass.contracts.machine.delivery import Machine
from windlass.contracts.machine.launchers.options import MachineOptions
from windlass.contracts.machine.launchers.port import LaunchRefused, Order
from windlass.contracts.machine.rules import export_name, machine_name
from windlass.contracts.machine.server.forms import subject_of
from windlass.contracts.machine.wire.signature import sign
from windlass.core.task import Task
from windlass.engine.read.tasks import TaskView

VALUE_MAX_BYTES = 100 * 1024  # Linux allows 128 KiB per variable
PAYLOAD_MAX_BYTES = 32 * 1024
SECRET_LEAST = 6  # masking shorter values would damage ordinary text
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


def make_order(
    view: TaskView, machine: Machine, options: MachineOptions, base_url: str, key: bytes, installation: str
) -> Order:
    """The machine for the current attempt of a task. It calls back to `base_url`, signed with `key`. Raises
    LaunchRefused for a variable that no machine can get."""
    task = view.task
    name = export_name(task.id, task.kind)
    signature = sign(key, name, task.attempt)
    export = subject_of(view.payload)
    base = base_url.rstrip("/")
    env = {
        "TASK_ID": name,
        "PI": export["pi"],
        "EXPORT_FORMAT": task.kind,
        "EXPORT_OPTIONS": msgspec.json.encode(export["options"]).decode(),
        "BATCH_ID": export["batch_id"],
        "CALLBACK_URL": f"{base}/callback/{name}?sig={signature}",
        "UPLOAD_URL": f"{base}/upload/{name}/?sig={signature}",
        "TASK_ATTEMPT": str(task.attempt),
        "TASK_KIND": task.kind,
        "RUN_TIMEOUT_MS": str(machine.run_timeout_ms),
        "UPLOAD_TIMEOUT_MS": str(machine.upload_timeout_ms),
        "CALLBACK_TIMEOUT_MS": str(machine.callback_timeout_ms),
    }
    if len(view.payload) <= PAYLOAD_MAX_BYTES:
        env["PAYLOAD"] = view.payload.decode()
    else:
        env["PAYLOAD_URL"] = f"{base}/payload/{name}?sig={signature}"
        env["EXPORT_OPTIONS"] = "{}" if len(env["EXPORT_OPTIONS"]) > PAYLOAD_MAX_BYTES else env["EXPORT_OPTIONS"]
    if task.trace is not None:
        env["TRACEPARENT"] = task.trace
    missing = [wanted for wanted in machine.secrets if wanted not in options.variables]
    if missing:
        raise LaunchRefused(f"the queue lists {missing[0]} as a secret, but the server has no such variable")
    secrets = {wanted: options.variables[wanted] for wanted in machine.secrets}
    whole = {**options.common_env, **machine.env, **secrets, **options.storage, **env}
    for variable, value in whole.items():
        if "\x00" in value or len(value.encode()) > VALUE_MAX_BYTES:
            raise LaunchRefused(f"environment variable {variable} is longer than 100 KiB or contains a NUL byte")
    return Order(
        name=machine_name(task.id, task.attempt), env=whole, installation=installation,
        secret_values=secrets_of(task, machine, options, [key]), command=tuple(machine.command or ()),
        image=machine.image, region=machine.region, cpus=machine.cpus, memory_mb=machine.memory_mb,
        run_s=machine.run_timeout_ms / 1000, grace_s=machine.cancel_grace_period_ms / 1000,
    )  # fmt: skip


def secrets_of(task: Task, machine: Machine | None, options: MachineOptions, keys: Sequence[bytes]) -> frozenset[str]:
    """The values to mask in the output of a task's machine: signatures, the secrets of the queue, and variables whose
    name contains a word such as KEY, as those of the store do."""
    signatures = {sign(key, export_name(task.id, task.kind), task.attempt) for key in keys}
    machine = machine or Machine(launcher="")
    variables = {**options.storage, **machine.env}
    by_name = {value for name, value in variables.items() if any(word in name.upper() for word in SECRET_WORDS)}
    of_queue = {options.variables.get(name, "") for name in machine.secrets}
    return frozenset(value for value in signatures | by_name | of_queue if len(value) >= SECRET_LEAST)


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets by `***`, the longest first, since one may contain another."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
