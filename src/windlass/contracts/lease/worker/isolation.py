"""Which ways this machine has to isolate untrusted programs, found by trying them.

Each trial does what must fail: read the certificate's key and the environment of this process, signal it, open a
socket. A way that lets one of these through is not used. Without any way, untrusted programs are refused.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from windlass.errors import Invalid

WAYS = ("namespaces", "landlock")
NONE = "none"
# systemd's range of dynamic users. Each running program has its own. Drawn at random, because other wrappers on this
# kernel, perhaps in other containers, use the same range.
FIRST_USER, USERS = 61184, 4336
TRIAL_TIMEOUT_S = 30.0
# What a program needs to run at all. Every user of this machine can read it.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/ld.so.conf",
          "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
          "/etc/nsswitch.conf", "/etc/passwd", "/etc/group")  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PACKAGE = Path(__file__).parents[3]
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from windlass.contracts.lease.sandbox.start import main; main()"
)
CALL = str(_PACKAGE / "contracts/lease/sandbox/call.py")


class Isolation(msgspec.Struct, frozen=True):
    """The way in use, or None, and why others were not usable."""

    way: str | None
    reasons: tuple[str, ...] = ()


def sandbox_command(spec: Mapping[str, Any]) -> list[str]:
    """The command of a process that restricts itself as `spec` says, and then becomes the program."""
    return [sys.executable, "-I", "-S", "-c", _START, json.dumps(spec), str(_PACKAGE.parent)]


def readable(more: Iterable[Path]) -> list[str]:
    """What a sandboxed program may read: system programs, this Python, and the operator's paths."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, CALL}
    return [*SYSTEM, *sorted(python), *(str(path.resolve()) for path in more)]


def any_user() -> int:
    return FIRST_USER + uuid4().int % USERS


def sandbox_spec(
    way: str,
    command: Sequence[str],
    *,
    folder: Path,
    status_fd: int,
    user: int,
    limits: Mapping[str, Any],
    read: Iterable[Path] = (),
    **more: Any,
) -> dict[str, Any]:
    """The spec of a sandbox. `folder` is an empty folder for the program; in namespaces it becomes the root."""
    return {
        "isolation": way, "command": list(command), "folder": str(folder), "root": str(folder), "status_fd": status_fd,
        "parent": os.getpid(), "user": user, "was_root": os.geteuid() == 0, "limits": dict(limits),
        "read": readable(read), "devices": DEVICES, **more,
    }  # fmt: skip


def find_isolation(secrets: Iterable[Path], wanted: str = "auto") -> Isolation:
    """The first way that works on this machine and protects these files."""
    if wanted not in ("auto", *WAYS):
        raise Invalid(f"must be auto, {' or '.join(WAYS)}", field="isolation")
    unreadable = [str(path.resolve()) for path in secrets] + [f"/proc/{os.getpid()}/environ"]
    reasons: list[str] = []
    for way in WAYS if wanted == "auto" else (wanted,):
        reason = _try(way, unreadable)
        if reason is None:
            return Isolation(way, tuple(reasons))
        reasons.append(reason)
    return Isolation(None, tuple(reasons))


def _try(way: str, unreadable: list[str]) -> str | None:
    """None if the way works, else the reason why not."""
    if sys.platform != "linux":
        return f"{way}: only on Linux"
    reading, writing = os.pipe()
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-trial-") as parent:
            Path(parent).chmod(0o711)
            folder = Path(parent) / "trial"
            folder.mkdir(0o700)
            trial = {"unreadable": unreadable, "pid": os.getpid()}
            spec = sandbox_spec(
                way, ["true"], folder=folder, status_fd=writing, user=any_user(), limits={}, trial=trial
            )
            done = subprocess.run(
                sandbox_command(spec), env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True,
                pass_fds=(writing,), start_new_session=True, timeout=TRIAL_TIMEOUT_S, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{way}: {error}"
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as status_file:
            status = read_status(status_file.read(65536))
    problem = status.get("refused") or status.get("cannot_start")
    if done.returncode == 0 and not problem:
        return None
    return str(problem or f"{way}: {done.stderr[-500:].decode(errors='replace')}")


def read_status(data: bytes) -> dict[str, Any]:
    """What a sandbox reported, one JSON object per line."""
    status: dict[str, Any] = {}
    for line in data.splitlines():
        try:
            status |= json.loads(line)
        except (ValueError, TypeError):
            continue  # cut off by a kill
    return status
