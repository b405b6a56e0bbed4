"""The commands of `windlass`, each with the module that carries it out. Modules are imported when they are called, so
that a command that only asks the API loads nothing of the engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter
from rich.markup import escape

from windlass import __version__
from windlass.cli.output import Exit, complain, errors, help_console
from windlass.core.error import WindlassError

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
    default_parameter=Parameter(negative=()),  # no --no-wait and no --empty-label: what is not asked for is not done
)
TRY = Group.create_ordered("Try it")
RUN = Group.create_ordered("Run it")
LOOK = Group.create_ordered("Look after it")
WRITE = Group.create_ordered("Write a worker of your own")
app["--help"].group = app["--version"].group = Group.create_ordered("Also")

app.command("windlass.cli.demo:demo", group=TRY, help="Kill a worker, lose nothing: what this is about, in 15 s.")
app.command("windlass.cli.dev:dev", group=TRY, help="Run everything on this machine, to try things out.")
app.command("windlass.cli.submit:submit", group=TRY, help="Submit a task, and on request wait for its result.")
app.command("windlass.cli.serve:serve", group=RUN, help="Serve the API and run the loops, on your own PostgreSQL.")
app.command("windlass.cli.worker:worker", group=RUN, help="Run the handlers of an app.")
app.command("windlass.cli.wrapper:wrapper", group=RUN, help="Run operators for queues that send wake-ups, over mTLS.")
app.command("windlass.cli.migrate:migrate", group=RUN, help="Bring the database to the schema of this version.")
app.command("windlass.cli.doctor:doctor", group=RUN, help="Examine the database, with what to do for each finding.")
app.command("windlass.cli.check:check", group=RUN, help="Hold workflows against their records, before you deploy.")

tasks = App(name="tasks", group=LOOK, help="Look at tasks, cancel them, try them again.")
tasks.command("windlass.cli.task:list_tasks", name="list", help="List tasks, newest first.")
tasks.command("windlass.cli.task:get_task", name="get", help="Show one task.")
tasks.command("windlass.cli.submit:wait_task", name="wait", help="Wait until a task has ended.")
tasks.command("windlass.cli.task:cancel_task", name="cancel", help="Ask a task to stop.")
tasks.command("windlass.cli.task:retry_task", name="retry", help="Try a task again now.")
tasks.command("windlass.cli.task:replay_tasks", name="replay", help="Do again all that did not succeed, by filter.")
tasks.command("windlass.cli.task:task_history", name="history", help="What happened to a task, in order.")
tasks.command("windlass.cli.workflow:list_steps", name="steps", help="The steps that a workflow has recorded.")
tasks.command("windlass.cli.workflow:fork_task", name="fork", help="Do a workflow again from one of its steps.")
tasks.command("windlass.cli.task:task_events", name="events", help="The data that a task has told of.")
tasks.command("windlass.cli.task:task_logs", name="logs", help="What the attempts of a task have logged.")
tasks.command("windlass.cli.task:why_waiting", name="why", help="Why a task does not run.")
app.command(tasks)

runs = App(name="runs", group=LOOK, help="Groups of tasks, seen, waited for and cancelled as one.")
runs.command("windlass.cli.run:list_runs", name="list", help="List runs, newest first.")
runs.command("windlass.cli.run:get_run", name="get", help="Show a run with its tasks.")
runs.command("windlass.cli.run:wait_run", name="wait", help="Wait until all tasks of a run have ended.")
runs.command("windlass.cli.run:cancel_run", name="cancel", help="Ask every task of a run to stop.")
app.command(runs)

queues = App(name="queues", group=LOOK, help="What waits where; limits, pause, and how tasks are delivered.")
queues.command("windlass.cli.queue:list_queues", name="list", help="List queues with their counts.")
queues.command("windlass.cli.queue:set_queue", name="set", help="Set limits of a queue.")
queues.command("windlass.cli.queue:pause_queue", name="pause", help="Stop claims from a queue.")
queues.command("windlass.cli.queue:resume_queue", name="resume", help="Let claims from a queue go on.")
queues.command("windlass.cli.queue:drain_queue", name="drain", help="Pause, and wait until nothing runs.")
queues.command("windlass.cli.queue_delivery:push_queue", name="push", help="Push the tasks of a queue to a service.")
queues.command("windlass.cli.queue_wakeup:wake_queue", name="wakeup", help="Wake the workers of a queue by messages.")
queues.command(
    "windlass.cli.queue_wakeup:invoke_queue", name="invoke", help="Call a function for each task of a queue."
)
queues.command("windlass.cli.queue_delivery:pull_queue", name="pull", help="Let workers claim from a queue again.")
queues.command("windlass.cli.queue_delivery:queue_secret", name="secret", help="Print what pushes are signed with.")
app.command(queues)

letters = App(name="letters", group=LOOK, help="Dead letters: messages that no worker could handle.")
letters.command("windlass.cli.letter:list_letters", name="list", help="List them, newest first.")
letters.command("windlass.cli.letter:replay_letter", name="replay", help="Send one again.")
letters.command("windlass.cli.letter:discard_letter", name="discard", help="Throw one away.")
app.command(letters)

schedules = App(name="schedules", group=LOOK, help="Cron expressions that submit tasks.")
schedules.command("windlass.cli.schedule:list_schedules", name="list", help="List schedules with their next fires.")
schedules.command("windlass.cli.schedule:show_schedule", name="show", help="Show one schedule.")
schedules.command("windlass.cli.schedule:create_schedule", name="create", help="Make a schedule.")
schedules.command("windlass.cli.schedule:update_schedule", name="update", help="Change a schedule.")
schedules.command("windlass.cli.schedule:pause_schedule", name="pause", help="Let a schedule not fire.")
schedules.command("windlass.cli.schedule:resume_schedule", name="resume", help="Let a schedule fire again.")
schedules.command("windlass.cli.schedule:trigger_schedule", name="trigger", help="Submit its task now.")
schedules.command("windlass.cli.schedule:preview_schedule", name="preview", help="When it, or any cron, will fire.")
schedules.command("windlass.cli.schedule:delete_schedule", name="delete", help="Forget a schedule.")
app.command(schedules)

workers = App(name="workers", group=LOOK, help="Who is here; let one finish and go, say that one is gone.")
workers.command("windlass.cli.worker_list:list_workers", name="list", help="List workers.")
workers.command("windlass.cli.worker_list:show_worker", name="show", help="Show all that is known of a worker.")
workers.command("windlass.cli.worker_list:drain_worker", name="drain", help="Let a worker finish, with nothing new.")
workers.command("windlass.cli.worker_list:take_worker_offline", name="offline", help="Say that a worker is gone.")
app.command(workers)

signals = App(name="signals", group=LOOK, help="Messages to workflows.")
signals.command("windlass.cli.workflow:send_signal", name="send", help="Send a signal to a workflow.")
app.command(signals)

keys = App(name="keys", group=RUN, help="API keys: hand them out, list them, revoke them.")
keys.command("windlass.cli.key:bootstrap", name="bootstrap", help="Make the first key, on the database itself.")
keys.command("windlass.cli.key:create_key", name="create", help="Hand out a key.")
keys.command("windlass.cli.key:list_keys", name="list", help="List keys.")
keys.command("windlass.cli.key:revoke_key", name="revoke", help="Revoke a key.")
app.command(keys)

secrets = App(name="secrets", group=RUN, help="Secrets in the database.")
secrets.command("windlass.cli.secret:encrypt", name="encrypt", help="Encrypt them with the first key that is set.")
app.command(secrets)

certs = App(name="certs", group=RUN, help="Certificates for the internal port, for development.")
certs.command("windlass.cli.certs:make_authority", name="ca", help="Make an authority.")
certs.command("windlass.cli.certs:issue_server", name="server", help="Make a certificate for a server.")
certs.command("windlass.cli.certs:issue_client", name="client", help="Make a certificate for somebody who may call.")
app.command(certs)

conformance = App(name="conformance", group=WRITE, help="Check whether a worker of your own speaks its contract.")
conformance.command("windlass.cli.conformance:callback", help="Check a worker that takes pushes and calls back.")
conformance.command("windlass.cli.conformance:lease", help="Check a worker that claims tasks over mTLS.")
conformance.command("windlass.cli.conformance:machine", help="Check a program on a machine of its own.")
conformance.command("windlass.cli.conformance:registry", help="Check a worker that registers and polls over gRPC.")
conformance.command("windlass.cli.conformance:stdio", help="Check a program that speaks JSON lines.")
app.command(conformance)

stdio = App(name="stdio", group=WRITE, help="Programs as workers, by stdin and stdout.")
stdio.command("windlass.cli.stdio:stdio_worker", name="worker", help="Be such a worker, for Python scripts.")
app.command(stdio)

config = App(name="config", group=RUN, help="Settings: what is in force, and who set it.")
config.command("windlass.cli.config:show_config", name="show", help="Show the settings that are in force.")
app.command(config)


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line. Our own errors are one line and an exit code; anything else is a defect and shows."""
    try:
        _tell_in_full(arguments)
        code = app(arguments, exit_on_error=False, print_error=True)
        sys.stdout.flush()  # a short answer is still buffered
    except CycloptsError:
        return Exit.USAGE  # it has been said already
    except WindlassError as error:
        return complain(error, "--json" in arguments)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `… | head` has seen enough; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    return code if isinstance(code, int) else Exit.OK


def _tell_in_full(arguments: Sequence[str]) -> None:
    """In a list, a command has one line of help; asked for its own, it has its docstring."""
    command = app
    for word in arguments:
        if word.startswith("-") or word not in command:
            break
        command = command[word]
    if command.default_command is not None and command is not app:
        command.help = None
