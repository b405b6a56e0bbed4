"""The environment of a machine: what it is told, in the names of the document and in a few of ours.

    TASK_ID PI EXPORT_FORMAT EXPORT_OPTIONS BATCH_ID CALLBACK_URL     as documented
    R2_ACCOUNT_ID R2_ACCESS_KEY_ID R2_SECRET_ACCESS_KEY R2_BUCKET     where objects are kept in S3 or R2
    R2_ENDPOINT R2_REGION R2_PREFIX R2_SESSION_TOKEN                  where that is not R2's own
    UPLOAD_URL            PUT {UPLOAD_URL}FILE?…: the same through the server, for whoever has no such credentials
    PAYLOAD PAYLOAD_URL   the task's payload as JSON; where it is long, GET it
    TASK_ATTEMPT TASK_KIND TRACEPARENT                                which attempt of what, and whose trace
    RUN_TIMEOUT_MS UPLOAD_TIMEOUT_MS CALLBACK_TIMEOUT_MS              how long each may take

`UPLOAD_URL` ends with a slash before its query: the file's name goes between the two. Signatures are part of the URLs:
who has them may speak for this attempt, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from windlass.contracts.machine.form import subject_of
from windlass.core.delivery import Machine
from windlass.core.machine import export_name, machine_name
from windlass.core.task import Task
from windlass.engine.launcher import LaunchRefused, Order
from windlass.engine.view import TaskView
from windlass.wire.machine import sign

VALUE_MAX_BYTES = 100 * 1024  # Linux takes 128 KiB a variable
PAYLOAD_MAX_BYTES = 32 * 1024
SECRET_LEAST = 6
SECRET_NAMES = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What a server hands on to all machines: where they call back, where they upload, and whatever else they need.
    `variables` are this server's own, of which a queue may name some as secrets."""

    base_url: str
    storage: Mapping[str, str] = {}
    handed_on: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}


def make_order(view: TaskView, machine: Machine, around: Surroundings, key: bytes, installation: str) -> Order:
    """The machine for the current attempt of a task. Raises LaunchRefused for what cannot be told to one."""
    task = view.task
    name = export_name(task.id, task.kind)
    signature = sign(key, name, task.attempt)
    asked = subject_of(view.payload)
    base = around.base_url.rstrip("/")
    env = {
        "TASK_ID": name,
        "PI": asked["pi"],
        "EXPORT_FORMAT": task.kind,
        "EXPORT_OPTIONS": msgspec.json.encode(asked["options"]).decode(),
        "BATCH_ID": asked["batch_id"],
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
    missing = [wanted for wanted in machine.secrets if wanted not in around.variables]
    if missing:
        raise LaunchRefused(f"the server has no variable {missing[0]}, which the queue wants handed on")
    secrets = {wanted: around.variables[wanted] for wanted in machine.secrets}
    whole = {**around.handed_on, **machine.env, **secrets, **around.storage, **env}
    _check(whole)
    return Order(
        name=machine_name(task.id, task.attempt), env=whole, installation=installation,
        secret_values=secrets_of(task, machine, around, [key]), command=tuple(machine.command or ()),
        image=machine.image, region=machine.region, cpus=machine.cpus, memory_mb=machine.memory_mb,
        run_s=machine.run_timeout_ms / 1000, grace_s=machine.cancel_grace_period_ms / 1000,
    )  # fmt: skip


def _check(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if "\x00" in value or len(value.encode()) > VALUE_MAX_BYTES:
            raise LaunchRefused(f"{name} cannot be told to a machine: it is too long, or has a NUL in it")


def secrets_of(task: Task, machine: Machine | None, around: Surroundings, keys: Sequence[bytes]) -> frozenset[str]:
    """What the machine of a task is told and nobody is to read: signatures, keys of the store, secrets of the queue,
    and what is called like one among its variables."""
    signed = {sign(key, export_name(task.id, task.kind), task.attempt) for key in keys}
    variables = {**around.storage, **({} if machine is None else machine.env)}
    called = {value for name, value in variables.items() if any(word in name.upper() for word in SECRET_NAMES)}
    named = {around.variables.get(name, "") for name in (machine.secrets if machine is not None else ())}
    return frozenset(value for value in signed | called | named if value)


def scrubbed(text: str, order: Order) -> str:
    """Without anything that nobody is to read: what a vendor answers may repeat what it was sent."""
    return without(text, order.secret_values)


def without(text: str, secrets: Iterable[str]) -> str:
    """The longest first: one may contain another. Short ones would be found everywhere."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***") if len(secret) >= SECRET_LEAST else text
    return text
