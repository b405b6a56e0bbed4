"""One task from the environment to the exit code: read, work, upload, clean up, call back.

The order matters. Files are removed before the callback, since the server may then stop the machine. An uploaded result
is a success whatever becomes of the callback. Every failure is reported, also that of a wrong environment.
"""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from windlass.contracts.machine.worker import environment
from windlass.contracts.machine.worker.callback import call_back, failure, success
from windlass.contracts.machine.worker.job import ExportError, Job
from windlass.contracts.machine.worker.stop import Stop, Stopped
from windlass.contracts.machine.worker.store import UploadFailed, upload
from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.text import clean, clean_middle, line_of, words_of

Metrics = Mapping[str, Any] | None
Export = Callable[[Job], Metrics | Awaitable[Metrics]]
METRICS_MAX_BYTES = 16 * 1024
log = logging.getLogger("windlass.machine")


def main(export: Export) -> NoReturn:
    """The entry point of a machine's program. `export` writes one output and may return metrics. Exits the process."""
    secrets = environment.secrets(os.environ)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(SecretFormatter(os.environ.get("FLY_MACHINE_ID") or "local", secrets))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    sys.exit(run(export))


def run(export: Export, environ: Mapping[str, str] | None = None) -> int:
    """The same without logging and exit: 0 is a success, 1 a failure."""
    environ = os.environ if environ is None else environ
    started, stop = time.monotonic(), Stop()
    with stop.signals():
        job: Job | None = None
        try:
            job = environment.read(environ)
            log.info("task %s: %s of %s", job.task_id, job.format, job.pi)
            with stop.interrupts():
                report = _work(export, job, started, stop)
        except BaseException as error:
            job, secrets = job or environment.minimal_job(environ), environment.secrets(environ)
            # An error that was not written for users is reported with its type, and logged with its traceback.
            for_users = isinstance(error, ExportError | UploadFailed | Stopped)
            message = scrub(clean(words_of(error)) if for_users else line_of(error), secrets)
            report = failure(job, message) if job else {}
            with suppress(Exception):  # a log handler is code of the program and may raise
                log.error("%s%s", message, "" if for_users else scrub(_trace(error), secrets))  # noqa: TRY400
        if job is None:
            return 1
        job.remove_files()
        call_back(job, report, stop.wait)
    return 0 if report["status"] == "success" else 1


def _trace(error: BaseException) -> str:
    """The traceback, or "" if it cannot be formatted: exceptions may be nested too deeply, or fail to print."""
    try:
        return clean_middle("\n" + "".join(traceback.format_exception(error)).rstrip())
    except Exception:
        return ""


def _work(export: Export, job: Job, started: float, stop: Stop) -> dict[str, Any]:
    made = export(job)
    metrics = _checked(_awaited(made) if isinstance(made, Awaitable) else made)
    output = job.made()
    key, size = f"exports/{job.task_id}/{output.name}", output.path.stat().st_size
    upload(job.store, key, output.path, output.content_type, timeout_s=job.upload_timeout_s, wait=stop.wait)
    counted = {
        "total_time_ms": round((time.monotonic() - started) * 1000),
        **metrics,
        "peak_memory_mb": peak_mb(),
    }
    log.info("task %s: %d bytes stored as %s, %s", job.task_id, size, key, counted)
    return success(job, key, output.name, size, counted)


def _checked(metrics: object) -> dict[str, Any]:
    """Check that the metrics are JSON and small, before anything is stored."""
    try:
        checked = {} if metrics is None else msgspec.json.decode(write_json(metrics))
    except UNWRITABLE as error:
        raise ExportError(f"the metrics of the program are not JSON: {words_of(error)}") from None
    if not isinstance(checked, dict) or len(msgspec.json.encode(checked)) > METRICS_MAX_BYTES:
        raise ExportError(f"metrics must be a JSON object of at most {METRICS_MAX_BYTES} bytes, or None")
    return checked


def _awaited(made: Awaitable[Metrics]) -> Metrics:
    import asyncio  # slow to import, and most programs do not need it

    async def awaited() -> Metrics:
        return await made

    return asyncio.run(awaited())


def peak_mb() -> int:
    """Peak resident memory in MB, rounded up.

    `getrusage` includes the memory of the parent at the fork, so on Linux the value comes from /proc.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = int(found[1]) * 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return -(-peak // 1_000_000)


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Mask the secrets. The longest come first, since one may contain another."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


class SecretFormatter(logging.Formatter):
    """Masks secrets and control characters, so that foreign text can neither forge log lines nor control a terminal."""

    def __init__(self, name: str, secrets: list[str]) -> None:
        super().__init__(f"%(asctime)s [{name}] %(levelname)s %(message)s")
        self._secrets = secrets

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in record.message)
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record), self._secrets)
