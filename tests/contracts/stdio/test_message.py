"""What workers write on a line: every message is heard, and what cannot be read fails what it concerns, at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from windlass.contracts.stdio.protocol.line import LineReader
from windlass.contracts.stdio.protocol.message import Unreadable, read_line
from windlass.stdio import Environment, Service, TaskError

PATIENCE_S = 30.0
# Writes what its script says, with the ids of this and of the last task in place of THIS and LAST, and no newline.
PARROT = """
import json, os, sys
last = ''
for line in sys.stdin:
    request = json.loads(line)
    if request['requestType'] == 'EXECUTE':
        said = request['script'].replace('THIS', request['task']).replace('LAST', last)
        sys.stdout.buffer.write(said.encode('utf-8', 'surrogateescape'))
        sys.stdout.flush()
        last = request['task']
"""


def message(task: str, kind: str, **more: Any) -> str:
    return json.dumps({**more, "task": task, "responseType": kind})


DONE, UPDATE = message("THIS", "COMPLETION", outputs={"result": {"a": {"b": 1}}}), message("THIS", "UPDATE", current=1)


@pytest.fixture
def parrot() -> Iterator[Service]:
    with Environment.of(sys.executable, "-c", PARROT).service() as service:
        yield service


@pytest.mark.parametrize(
    "line",
    [
        f"{UPDATE}{DONE}\n",
        f"\n\n{DONE}\n\n",
        f"50 %{DONE}\n",
        f"{DONE}done\n",
        f"{{'a': 1}} {{ {DONE} }} {{\n",
        f"[1, 2]{DONE}null{UPDATE}\n",
        f'{{"x": {DONE}\n',
        f"{DONE}{DONE}\n",
    ],
)
def test_a_message_is_heard_whatever_else_is_on_its_line(parrot: Service, line: str) -> None:
    assert parrot.task(line).result(PATIENCE_S) == {"a": {"b": 1}}


def test_messages_of_two_tasks_on_one_line_end_both(parrot: Service) -> None:
    first = parrot.task(message("THIS", "LAUNCH") + "\n").start()
    last = parrot.task(f"{DONE}{message('LAST', 'COMPLETION', outputs={'result': 2})}\n")
    assert last.result(PATIENCE_S) == {"a": {"b": 1}}
    assert first.result(PATIENCE_S) == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (DONE[:-1] + "\n", "Expecting"),
        (f'{{"task": "THIS", "responseType": "COMPL{UPDATE}\n', "Invalid|Expecting|Unterminated"),
        (DONE.replace("1}}", "NaN}}") + "\n", "NaN is not a JSON number"),
        (DONE.replace("1}}", "-Infinity}}") + "\n", "-Infinity is not a JSON number"),
        (DONE.replace("1}}", "9" * 5000 + "}}") + "\n", "digits"),
        (DONE.replace("1}}", '"caf\udce9"}}') + "\n", "UTF-8|utf-8"),
        ('{"responseType": "COMPLETION", "outputs": {' + "\n", "Expecting"),
        (DONE.replace("1}}", "[" * 100_000 + "}}") + "\n", "recursion|Expecting"),
    ],
    ids=["cut off", "overwritten", "NaN", "infinity", "a long number", "no UTF-8", "nobody's", "too deep"],
)
def test_an_end_that_cannot_be_read_fails_its_task_and_no_other(parrot: Service, line: str, why: str) -> None:
    with pytest.raises(TaskError, match=rf"cannot be read: .*({why})"):
        parrot.task(line).wait_for(PATIENCE_S)
    assert parrot.task(DONE + "\n").result(PATIENCE_S) == {"a": {"b": 1}}


def test_what_is_damaged_and_no_end_is_left_out(parrot: Service) -> None:
    task = parrot.task(UPDATE.replace("1", "NaN") + f"\n{json.dumps({'rows': [{'task': 'THIS'}]})}\n{DONE}\n")
    assert task.result(PATIENCE_S) == {"a": {"b": 1}}
    assert len(parrot.invalid_lines()) == 2


def test_an_end_of_nobody_among_several_ends_the_worker_and_all_are_told_why(parrot: Service) -> None:
    waiting = [parrot.task("\n").start() for _ in range(3)]
    with pytest.raises(TaskError, match="cannot be read"):
        parrot.task('{"responseType": "COMPLETION", "outputs": {"a"\n').wait_for(PATIENCE_S)
    for task in waiting:
        with pytest.raises(TaskError, match="a message that cannot be read"):
            task.wait_for(PATIENCE_S)
    assert not parrot.killed


def test_a_line_that_is_too_long_fails_the_task_it_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.contracts.stdio.protocol.service.LineReader", partial(LineReader, longest=100_000))
    with Environment.of(sys.executable, "-c", PARROT).service() as parrot:
        waiting = parrot.task("\n").start()
        with pytest.raises(TaskError, match="cannot be read: a line has more than"):
            parrot.task(message("THIS", "COMPLETION", outputs="x" * 300_000) + "\n").wait_for(PATIENCE_S)
        assert not waiting.is_finished
        parrot.kill()


def test_pieces_of_a_line() -> None:
    assert read_line(b'{"task": "a", "responseType": "LAUNCH"}', "responseType") == [
        {"task": "a", "responseType": "LAUNCH"}
    ]
    first, unreadable, last = read_line(
        b'{"task":"a","responseType":1} junk {"task":"b","responseType":2}', "responseType"
    )
    assert (first, last) == ({"task": "a", "responseType": 1}, {"task": "b", "responseType": 2})
    assert isinstance(unreadable, Unreadable)
    assert (unreadable.text, unreadable.tasks, unreadable.ends_something) == (" junk ", [], False)
