"""One task from the environment to the exit code: read, work, upload, clean up, call back.

The order matters. Files are gone before the callback, since who hears it may take the machine away. What was uploaded
is a success whatever becomes of the callback. Every failure is told, that of a wrong environment too.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from windlass.core.json_text import UNWRITABLE, write_json
from windlass.core.text import clean, clean_middle, line_of, words_of
from windlass.sdk.machine import environment
from windlass.sdk.machine.callback import call_back, failure, success
from windlass.sdk.machine.job import ExportError, Job
from windlass.sdk.machine.memory import peak_mb
from windlass.sdk.machine.secret import Discreet, scrub
from windlass.sdk.machine.stop import Stop, Stopped
from windlass.sdk.machine.store import UploadFailed, upload

Metrics = Mapping[str, Any] | None
Export = Callable[[Job], Metrics | Awaitable[Metrics]]
METRICS_MAX_BYTES = 16 * 1024
log = logging.getLogger("windlass.machine")


def main(export: Export) -> NoReturn:
    """What a program on its machine calls: `export` makes one output and returns metrics, if it has any. Exits."""
    secrets = environment.secrets(os.environ)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(Discreet(os.environ.get("FLY_MACHINE_ID") or "local", secrets))
    logging.basicConfig(level=logging.INFO, handlers=[lines])
    sys.exit(run(export))


def run(export: Export, environ: Mapping[str, str] | None = None) -> int:
    """The same without logging and exit: 0 is a success, 1 a failure."""
    environ = os.environ if environ is None else environ
    started, stop = time.monotonic(), Stop()
    with stop.heard():
        job: Job | None = None
        try:
            job = environment.read(environ)
            log.info("task %s: %s of %s", job.task_id, job.format, job.pi)
            with stop.interrupts():
                report = _work(export, job, started, stop)
        except BaseException as error:
            job = job or environment.who_asked(environ)
            told = scrub(_said(error), environment.secrets(environ))
            report = failure(job, told) if job else {}
            trace = "" if isinstance(error, ExportError | UploadFailed | Stopped) else _trace(error)
            with suppress(Exception):  # what logs is code of the program, too
                log.error("%s%s", told, scrub(trace, environment.secrets(environ)))  # noqa: TRY400
        if job is None:
            return 1
        job.remove_files()
        call_back(job, report, stop.wait)
    return 0 if report["status"] == "success" else 1


def _trace(error: BaseException) -> str:
    """Exceptions may be nested more deeply than can be written, or not want to be looked at."""
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
    """Metrics that can be told; before anything is stored."""
    try:
        told = {} if metrics is None else msgspec.json.decode(write_json(metrics))
    except UNWRITABLE as error:
        raise ExportError(f"the metrics of the program are no JSON: {words_of(error)}") from None
    if not isinstance(told, dict) or len(msgspec.json.encode(told)) > METRICS_MAX_BYTES:
        raise ExportError(f"a program returns metrics, at most {METRICS_MAX_BYTES} bytes of them, or nothing")
    return told


def _awaited(made: Awaitable[Metrics]) -> Metrics:
    import asyncio  # which most programs do not need

    async def awaited() -> Metrics:
        return await made

    return asyncio.run(awaited())


def _said(error: BaseException) -> str:
    """What is told to whoever asked. The message alone, where somebody wrote it for them."""
    if isinstance(error, ExportError | UploadFailed | Stopped):
        return clean(words_of(error))
    return line_of(error)
