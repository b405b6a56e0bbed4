"""`windlass submit`: one task, and on request its result."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from windlass.cli.api import HERE, ApiOptions
from windlass.cli.follow import follow_task
from windlass.cli.output import Unusable, errors, print_json, say
from windlass.cli.task import TaskId, fail_with
from windlass.core.error import Invalid
from windlass.http.client import ApiClient
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
        The name of the handler.
    payload
        JSON text; `@FILE` reads a file, `-` reads standard input.
    queue
        The line that it waits in.
    priority
        From -100 to 100; like `nice`, a lower number runs first.
    delay
        How long until it may run, such as `90s` or `1h30m`.
    key
        Idempotency key: the same key again is the same task.
    max_attempts
        How often its handler may fail.
    timeout
        How long an attempt may take, such as `10m`.
    run
        The id of the run that it belongs to.
    wait
        Wait until it has ended; print its result, or end with code 1.
    wait_timeout
        Wait at most so long, such as `30s`.
    """
    asked = {
        "kind": kind, "payload": read_payload(payload), "queue": queue, "priority": priority,
        "delay_s": _seconds("--delay", delay), "idempotency_key": key, "max_attempts": max_attempts,
        "timeout_s": _seconds("--timeout", timeout), "run_id": run, **api.space,
    }  # fmt: skip
    limit_s = _seconds("--wait-timeout", wait_timeout)
    client = api.client()
    task = client.post("/tasks", {name: value for name, value in asked.items() if value is not None})
    if wait:
        if not api.json:
            errors.print(f"submitted {task['id']}", style="dim")
        wait_for(task, client, limit_s, api.json)
    elif api.json:
        print_json(task)
    else:
        say(task["id"])


def wait_task(task_id: TaskId, *, timeout: str | None = None, api: ApiOptions = HERE) -> None:
    """Wait until a task has ended; print its result, or end with code 1.

    Parameters
    ----------
    timeout
        Wait at most so long, such as `30s`.
    """
    client = api.client()
    wait_for(client.get(f"/tasks/{task_id}"), client, _seconds("--timeout", timeout), api.json)


def wait_for(task: dict[str, Any], client: ApiClient, limit_s: float | None, as_json: bool) -> None:
    """Prints the result, or the whole task as JSON. One that did not succeed ends the command with code 1."""
    ended = follow_task(client, task, limit_s)
    if as_json:
        print_json(ended)
    elif ended["state"] == "succeeded":
        print_json(ended["result"])
    if ended["state"] != "succeeded":
        raise fail_with(ended)


def read_payload(text: str) -> Any:
    """JSON from the command line, from a file, or from standard input."""
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
        raise Unusable(f"{where} is not JSON: {error}. In a shell, put it in single quotes") from None


def _seconds(flag: str, text: str | None) -> float | None:
    return None if text is None else seconds_of(flag, text)


def seconds_of(flag: str, text: str) -> float:
    """A duration as people type it; a bare number is seconds."""
    try:
        return seconds(flag, float(text) if text.replace(".", "", 1).isdigit() else text)
    except Invalid as error:
        raise Unusable(error.message) from None
