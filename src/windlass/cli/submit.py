"""`windlass submit` and `windlass tasks wait`: submits a task, waits for its result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from windlass.api.client import ApiClient
from windlass.cli.api import HERE, ApiOptions
from windlass.cli.follow import follow_task
from windlass.cli.output import Unusable, errors, print_json, say
from windlass.cli.task import TaskId, fail_with
from windlass.errors import Invalid
from windlass.sdk.duration import seconds


def submit(
    kind: str,
    *,
    payload: Annotated[str, Parameter(name=("--payload", "-p"))] = "null",
    queue: Annotated[str, Parameter(name=("--queue", "-q"))] = "default",
    priority: int = 0,
    delay: str | None = None,
    key: str | None = None,
    max_attempts: int | None = None,
    timeout: str | None = None,
    run: str | None = None,
    wait: Annotated[bool, Parameter(name=("--wait", "-w"), show_default=False)] = False,
    wait_timeout: str | None = None,
    api: ApiOptions = HERE,
) -> None:
    """Submit a task: `windlass submit send --payload '{"to": "ada"}' --wait`.

    Parameters
    ----------
    kind
        Name of the handler.
    payload
        JSON text, `@FILE`, or `-` for standard input.
    queue
        Queue of the task.
    priority
        From -100 to 100; lower numbers run first, as with `nice`.
    delay
        Earliest start, from now, such as `90s` or `1h30m`.
    key
        Idempotency key: submitting the same key again returns the same task.
    max_attempts
        Maximum number of failed attempts. Default: that of the queue.
    timeout
        Maximum duration of an attempt, such as `10m`.
    run
        Id of the run that the task belongs to.
    wait
        Wait for the task to end and print its result. Exit code 1 if it does not succeed.
    wait_timeout
        Maximum time to wait, such as `30s`. Default: no limit.
    """
    fields = {
        "kind": kind, "payload": read_payload(payload), "queue": queue, "priority": priority,
        "delay_s": _seconds("--delay", delay), "idempotency_key": key, "max_attempts": max_attempts,
        "timeout_s": _seconds("--timeout", timeout), "run_id": run, **api.space,
    }  # fmt: skip
    limit_s = _seconds("--wait-timeout", wait_timeout)
    client = api.client()
    task = client.post("/tasks", {name: value for name, value in fields.items() if value is not None})
    if wait:
        if not api.json:
            errors.print(f"submitted {task['id']}", style="dim")
        wait_for(task, client, limit_s, api.json)
    elif api.json:
        print_json(task)
    else:
        say(task["id"])


def wait_task(task_id: TaskId, *, timeout: str | None = None, api: ApiOptions = HERE) -> None:
    """Wait for a task to end and print its result. Exit code 1 if it does not succeed.

    Parameters
    ----------
    timeout
        Maximum time to wait, such as `30s`. Default: no limit.
    """
    client = api.client()
    wait_for(client.get(f"/tasks/{task_id}"), client, _seconds("--timeout", timeout), api.json)


def wait_for(task: dict[str, Any], client: ApiClient, limit_s: float | None, as_json: bool) -> None:
    """Prints the result, or the whole task as JSON. Raises `Failed` if the task did not succeed."""
    ended = follow_task(client, task, limit_s)
    if as_json:
        print_json(ended)
    elif ended["state"] == "succeeded":
        print_json(ended["result"])
    if ended["state"] != "succeeded":
        raise fail_with(ended)


def read_payload(text: str) -> Any:
    """Reads JSON from the command line, a file or standard input."""
    where = "--payload"
    try:
        if text == "-":
            text, where = sys.stdin.read(), "standard input"
        elif text.startswith("@"):
            text, where = Path(text[1:]).read_text(encoding="utf-8"), text[1:]
        return msgspec.json.decode(text)
    except OSError as error:
        raise Unusable(f"--payload: {text[1:]} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unusable(f"{where} is not JSON: {error}. In a shell, quote it with single quotes") from None


def _seconds(flag: str, text: str | None) -> float | None:
    return None if text is None else seconds_of(flag, text)


def seconds_of(flag: str, text: str) -> float:
    """Reads a duration such as `90s`. A plain number is in seconds."""
    try:
        return seconds(flag, float(text) if text.replace(".", "", 1).isdigit() else text)
    except Invalid as error:
        raise Unusable(error.message) from None
