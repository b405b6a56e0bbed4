"""Workers that are wrong in one way each: `python faulty.py FAULT` prints the port it listens on.

All are the worker of `examples/`, with one thing changed. Run as a program, in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("callback_worker", ROOT / "examples/callback_worker.py")
assert spec is not None
assert spec.loader is not None
good: Any = importlib.util.module_from_spec(spec)
spec.loader.exec_module(good)

Attempt, call, post, accept, work = (
    good.Attempt, good.Attempt.call, good.Attempt.post, good.accept, good.Attempt.work,
)  # fmt: skip


def never_heartbeats() -> None:
    Attempt.send_heartbeats = lambda self: None


def says_another_attempt() -> None:
    Attempt.post = lambda self, what, body: post(self, what, json.dumps(json.loads(body) | {"attempt": 1}))


def completes_twice() -> None:
    def twice(self: Any, what: str, **said: Any) -> Any:
        if what == "completed":
            post(self, what, json.dumps({"attempt": self.number, "workerId": good.WORKER, **said}))
        return call(self, what, **said)

    Attempt.call = twice


def heartbeats_after_the_end() -> None:
    def run(self: Any) -> None:
        run_well(self)
        post(self, "heartbeat", json.dumps({"attempt": self.number, "workerId": good.WORKER}))

    run_well, Attempt.run = Attempt.run, run


def ignores_cancel() -> None:
    def deaf(self: Any, what: str, **said: Any) -> Any:
        return {k: v for k, v in (call(self, what, **said) or {}).items() if k != "shouldCancel"}

    Attempt.call = deaf


def taken_for_good(*statuses: int, what: str) -> None:
    def lenient(self: Any, said: str, body: str) -> Any:
        status, asked_s, answer = post(self, said, body)
        return (200, 0.0, {}) if said == what and status in statuses else (status, asked_s, answer)

    Attempt.post = lenient


def goes_on_after_410() -> None:
    taken_for_good(410, what="heartbeat")


def goes_on_after_409() -> None:
    taken_for_good(409, what="heartbeat")


def runs_what_it_was_refused() -> None:
    taken_for_good(409, what="started")


def takes_500_for_an_answer_to_started() -> None:
    taken_for_good(500, 0, what="started")


def does_not_repeat_completed() -> None:
    taken_for_good(503, 0, what="completed")


def repeats_what_was_refused() -> None:
    def stubborn(self: Any, what: str, body: str) -> Any:
        status, asked_s, answer = post(self, what, body)
        return (503, 0.0, {}) if what == "completed" and status == 409 else (status, asked_s, answer)

    Attempt.post = stubborn


def does_not_wait_as_asked() -> None:
    def hasty(self: Any, what: str, body: str) -> Any:
        status, _, answer = post(self, what, body)
        return status, 0.0, answer

    Attempt.post = hasty


def gives_up_when_a_heartbeat_fails() -> None:
    def touchy(self: Any, what: str, body: str) -> Any:
        status, asked_s, answer = post(self, what, body)
        return (410, 0.0, {}) if what == "heartbeat" and status != 200 else (status, asked_s, answer)

    Attempt.post = touchy


def uses_one_token_for_all() -> None:
    tokens: list[str] = []

    def forgetful(self: Any, what: str, body: str) -> Any:
        tokens.append(self.token)
        self.token = tokens[0]
        return post(self, what, body)

    Attempt.post = forgetful


def keeps_the_first_token() -> None:
    def stuck(self: Any, what: str, body: str) -> Any:
        self.token = self.envelope["taskToken"]
        return post(self, what, body)

    Attempt.post = stuck


def believes_any_signature() -> None:
    good.signed = lambda headers, body: True


def believes_old_pushes() -> None:
    signed = good.signed

    class Then:
        at = 0

        def time(self) -> int:
            return self.at

    then = Then()

    def any_time(headers: Any, body: bytes) -> bool:
        at = headers.get("webhook-timestamp", "")
        then.at = int(at) if at.isdigit() else 0
        return bool(signed(headers, body))

    good.time, good.signed = then, any_time


def does_not_read_the_body_as_it_came() -> None:
    signed = good.signed
    good.signed = lambda headers, body: signed(headers, body) or signed(headers, body.strip())


def runs_a_duplicate() -> None:
    def careless(attempt: Any) -> int:
        good.running.pop(attempt.id, None)
        return int(accept(attempt))

    good.accept = careless


def answers_after_the_work() -> None:
    def patient(attempt: Any) -> int:
        status = accept(attempt)
        for thread in threading.enumerate():
            if getattr(getattr(thread, "_target", None), "__self__", None) is attempt:
                thread.join()
        return int(status)

    good.accept = patient


def does_not_say_started() -> None:
    Attempt.call = lambda self, what, **said: {} if what == "started" else call(self, what, **said)


def tells_no_category() -> None:
    def vague(self: Any) -> dict[str, Any]:
        said: dict[str, Any] = work(self)
        return said | ({"error": {"message": "no"}} if "error" in said else {})

    Attempt.work = vague


def refuses_unknown_fields() -> None:
    begin = Attempt.__init__

    def strict(self: Any, envelope: dict[str, Any]) -> None:
        if "future" in envelope:
            raise ValueError
        begin(self, envelope)

    Attempt.__init__ = strict


def ends_with_the_first_garbage() -> None:
    good.json = type("Json", (), {"dumps": json.dumps, "loads": lambda self, text: _read_or_die(text)})()


def _read_or_die(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        import os

        os._exit(1)


def refuses_a_newer_attempt() -> None:
    good.accept = lambda attempt: 409 if attempt.id in good.running else accept(attempt)


class Deaf:
    """What a handler that does not look whether it is to stop has in its place."""

    def wait(self, seconds: float) -> bool:
        time.sleep(seconds)
        return False

    def set(self) -> None:
        pass


def works_on_after_its_stop() -> None:
    def deaf(self: Any) -> dict[str, Any]:
        self.stop = Deaf()
        return dict(work(self))

    Attempt.work = deaf


def reports_the_cancel_and_works_on() -> None:
    def hasty(self: Any) -> dict[str, Any]:
        done: list[dict[str, Any]] = []
        self.told, self.stop = threading.Event(), Deaf()
        threading.Thread(target=lambda: done.append(work(self)), daemon=True).start()
        while not done and not self.told.wait(0.01):
            pass
        return done[0] if done else {"outcome": "CANCELLED"}

    def listening(self: Any, what: str, **said: Any) -> Any:
        answer = call(self, what, **said)
        if (answer or {}).get("shouldCancel"):
            self.told.set()
        return answer

    Attempt.work, Attempt.call = hasty, listening


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    server = ThreadingHTTPServer(("127.0.0.1", 0), good.Pushes)
    print(server.server_port, flush=True)
    server.serve_forever()
