"""The commands of `windlass`, each with the module that implements it.

A module is imported when its command is called, so that commands that only call the API do not load the engine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter
from rich.markup import escape

from windlass import __version__
from windlass.cli.output import Exit, errors, help_console, report_error
from windlass.errors import WindlassError

EPILOGUE = "Exit codes: 0 done, 1 failed or refused, 2 wrong use or setting, 3 server or database unreachable."

app = App(
    name="windlass",
    help="A durable task and workflow engine: one engine, every kind of worker.",
    help_epilogue=EPILOGUE,
    version=__version__,
    console=help_console,
    error_console=errors,
    error_formatter=lambda error: f"[red]error[/red] {escape(str(error))}",
    result_action="return_value",
    default_parameter=Parameter(negative=()),  # no --no-wait and no --empty-label
)
TRY = Group.create_ordered("Try it")
RUN = Group.create_ordered("Run it")
MANAGE = Group.create_ordered("Manage it")
WRITE = Group.create_ordered("Write your own worker")
app["--help"].group = app["--version"].group = Group.create_ordered("Options")

app.command("windlass.cli.demo:demo", group=TRY, help="Kill a worker and lose nothing: a demo of 15 seconds.")
app.command("windlass.cli.dev:dev", group=TRY, help="Run everything on this machine, for development.")
app.command("windlass.cli.submit:submit", group=TRY, help="Submit a task; with --wait, print its result.")
app.command("windlass.cli.serve:serve", group=RUN, help="Run a server on your own PostgreSQL.")
app.command("windlass.cli.worker:worker", group=RUN, help="Run the handlers of an app.")
app.command("windlass.cli.wrapper:wrapper", group=RUN, help="Run operators for queues with wake-ups, over mTLS.")
app.command("windlass.cli.sink:sink", group=RUN, help="Write the batches of buffered datasets to their tables.")
app.command("windlass.cli.migrate:migrate", group=RUN, help="Migrate the database to the schema of this version.")
app.command("windlass.cli.psql:psql", group=RUN, help="Run SQL on the tables of datasets, with psql.")
app.command("windlass.cli.doctor:doctor", group=RUN, help="Diagnose the database and the configuration.")
app.command("windlass.cli.check:check", group=RUN, help="Check changed workflow code against unfinished runs.")

tasks = App(name="tasks", group=MANAGE, help="Inspect, cancel, retry and replay tasks.")
tasks.command("windlass.cli.task:list_tasks", name="list", help="List tasks, newest first.")
tasks.command("windlass.cli.task:get_task", name="get", help="Show a task.")
tasks.command("windlass.cli.submit:wait_task", name="wait", help="Wait for a task to end.")
tasks.command("windlass.cli.task:cancel_task", name="cancel", help="Cancel a task.")
tasks.command("windlass.cli.task:retry_task", name="retry", help="Retry a task now.")
tasks.command("windlass.cli.task:replay_tasks", name="replay", help="Replay unsuccessful tasks that match a filter.")
tasks.command("windlass.cli.task:task_history", name="history", help="Show the history of a task.")
tasks.command("windlass.cli.workflow:list_steps", name="steps", help="List the recorded steps of a workflow.")
tasks.command("windlass.cli.workflow:fork_task", name="fork", help="Rerun a workflow from one of its steps.")
tasks.command("windlass.cli.task:task_events", name="events", help="Datasets written by a task.")
tasks.command("windlass.cli.task:task_logs", name="logs", help="Show the log lines of a task.")
tasks.command("windlass.cli.task:why_waiting", name="why", help="Explain why a task is not running.")
app.command(tasks)

runs = App(name="runs", group=MANAGE, help="Inspect, await and cancel groups of tasks.")
runs.command("windlass.cli.run:list_runs", name="list", help="List runs, newest first.")
runs.command("windlass.cli.run:get_run", name="get", help="Show a run with its tasks.")
runs.command("windlass.cli.run:wait_run", name="wait", help="Wait for all tasks of a run to end.")
runs.command("windlass.cli.run:cancel_run", name="cancel", help="Cancel all tasks of a run.")
app.command(runs)

queues = App(name="queues", group=MANAGE, help="Inspect queues; set limits and delivery.")
queues.command("windlass.cli.queue:list_queues", name="list", help="List queues and their task counts.")
queues.command("windlass.cli.queue:set_queue", name="set", help="Set the limits of a queue.")
queues.command("windlass.cli.queue:pause_queue", name="pause", help="Pause a queue.")
queues.command("windlass.cli.queue:resume_queue", name="resume", help="Resume a paused queue.")
queues.command("windlass.cli.queue:drain_queue", name="drain", help="Pause a queue and wait until nothing runs.")
queues.command(
    "windlass.cli.queue_delivery:push_queue", name="push", help="Push the tasks of a queue to an HTTP service."
)
queues.command("windlass.cli.queue_delivery:wake_queue", name="wakeup", help="Wake the workers of a queue by messages.")
queues.command(
    "windlass.cli.queue_delivery:invoke_queue", name="invoke", help="Call a function for each task of a queue."
)
queues.command("windlass.cli.queue_delivery:pull_queue", name="pull", help="Let workers claim tasks from a queue.")
queues.command(
    "windlass.cli.queue_delivery:queue_secret", name="secret", help="Print or rotate the signing secret of a queue."
)
app.command(queues)

dead_letters = App(name=("dead-letters", "letters"), group=MANAGE, help="Inspect messages that no worker could handle.")
dead_letters.command(
    "windlass.cli.dead_letters:list_dead_letters", name="list", help="List dead letters, newest first."
)
dead_letters.command("windlass.cli.dead_letters:replay_dead_letter", name="replay", help="Send a dead letter again.")
dead_letters.command("windlass.cli.dead_letters:discard_dead_letter", name="discard", help="Delete a dead letter.")
app.command(dead_letters)

schedules = App(name="schedules", group=MANAGE, help="Submit tasks by cron expression.")
schedules.command("windlass.cli.schedule:list_schedules", name="list", help="List schedules and when they fire next.")
schedules.command("windlass.cli.schedule:show_schedule", name="show", help="Show a schedule.")
schedules.command("windlass.cli.schedule:create_schedule", name="create", help="Create a schedule.")
schedules.command("windlass.cli.schedule:update_schedule", name="update", help="Change a schedule.")
schedules.command("windlass.cli.schedule:pause_schedule", name="pause", help="Pause a schedule.")
schedules.command("windlass.cli.schedule:resume_schedule", name="resume", help="Resume a paused schedule.")
schedules.command("windlass.cli.schedule:trigger_schedule", name="trigger", help="Submit the task of a schedule now.")
schedules.command("windlass.cli.schedule:preview_schedule", name="preview", help="Show the next fire times.")
schedules.command("windlass.cli.schedule:delete_schedule", name="delete", help="Delete a schedule.")
app.command(schedules)

dags = App(name="dags", group=MANAGE, help="Deploy DAG files; activate and roll back their versions.")
dags.command("windlass.cli.dags:validate_file", name="validate", help="Check a DAG file.")
dags.command("windlass.cli.dags:plan_file", name="plan", help="Show what a deploy of a DAG file would change.")
dags.command("windlass.cli.dags:deploy_file", name="deploy", help="Deploy a DAG file.")
dags.command("windlass.cli.dags:list_dags", name="list", help="List DAGs.")
dags.command("windlass.cli.dags:get_dag", name="get", help="Show a DAG with its jobs.")
dags.command("windlass.cli.dags:list_versions", name="versions", help="List the versions of a DAG, newest first.")
dags.command("windlass.cli.dags:activate_version", name="activate", help="Activate a version of a DAG.")
dags.command("windlass.cli.dags:roll_back", name="rollback", help="Activate the version that was active before.")
dags.command("windlass.cli.dags:abandon_version", name="abandon", help="Give up a version that is not active.")
dags.command("windlass.cli.dags:pause_dag", name="pause", help="Pause a DAG.")
dags.command("windlass.cli.dags:resume_dag", name="resume", help="Resume a paused DAG.")
dags.command("windlass.cli.dags:retire_dag", name="retire", help="Stop a DAG for good. Its data stays.")
dags.command("windlass.cli.dags:emit", name="emit", help="Start a task of a source.")
dags.command(
    "windlass.cli.dags:set_webhook_secret", name="webhook-secret", help="Set the secret of a webhook, or remove it."
)
dags.command("windlass.cli.dags:why_job", name="why", help="Say why a job has processed a partition or not.")
app.command(dags)

datasets = App(name="datasets", group=MANAGE, help="Inspect datasets and their partitions; revert, purge.")
datasets.command("windlass.cli.datasets:list_datasets", name="list", help="List datasets.")
datasets.command("windlass.cli.datasets:get_dataset", name="get", help="Show a dataset with its versions.")
datasets.command("windlass.cli.datasets:list_partitions", name="partitions", help="List the partitions of a dataset.")
datasets.command("windlass.cli.datasets:show_coverage", name="coverage", help="Show which numbers are committed.")
datasets.command("windlass.cli.datasets:revert_partition", name="revert", help="Revert a partition to an old revision.")
datasets.command(
    "windlass.cli.datasets:invalidate", name="invalidate", help="Report that a part of a dataset was wrong."
)
datasets.command("windlass.cli.datasets:purge_version", name="purge", help="Delete the data of an old version.")
datasets.command("windlass.cli.datasets:list_events", name="events", help="List the events of a dataset.")
app.command(datasets)

backfill = App(name="backfill", group=MANAGE, help="Make partitions of a job again.")
backfill.command("windlass.cli.backfill:start_backfill", name="start", help="Start a backfill.")
backfill.command("windlass.cli.backfill:list_backfills", name="list", help="List backfills, newest first.")
backfill.command("windlass.cli.backfill:get_backfill", name="get", help="Show a backfill with its progress.")
backfill.command("windlass.cli.backfill:cancel_backfill", name="cancel", help="Cancel a backfill.")
app.command(backfill)

app.command(
    "windlass.cli.datasets:show_lineage", name="lineage", group=MANAGE, help="Show where data comes from and goes."
)

workers = App(name="workers", group=MANAGE, help="Inspect and drain workers; declare them lost.")
workers.command("windlass.cli.worker_list:list_workers", name="list", help="List workers.")
workers.command("windlass.cli.worker_list:show_worker", name="show", help="Show a worker.")
workers.command(
    "windlass.cli.worker_list:drain_worker", name="drain", help="Let a worker finish; give it no new tasks."
)
workers.command(
    "windlass.cli.worker_list:take_worker_offline", name="offline", help="Declare a worker lost; recover its tasks."
)
app.command(workers)

signals = App(name="signals", group=MANAGE, help="Send signals to workflows.")
signals.command("windlass.cli.workflow:send_signal", name="send", help="Send a signal to a workflow.")
app.command(signals)

keys = App(name="keys", group=RUN, help="Create, list and revoke API keys.")
keys.command("windlass.cli.key:bootstrap", name="bootstrap", help="Create the first key, directly in the database.")
keys.command("windlass.cli.key:create_key", name="create", help="Create an API key.")
keys.command("windlass.cli.key:list_keys", name="list", help="List API keys.")
keys.command("windlass.cli.key:revoke_key", name="revoke", help="Revoke an API key.")
app.command(keys)

secrets = App(name="secrets", group=RUN, help="Manage the secrets in the database.")
secrets.command("windlass.cli.secret:encrypt", name="encrypt", help="Encrypt all secrets with the first key.")
app.command(secrets)

certs = App(name="certs", group=RUN, help="Create development certificates for the internal port.")
certs.command("windlass.cli.certs:make_authority", name="ca", help="Create a certificate authority.")
certs.command("windlass.cli.certs:issue_server", name="server", help="Create a server certificate.")
certs.command("windlass.cli.certs:issue_client", name="client", help="Create a client certificate.")
app.command(certs)

conformance = App(name="conformance", group=WRITE, help="Check a worker of your own against its contract.")
conformance.command("windlass.cli.conformance:callback", help="Check a worker that receives pushes and calls back.")
conformance.command("windlass.cli.conformance:lease", help="Check a worker that claims tasks over mTLS.")
conformance.command("windlass.cli.conformance:machine", help="Check a program that runs on its own machine.")
conformance.command("windlass.cli.conformance:registry", help="Check a worker that registers and polls over gRPC.")
conformance.command("windlass.cli.conformance:stdio", help="Check a program that speaks JSON lines.")
app.command(conformance)

stdio = App(name="stdio", group=WRITE, help="Run programs as workers over stdin and stdout.")
stdio.command("windlass.cli.stdio:stdio_worker", name="worker", help="Run a worker for Python scripts.")
app.command(stdio)

config = App(name="config", group=RUN, help="Inspect the settings.")
config.command("windlass.cli.config:show_config", name="show", help="Show the settings in force.")
app.command(config)


def run(arguments: Sequence[str]) -> int:
    """Run one command line. A `WindlassError` becomes one line and an exit code; any other exception is a bug."""
    try:
        _use_full_help(arguments)
        code = app(arguments, exit_on_error=False, print_error=True)
        sys.stdout.flush()  # short output is still buffered
    except CycloptsError:
        return Exit.USAGE  # cyclopts has printed the error
    except WindlassError as error:
        return report_error(error, "--json" in arguments)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `… | head` closed the pipe: discard what is still buffered
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return code if isinstance(code, int) else Exit.OK


def _use_full_help(arguments: Sequence[str]) -> None:
    """Show a command's docstring in its own help. Lists of commands show its one-line help."""
    command = app
    for word in arguments:
        if word.startswith("-") or word not in command:
            break
        command = command[word]
    if command.default_command is not None and command is not app:
        command.help = None
