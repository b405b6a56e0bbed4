"""Runs `windlass` in forks of a process that has imported the libraries already: real processes, with streams, folder,
environment and exit code of their own, in a fifth of the time. A test makes dozens of commands.

It does not import what looks at the environment or at the streams when it is imported: `windlass.cli` itself.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = ("cyclopts", "rich.console", "rich.table", "rich.markup", "rich.panel", "urllib3", "windlass",
             "windlass.api.client", "windlass.net.http_connection")  # fmt: skip
ROOT = Path(__file__).parents[2]


class Warm:
    """The side of the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.cli.warm", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._socket = ours
        atexit.register(self.close)

    def run(self, program: Path, arguments: list[str], cwd: str, env: dict[str, str], timeout_s: float) -> Any:
        request = json.dumps({"argv": [str(program), *arguments], "cwd": cwd, "env": env}).encode()
        with self._lock, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            socket.send_fds(self._socket, [request], [out.fileno(), err.fileno()])
            pid = int(self._socket.recv(64))
            self._socket.settimeout(timeout_s)
            try:
                code = int(self._socket.recv(64))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._socket.settimeout(None)
                self._socket.recv(64)
                raise subprocess.TimeoutExpired(arguments, timeout_s) from None
            finally:
                self._socket.settimeout(None)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def warm() -> Warm:
    return Warm()


def serve(link: socket.socket) -> dict[str, Any] | None:
    """Returns in each fork, with what to run; in the process itself when the tests have ended."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, 1 << 20, 2)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            link.close()
            for stream, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, stream)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        link.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        link.send(str(os.waitstatus_to_exitcode(status)).encode())


def main() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    from windlass.cli import main as windlass

    windlass()


if __name__ == "__main__":
    main()
