"""The cases of the machine contract. Numbers are part of what people quote: new ones are added at the end.

`subject` has what a program must do in each case.
"""

from __future__ import annotations

import signal
from itertools import pairwise

from windlass.contracts.machine.conformance.trial import BATCH, KIT, SECRETS, SIGNATURE, TASK, Trial
from windlass.testing.conformance.kit import Broken, expect
from windlass.testing.conformance.listener import Reply

required, hardening = KIT.required, KIT.hardening

UNAVAILABLE, FORBIDDEN, UNKNOWN = (
    Reply(503, {"error": "away"}),
    Reply(403, b"<Error/>"),
    Reply(404, {"error": "not found"}),
)
FIELDS = ("output_r2_key", "output_file_name", "output_file_size")


# --------------------------------------------------------------------------------------------- a success


@required(
    "uploads its output, calls back once, and exits with 0",
    "Make the output, upload it, POST one callback with status success as JSON, and exit with code 0.",
)
def succeeds(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    callback, stored = trial.called_back(), trial.object()
    expect("the method of the callback", "POST", callback.method)
    if not callback.body or "json" not in callback.media:
        raise Broken(f"the callback is no JSON object of type application/json, but {callback.media or 'of no type'}")
    expect("status", "success", callback.body.get("status"))
    if stored.size == 0:
        raise Broken("the object that it has stored is empty")


@required(
    "stores its output under exports/TASK_ID",
    "Upload the object to the bucket R2_BUCKET with the key exports/{TASK_ID}/{file name}.",
)
def stores_under_task_id(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    key = trial.object().key
    if not key.startswith(f"exports/{TASK}/") or len(key) == len(f"exports/{TASK}/"):
        raise Broken(f"the key is {key!r}")


@required(
    "reports what it has stored",
    "Send output_r2_key, output_file_name and output_file_size of the stored object in the callback.",
)
def reports_object(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    stored, body = trial.object(), trial.called_back().body
    expect("key, name and size", (stored.key, stored.key.rpartition("/")[2], stored.size), tuple(map(body.get, FIELDS)))


@required("names its task and its batch", "Send task_id from TASK_ID and batch_id from BATCH_ID in every callback.")
def names_task(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    body = trial.called_back().body
    expect("task_id and batch_id", (TASK, BATCH), (body.get("task_id"), body.get("batch_id")))


@required(
    "uploads before it calls back",
    "Call back after the upload is answered. The server checks the object as soon as it receives a success.",
)
def uploads_first(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    if trial.object().at_s > trial.called_back().at_s:
        raise Broken("the object was stored after the callback")


@required(
    "reports metrics",
    "Send metrics in the callback of a success: an object of numbers with total_time_ms. A MODS exporter also sends "
    "entities_exported, entities_failed and peak_memory_mb.",
)
def reports_metrics(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    metrics = trial.called_back().body.get("metrics")
    if not isinstance(metrics, dict):
        raise Broken(f"metrics is {metrics!r:.100}")
    for name in trial.subject.metrics:
        value = metrics.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise Broken(f"{name} is {value!r:.100}")


@required(
    "uses the documented defaults",
    "Without BATCH_ID the batch is `default`. Without R2_BUCKET the bucket is `arke-exports`.",
)
def uses_default_names(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain, BATCH_ID=None, R2_BUCKET=None, EXPORT_FORMAT=None)
    expect("batch_id", "default", trial.called_back().body.get("batch_id"))
    trial.object()


@required("leaves no files behind", "Remove temporary files before exiting, after a success and after a failure.")
def cleans_up(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    expect("files after a success", [], trial.left())
    trial.fails(trial.subject.failing)
    expect("files after a failure", [], trial.left())


# --------------------------------------------------------------------------------------------- failures


@required(
    "calls back when it fails, and exits with 1",
    "When the export fails, POST one callback with status error and the reason in error, and exit with code 1.",
)
def reports_failure(trial: Trial) -> None:
    trial.fails(trial.subject.failing)
    trial.reported_error()


@required(
    "stores nothing when it fails",
    "Upload nothing when the export failed. A partial output looks like a complete one.",
)
def stores_nothing(trial: Trial) -> None:
    trial.fails(trial.subject.failing)
    expect("objects", [], [stored.key for stored in trial.servers.stored])


@required(
    "reports a failed upload",
    "Treat an upload that the store refuses like any other failure: call back with status error and exit with code 1.",
)
def reports_failed_upload(trial: Trial) -> None:
    trial.servers.refusals = [FORBIDDEN] * 100
    trial.fails(trial.subject.plain)
    trial.reported_error()


@required(
    "does not fail because of its callback",
    "When a callback is refused, log it and continue. The upload succeeded, so exit with code 0.",
)
def survives_callback(trial: Trial) -> None:
    trial.servers.answers = [UNKNOWN] * 100
    trial.succeeds(trial.subject.plain)
    trial.object()


@required(
    "exits with 1 when its environment is incomplete",
    "TASK_ID, PI, EXPORT_OPTIONS, the keys of the store and CALLBACK_URL are required. If one is missing, do no work "
    "and exit with code 1.",
)
def incomplete(trial: Trial) -> None:
    for name in trial.required:
        code, program = trial.run(trial.subject.plain, **{name: None})
        if code != 1:
            raise Broken(f"without {name} the exit code is {code}, not 1{program.last_output()}")
    expect("objects", [], [stored.key for stored in trial.servers.stored])


@required(
    "does not leak its credentials",
    "Never write a key of the store to the log or to a callback, even when the upload fails.",
)
def keeps_secrets(trial: Trial) -> None:
    trial.servers.refusals = [FORBIDDEN] * 100
    program = trial.fails(trial.subject.plain)
    text = f"{program.output()}\n{trial.reported_error()}"
    for name, value in SECRETS.items():
        if value in text:
            raise Broken(f"the value of {name} is in its log or its callback")


# --------------------------------------------------------------------------------------------- beyond the document


@hardening(
    "signs its upload with its keys",
    "Sign the upload with R2_ACCESS_KEY_ID and R2_SECRET_ACCESS_KEY, or send it to UPLOAD_URL unchanged.",
)
def signs_upload(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    shown = trial.object().authorization
    if "R2_ENDPOINT" in trial.environment(trial.subject.plain) and SECRETS["R2_ACCESS_KEY_ID"] not in shown:
        raise Broken("the upload does not name the access key")


@hardening(
    "keeps the query of its callback URL",
    "POST to CALLBACK_URL unchanged. Its query contains the signature of the task.",
)
def keeps_query(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    expect("where it called back", f"/callback/{TASK}?{SIGNATURE}", trial.called_back().target)


@hardening(
    "repeats a callback that was not received",
    "When the callback gets a 5xx answer or no answer, send the same callback again after a pause.",
)
def repeats_callback(trial: Trial) -> None:
    trial.servers.answers = [UNAVAILABLE, Reply(0)]
    trial.succeeds(trial.subject.plain)
    trial.called_back(3)
    bodies = [callback.body for callback in trial.servers.callbacks]
    if any(before != after for before, after in pairwise(bodies)):
        raise Broken("the repeated callback differs from the first")


@hardening(
    "does not repeat a callback that was refused",
    "When the callback is answered with 4xx, do not send it again. The task has ended or is unknown.",
)
def accepts_refusal(trial: Trial) -> None:
    trial.servers.answers = [UNKNOWN] * 100
    trial.run(trial.subject.plain)
    trial.called_back()


@hardening("repeats an upload after a 503", "When the upload is answered with 503, send it again after a pause.")
def repeats_upload(trial: Trial) -> None:
    trial.servers.refusals = [UNAVAILABLE]
    trial.succeeds(trial.subject.plain)
    trial.object()


@hardening(
    "reports an invalid environment",
    "When EXPORT_OPTIONS is not JSON or a variable is missing, still call back with the reason. The log is lost with "
    "the machine.",
)
def reports_invalid_environment(trial: Trial) -> None:
    trial.fails(trial.subject.plain, EXPORT_OPTIONS="{no json")
    trial.reported_error()
    trial.servers.callbacks.clear()
    trial.fails(trial.subject.plain, PI=None)
    trial.reported_error()


@hardening(
    "uses defaults for missing options",
    "Without EXPORT_OPTIONS, and with `{}`, use the default of every option.",
)
def uses_default_options(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain, EXPORT_OPTIONS=None)
    trial.succeeds(trial.subject.plain, EXPORT_OPTIONS="{}")
    trial.called_back(2)


@hardening(
    "stops at SIGTERM",
    "At SIGTERM, stop the work, remove temporary files, call back with status error, and exit with code 1.",
)
def stops(trial: Trial) -> None:
    program = trial.start(trial.subject.slow)
    trial.works(program)
    program.tell(signal.SIGTERM)
    expect("the exit code", 1, program.wait(trial.timeout_s / 2))
    trial.reported_error()
    expect("files that it left", [], trial.left())


@hardening(
    "streams a large output",
    "Stream the output from disk. Memory use must not grow with the size of the output.",
)
def streams(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    small, trial.peak_bytes = trial.peak_bytes, 0
    trial.servers.stored.clear()
    trial.succeeds(trial.subject.large)
    size, grown = trial.object().size, trial.peak_bytes - small
    if size < trial.subject.large_bytes:
        raise Broken(f"the object has {size} bytes, not the requested {trial.subject.large_bytes} or more")
    if grown > size // 2:
        raise Broken(f"its memory grew by {grown >> 20} MiB for an output of {size >> 20} MiB")
