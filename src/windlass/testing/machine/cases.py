"""The cases of the machine contract. Numbers are part of what people quote: new ones are added at the end.

What a program is asked to do is in `subject`.
"""

from __future__ import annotations

from itertools import pairwise

from windlass.testing.conformance import Broken, expect
from windlass.testing.listener import Reply
from windlass.testing.machine.trial import BATCH, KIT, SECRETS, SIGNATURE, TASK, Trial

required, hardening = KIT.required, KIT.hardening

AWAY, FORBIDDEN, UNKNOWN = Reply(503, {"error": "away"}), Reply(403, b"<Error/>"), Reply(404, {"error": "not found"})
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
    "The key of the object is exports/{TASK_ID}/{file name}, in the bucket R2_BUCKET.",
)
def stores_where_it_should(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    key = trial.object().key
    if not key.startswith(f"exports/{TASK}/") or len(key) == len(f"exports/{TASK}/"):
        raise Broken(f"the key is {key!r}")


@required(
    "says what it has stored",
    "The callback has output_r2_key, output_file_name and output_file_size of the very object that was stored.",
)
def says_what_it_stored(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    stored, body = trial.object(), trial.called_back().body
    expect("key, name and size", (stored.key, stored.key.rpartition("/")[2], stored.size), tuple(map(body.get, FIELDS)))


@required("names its task and its batch", "Every callback has the task_id of TASK_ID and the batch_id of BATCH_ID.")
def names_task(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    body = trial.called_back().body
    expect("task_id and batch_id", (TASK, BATCH), (body.get("task_id"), body.get("batch_id")))


@required(
    "uploads before it calls back",
    "Call back after the upload was answered: whoever hears of a success looks for the object at once.",
)
def uploads_first(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    if trial.object().at_s > trial.called_back().at_s:
        raise Broken("the object was stored after the callback")


@required(
    "measures itself",
    "The callback of a success has metrics: an object with numbers, total_time_ms among them; of an exporter of MODS "
    "also entities_exported, entities_failed and peak_memory_mb.",
)
def measures(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    metrics = trial.called_back().body.get("metrics")
    if not isinstance(metrics, dict):
        raise Broken(f"metrics is {metrics!r:.100}")
    for name in trial.subject.metrics:
        value = metrics.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise Broken(f"{name} is {value!r:.100}")


@required(
    "knows what is left out",
    "Without BATCH_ID the batch is `default`; without R2_BUCKET the bucket is `arke-exports`.",
)
def knows_defaults(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain, BATCH_ID=None, R2_BUCKET=None, EXPORT_FORMAT=None)
    expect("batch_id", "default", trial.called_back().body.get("batch_id"))
    trial.object()


@required("leaves no files behind", "Remove temporary files before you end, after a success and after a failure.")
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
def tells_failure(trial: Trial) -> None:
    trial.fails(trial.subject.failing)
    trial.told_error()


@required(
    "stores nothing when it fails",
    "Upload nothing of an export that failed: half an output looks like a whole one.",
)
def stores_nothing(trial: Trial) -> None:
    trial.fails(trial.subject.failing)
    expect("objects", [], [stored.key for stored in trial.servers.stored])


@required(
    "tells a failed upload",
    "When the store refuses the object, that is a failure like any other: an error callback, and exit code 1.",
)
def tells_failed_upload(trial: Trial) -> None:
    trial.servers.refusals = [FORBIDDEN] * 100
    trial.fails(trial.subject.plain)
    trial.told_error()


@required(
    "does not fail because of its callback",
    "A callback that is refused is logged and changes nothing: what was uploaded is a success, and exits with 0.",
)
def survives_callback(trial: Trial) -> None:
    trial.servers.answers = [UNKNOWN] * 100
    trial.succeeds(trial.subject.plain)
    trial.object()


@required(
    "exits with 1 when its environment is incomplete",
    "TASK_ID, PI, EXPORT_OPTIONS, the keys of the store and CALLBACK_URL are required: without one, do nothing, and "
    "exit with code 1.",
)
def incomplete(trial: Trial) -> None:
    for name in trial.required:
        code, program = trial.run(trial.subject.plain, **{name: None})
        if code != 1:
            raise Broken(f"without {name} the exit code is {code}, not 1{program.last_words()}")
    expect("objects", [], [stored.key for stored in trial.servers.stored])


@required(
    "keeps its credentials to itself",
    "Neither the log nor a callback contains a key of the store, also when the upload fails.",
)
def keeps_secrets(trial: Trial) -> None:
    trial.servers.refusals = [FORBIDDEN] * 100
    program = trial.fails(trial.subject.plain)
    told = f"{program.output()}\n{trial.told_error()}"
    for name, value in SECRETS.items():
        if value in told:
            raise Broken(f"the value of {name} is in its log or its callback")


# --------------------------------------------------------------------------------------------- beyond the document


@hardening(
    "signs its upload with its keys",
    "Sign the upload with R2_ACCESS_KEY_ID and R2_SECRET_ACCESS_KEY, or send it to UPLOAD_URL as it is.",
)
def signs_upload(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    shown = trial.object().authorization
    if "R2_ENDPOINT" in trial.environment(trial.subject.plain) and SECRETS["R2_ACCESS_KEY_ID"] not in shown:
        raise Broken("the upload does not name the access key")


@hardening(
    "keeps the query of its callback URL",
    "POST to CALLBACK_URL as it is: its query signs the task.",
)
def keeps_query(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    expect("where it called back", f"/callback/{TASK}?{SIGNATURE}", trial.called_back().target)


@hardening(
    "repeats a callback that was not heard",
    "When the callback is answered with 5xx or not at all, send the same again after a pause.",
)
def repeats_callback(trial: Trial) -> None:
    trial.servers.answers = [AWAY, Reply(0)]
    trial.succeeds(trial.subject.plain)
    trial.called_back(3)
    bodies = [callback.body for callback in trial.servers.callbacks]
    if any(before != after for before, after in pairwise(bodies)):
        raise Broken("the repeated callback says something else")


@hardening(
    "does not repeat a callback that was refused",
    "When the callback is answered with 4xx, do not send it again: the task is over or unknown.",
)
def accepts_refusal(trial: Trial) -> None:
    trial.servers.answers = [UNKNOWN] * 100
    trial.run(trial.subject.plain)
    trial.called_back()


@hardening(
    "repeats an upload that was not taken",
    "When the upload is answered with 503, send it again after a pause.",
)
def repeats_upload(trial: Trial) -> None:
    trial.servers.refusals = [AWAY]
    trial.succeeds(trial.subject.plain)
    trial.object()


@hardening(
    "tells a wrong environment",
    "When EXPORT_OPTIONS is no JSON or a variable is missing, call back with the reason all the same: nobody reads "
    "the log of a machine that is gone.",
)
def tells_wrong_environment(trial: Trial) -> None:
    trial.fails(trial.subject.plain, EXPORT_OPTIONS="{no json")
    trial.told_error()
    trial.servers.callbacks.clear()
    trial.fails(trial.subject.plain, PI=None)
    trial.told_error()


@hardening(
    "takes options that are left out",
    "Without EXPORT_OPTIONS, and with `{}`, all options have their defaults.",
)
def takes_no_options(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain, EXPORT_OPTIONS=None)
    trial.succeeds(trial.subject.plain, EXPORT_OPTIONS="{}")
    trial.called_back(2)


@hardening(
    "stops at SIGTERM",
    "At SIGTERM break off the work, remove temporary files, call back with status error, and exit with code 1.",
)
def stops(trial: Trial) -> None:
    program = trial.start(trial.subject.slow)
    trial.works(program)
    trial.stop(program)
    expect("the exit code", 1, program.wait(trial.patience_s / 2))
    trial.told_error()
    expect("files that it left", [], trial.left())


@hardening(
    "streams a large output",
    "Send the output from the disk as it is read: memory must not grow with the size of what is exported.",
)
def streams(trial: Trial) -> None:
    trial.succeeds(trial.subject.plain)
    small, trial.peak_bytes = trial.peak_bytes, 0
    trial.servers.stored.clear()
    trial.succeeds(trial.subject.large)
    size, grown = trial.object().size, trial.peak_bytes - small
    if size < trial.subject.large_bytes:
        raise Broken(f"the object has {size} bytes, at least {trial.subject.large_bytes} were asked for")
    if grown > size // 2:
        raise Broken(f"its memory grew by {grown >> 20} MiB for an output of {size >> 20} MiB")
