"""A worker with a planted fault: ours, seen through somebody who gets one thing wrong. `python faulty.py FAULT`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.contracts.stdio.talk import WORKER

Message = dict[str, Any]


def changed(kind: str, change: Callable[[Message], list[Message]]) -> Callable[[Message], list[Message]]:
    return lambda message: change(message) if message["responseType"] == kind else [message]


def without(*names: str) -> Callable[[Message], list[Message]]:
    return lambda message: [{key: value for key, value in message.items() if key not in names}]


def _short(message: Message) -> list[Message]:
    result = message["outputs"].get("result")
    return [{**message, "outputs": {"result": result[:8000] if isinstance(result, str) else result}}]


def _ascii(message: Message) -> list[Message]:
    result = str(message["outputs"].get("result", ""))
    return [{**message, "outputs": {"result": result.encode("ascii", "replace").decode()}}]


# What it does to the messages of a worker, and which case has to find it.
ANSWERS: dict[str, tuple[int, Callable[[Message], list[Message]]]] = {
    "no LAUNCH": (1, changed("LAUNCH", lambda _: [])),
    "no outputs": (1, changed("COMPLETION", without("outputs"))),
    "two ends": (1, changed("COMPLETION", lambda m: [m, m])),
    "another type": (1, changed("LAUNCH", lambda m: [{**m, "responseType": "STARTED"}])),
    "no id": (1, changed("LAUNCH", without("task"))),
    "another id": (1, lambda m: [{**m, "task": m["task"].upper() + "-"}]),
    "no unicode": (2, changed("COMPLETION", _ascii)),
    "cut off": (2, changed("COMPLETION", _short)),
    "no updates": (4, changed("UPDATE", lambda _: [])),
    "updates without numbers": (4, changed("UPDATE", without("current"))),
    "updates afterwards": (4, changed("COMPLETION", lambda m: [m, {**m, "responseType": "UPDATE"}])),
    "failures complete": (5, changed("FAILURE", lambda m: [{**m, "responseType": "COMPLETION", "outputs": {}}])),
    "failures without a reason": (5, changed("FAILURE", without("error"))),
    "no failures": (6, changed("FAILURE", lambda _: [])),
    "cancel completes": (7, changed("CANCELATION", lambda m: [{**m, "responseType": "COMPLETION"}])),
}
# What it does to requests.
REQUESTS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "missing inputs are fatal": (3, lambda line: line if b"inputs" in line else sys.exit(1)),
    "no cancel": (7, lambda line: b"\n" if b"CANCEL" in line else line),
    "a cancel of nothing is fatal": (8, lambda line: sys.exit(1) if b"no-such-task" in line else line),
    "one after the other": (9, lambda line: line.replace(b'"requestType"', b'"queue": "main", "requestType"')),
    "main is like all others": (10, lambda line: line.replace(b'"queue": "main"', b'"queue": "other"').replace(
        b'"script": "', b'"script": "import random, time; time.sleep(random.random() / 5)\\n')),
    "long lines are cut": (14, lambda line: line[:65536] + b"\n" if len(line) > 65536 else line),
    "malformed JSON is fatal": (15, lambda line: line if _is_json(line) else sys.exit(1)),
    "a blank line is the end": (16, lambda line: line if line.strip() else sys.exit(0)),
    "no object is fatal": (17, lambda line: line if not _is_json(line) or b"{" in line else sys.exit(1)),
    "unknown types are fatal": (17, lambda line: sys.exit(1) if b"PAUSE" in line else line),
    "malformed JSON ends all": (18, lambda line: sys.exit(1) if b"nonsense" in line else line),
}  # fmt: skip
# What it does to bytes on stdout: the whole line in, what is written out.
LINES: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "pretty printing": (1, lambda line: json.dumps(json.loads(line), indent=1).encode() + b"\n"),
    "noise before a message": (11, lambda line: b"noise" + line),
    "two in a line": (13, lambda line: line.rstrip(b"\n") if b"LAUNCH" in line else line),
    "large answers are torn": (13, lambda line: line[:65536] + b"\n" + line[65536:] if len(line) > 65536 else line),
}
# What becomes of it in the end.
ENDS: dict[str, tuple[int, str]] = {
    "ends at once": (19, "at once"),
    "never ends": (19, "never"),
    "ends with 3": (19, "code"),
    "eats requests": (12, "eats"),
}
FAULTS = {name: case for table in (ANSWERS, REQUESTS, LINES, ENDS) for name, (case, _) in table.items()}


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line or b"0")
    except ValueError:
        return not line.strip()
    return True


def main(fault: str) -> None:
    worker = subprocess.Popen(WORKER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    end = ENDS.get(fault, (0, ""))[1]
    answers = threading.Thread(target=_answer, args=(worker, fault))
    answers.start()
    assert worker.stdin is not None
    try:
        for line in iter(sys.stdin.buffer.readline, b""):
            if end == "eats" and b"stdin.read" in line:
                os.read(0, 100) if sys.stdin.buffer.peek(0) else sys.stdin.buffer.readline()
            worker.stdin.write(REQUESTS[fault][1](line) if fault in REQUESTS else line)
            worker.stdin.flush()
    except SystemExit as over:
        worker.kill()
        os._exit(int(over.code or 0))
    if end == "at once":
        worker.kill()
        os._exit(0)
    worker.stdin.close()
    answers.join()
    if end == "never":
        threading.Event().wait()
    sys.exit(3 if end == "code" else worker.wait())


def _answer(worker: subprocess.Popen[bytes], fault: str) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        messages = ANSWERS[fault][1](json.loads(line)) if fault in ANSWERS else [json.loads(line)]
        for message in messages:
            said = json.dumps(message).encode() + b"\n"
            sys.stdout.buffer.write(LINES[fault][1](said) if fault in LINES else said)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1])
