"""How untrusted programs are kept away from everything: which ways this machine has, found by trying them.

Each way is tried with the very questions that must fail: to read the key of the certificate and the environment of
this process, to signal it, to open a socket. A way that lets one of them through is not used. Without any way, nothing
untrusted is run.
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

from windlass.core.error import Invalid

WAYS = ("namespaces", "landlock")
NONE = "none"
# Users without an entry, as systemd has them; each program that runs has one of its own. Drawn at random, so that other
# wrappers of this kernel, which may be in other containers, have others.
FIRST_USER, USERS = 61184, 4336
TRIAL_TIMEOUT_S = 30.0
# What a program needs to run at all; all of it the same for everybody on this machine.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/ld.so.conf",
          "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
          "/etc/nsswitch.conf", "/etc/passwd", "/etc/group")  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_PACKAGE = Path(__file__).parents[1]
_START = "import sys; sys.path.insert(0, sys.argv.pop()); from windlass.cage.start import main; main()"
CALL = str(_PACKAGE / "cage" / "call.py")


class Isolation(msgspec.Struct, frozen=True):
    """The way in use, or None and why there is none."""

    way: str | None
    reasons: tuple[str, ...] = ()


def cage_command(orders: Mapping[str, Any]) -> list[str]:
    """The process that locks itself in as `orders` say, and then becomes their command."""
    return [sys.executable, "-I", "-S", "-c", _START, json.dumps(orders), str(_PACKAGE.parent)]


def readable(more: Iterable[Path]) -> list[str]:
    """What a caged program may see: the system's programs, this Python, and what it was given."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, CALL}
    return [*SYSTEM, *sorted(python), *(str(path.resolve()) for path in more)]


def any_user() -> int:
    return FIRST_USER + uuid4().int % USERS


def orders_for(
    way: str,
    command: Sequence[str],
    *,
    folder: Path,
    notes: int,
    user: int,
    limits: Mapping[str, Any],
    read: Iterable[Path] = (),
    **more: Any,
) -> dict[str, Any]:
    """What a cage is told. `folder` is empty and the program's own; in a world of its own it becomes the root."""
    return {
        "isolation": way, "command": list(command), "folder": str(folder), "root": str(folder), "notes": notes,
        "parent": os.getpid(), "user": user, "was_root": os.geteuid() == 0, "limits": dict(limits),
        "read": readable(read), "devices": DEVICES, **more,
    }  # fmt: skip


def find_isolation(secrets: Iterable[Path], wanted: str = "auto") -> Isolation:
    """The first way that works here and keeps these files out of reach."""
    if wanted not in ("auto", *WAYS):
        raise Invalid(f"must be auto, {' or '.join(WAYS)}", field="isolation")
    unreadable = [str(path.resolve()) for path in secrets] + [f"/proc/{os.getpid()}/environ"]
    reasons: list[str] = []
    for way in WAYS if wanted == "auto" else (wanted,):
        why = _try(way, unreadable)
        if why is None:
            return Isolation(way, tuple(reasons))
        reasons.append(why)
    return Isolation(None, tuple(reasons))


def _try(way: str, unreadable: list[str]) -> str | None:
    """None if it works, else why it does not."""
    if sys.platform != "linux":
        return f"{way}: only on Linux"
    reading, writing = os.pipe()
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-trial-") as parent:
            Path(parent).chmod(0o711)
            folder = Path(parent) / "trial"
            folder.mkdir(0o700)
            trial = {"unreadable": unreadable, "pid": os.getpid()}
            orders = orders_for(way, ["true"], folder=folder, notes=writing, user=any_user(), limits={}, trial=trial)
            done = subprocess.run(
                cage_command(orders), env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True,
                pass_fds=(writing,), start_new_session=True, timeout=TRIAL_TIMEOUT_S, check=False,
            )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{way}: {error}"
    finally:
        os.close(writing)
        with os.fdopen(reading, "rb") as notes:
            said = read_notes(notes.read(65536))
    if done.returncode == 0 and "refused" not in said and "cannot_start" not in said:
        return None
    return str(
        said.get("refused") or said.get("cannot_start") or f"{way}: {done.stderr[-500:].decode(errors='replace')}"
    )


def read_notes(data: bytes) -> dict[str, Any]:
    """What a cage told, one JSON object per line."""
    said: dict[str, Any] = {}
    for line in data.splitlines():
        try:
            said |= json.loads(line)
        except (ValueError, TypeError):
            continue  # cut off by a kill
    return said
