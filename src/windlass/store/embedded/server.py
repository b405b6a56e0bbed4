"""A real PostgreSQL below a data directory, shared by all processes of one user that open it.

Locks of the kernel, not the text of files, show which processes are alive, so a killed process is noticed at once. Each
user of the server holds a shared lock; the processes of the server hold another. The first user starts the server, the
last one stops it. `host` chooses the programs and the account that they run as.

    DATA_DIR/control    0700, ours: locks, password, log, the record of the server's process
    DATA_DIR/postgres   0700, the server's: data, socket
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from windlass.core.environment import handed_on
from windlass.errors import Forbidden, Invalid, Rejected, Unavailable
from windlass.store.embedded.host import Account, Software, choose_account, find_software
from windlass.store.embedded.launch import process_mark, read_record

DATABASE = "windlass"
ROLE = "windlass"
START_TIMEOUT_S = 300.0  # recovery after a crash may take minutes
STOP_TIMEOUT_S = 60.0
LOG_BYTES = 4 * 1024 * 1024
_POLL_S = 0.005
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Durability keeps the defaults of the server, which are safe.
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "max_connections": "100",
        "shared_buffers": "128MB",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] ",
        "log_checkpoints": "off",
    }
)


class Layout:
    """The paths in a data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.control, self.home = folder, folder / "control", folder / "postgres"
        self.data = self.home / "data"
        self.log, self.record = self.control / "server.log", self.control / "process"
        self.password = self.control / "password"

    @property
    def socket_folder(self) -> Path:
        """The folder that the last start of the server chose."""
        return Path((self.control / "socket").read_text())


class EmbeddedServer:
    """One user of the server of a data directory. The last user that closes it stops the server."""

    def __init__(self, layout: Layout, user: int) -> None:
        self._layout = layout
        self._user: int | None = user
        atexit.register(self.close)

    @classmethod
    def open(
        cls, data_dir: Path, *, version: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
    ) -> EmbeddedServer:
        """Join the server of `data_dir`, or start it, with `settings`."""
        layout = _prepared(data_dir)
        with _exclusive(layout):
            user = _lock(layout.control / "users", fcntl.LOCK_SH)
            try:
                _bring_up(layout, version, settings)
            except BaseException:
                os.close(user)
                raise
        return cls(layout, user)

    @property
    def dsn(self) -> str:
        return self.dsn_for(DATABASE)

    def dsn_for(self, database: str) -> str:
        place = quote(str(self._layout.socket_folder), safe="")
        return f"postgresql://{ROLE}:{self._layout.password.read_text()}@/{quote(database, safe='')}?host={place}"

    @property
    def pid(self) -> int:
        pid = read_record(self._layout.record)
        if pid is None:
            raise Unavailable(f"the embedded PostgreSQL in {self._layout.folder} is not running")
        return pid

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server for all its users. The next `open` starts it again."""
        if mode not in _SIGNALS:
            raise Invalid(f"{mode!r} is not one of {', '.join(_SIGNALS)}", field="mode")
        with _exclusive(self._layout):
            _shut_down(self._layout, _SIGNALS[mode])

    def close(self) -> None:
        if self._user is None:
            return
        atexit.unregister(self.close)
        user, self._user = self._user, None
        if not self._layout.control.exists():
            os.close(user)  # the data directory was removed; PostgreSQL notices that and ends
            return
        with _exclusive(self._layout):
            # Close the file instead of unlocking it: a forked child that still runs keeps the lock.
            os.close(user)
            last = _try_lock(self._layout.control / "users")
            if last is not None:
                os.close(last)
                _shut_down(self._layout, signal.SIGINT)
                with suppress(FileNotFoundError):
                    if not self._layout.socket_folder.is_relative_to(self._layout.folder):
                        shutil.rmtree(self._layout.socket_folder, ignore_errors=True)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prepared(data_dir: Path) -> Layout:
    try:
        layout = Layout(Path(data_dir).resolve())
        # The server of root runs as another user, who must be able to pass through; the folders inside stay private.
        layout.folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        for private in (layout.control, layout.home):
            private.mkdir(mode=0o700, exist_ok=True)
            private.chmod(0o700)
    except PermissionError as error:
        raise Forbidden(f"the data directory {data_dir} belongs to another user: {error}") from error
    except (OSError, ValueError) as error:
        raise Invalid(f"{str(data_dir)!r} cannot be a data directory: {error}", field="data_dir") from error
    return layout


# Locks. Each call opens the file again, so that two users in one process hold two locks.


def _lock(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_lock(path: Path) -> int | None:
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


@contextmanager
def _exclusive(layout: Layout) -> Iterator[None]:
    """Only one process at a time opens, closes or stops the server."""
    descriptor = _lock(layout.control / "open", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


# Starting.


def _bring_up(layout: Layout, version: int | None, settings: Mapping[str, str]) -> None:
    """Return when a server answers: one that runs, one whose starter died, or a new one."""
    with suppress(FileNotFoundError):  # data stays with the version that made it, also when a newer wheel is installed
        made_by = int((layout.data / "PG_VERSION").read_text())
        if version not in (None, made_by):
            raise Rejected(f"{layout.folder} holds data of PostgreSQL {made_by}, not {version}", version=version)
        version = made_by
    lock = _server_or_lock(layout)
    if lock is None:
        return
    try:
        _start(layout, find_software(version), settings, lock)
    finally:
        os.close(lock)
    lock = _server_or_lock(layout)
    if lock is not None:
        os.close(lock)
        raise Unavailable(
            f"the embedded PostgreSQL in {layout.folder} did not start; its log ends with:\n{_tail(layout)}"
        )


def _server_or_lock(layout: Layout) -> int | None:
    """None once the server answers, or the lock of the server once none of its processes is left."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        lock = _try_lock(layout.control / "server")
        if lock is not None:
            return lock
        if _answers(layout):
            return None
        time.sleep(_POLL_S)
    raise Unavailable(
        f"the embedded PostgreSQL in {layout.folder} runs but does not answer after {START_TIMEOUT_S:.0f} s; "
        f"its log ends with:\n{_tail(layout)}"
    )


def _answers(layout: Layout) -> bool:
    """Whether a connection gets an answer other than "starting up" or "shutting down"."""
    body = struct.pack("!i", 196608) + f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(5)
        try:
            channel.connect(str(layout.socket_folder / _SOCKET_NAME))
            channel.sendall(struct.pack("!i", len(body) + 4) + body)
            reply = channel.recv(1024)
        except OSError:
            return False
    return reply[:1] in (b"R", b"E") and b"C57P03\0" not in reply


def _start(layout: Layout, software: Software, settings: Mapping[str, str], lock: int) -> None:
    account, software = choose_account(layout.folder, software)
    _hand_over(layout.home, account.owner)
    place = _socket_folder(layout, account)
    if not layout.data.exists():
        _initialise(layout, account, software, lock, durable=settings.get("fsync") != "off")
    _remove_stale_pid_file(layout.data / "postmaster.pid")
    _remove_stale_pid_file(place / f"{_SOCKET_NAME}.lock")
    private = {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_directories": '"' + str(place).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
    }
    given = {**_SETTINGS, **settings, **private}
    options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
    order = account.order(log=str(layout.log), log_bytes=LOG_BYTES, record=str(layout.record))
    # The server and its children inherit the lock: it is free when the last of them has ended.
    _run(order.command(software.program("postgres"), "-D", layout.data, *options), layout, lock)


def _hand_over(folder: Path, owner: tuple[int, int]) -> None:
    """Give the folder to the user that the server runs as, which may be another one than last time."""
    status = folder.stat()
    if (status.st_uid, status.st_gid) != owner and os.geteuid() == 0:
        for path in (*folder.rglob("*"), folder):
            os.chown(path, *owner, follow_symlinks=False)


def _socket_folder(layout: Layout, account: Account) -> Path:
    """A folder in the data directory if its path is short enough for a socket, else a private temporary folder."""
    place = layout.home / "socket"
    if len(os.fsencode(place / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
        place.mkdir(mode=0o700, exist_ok=True)
    else:
        place = _temporary_socket_folder(layout, account)
    os.chown(place, *account.owner)
    _write_private(layout.control / "socket", str(place))
    return place


def _temporary_socket_folder(layout: Layout, account: Account) -> Path:
    """The folder of the last start, if it exists and is private: other users of the server may still have its DSN. A
    copied data directory gets its own."""
    prefix = f"windlass-{hashlib.sha256(os.fsencode(layout.folder)).hexdigest()[:8]}-"
    with suppress(FileNotFoundError):
        last = layout.socket_folder
        status = last.lstat()
        private = stat.S_ISDIR(status.st_mode) and status.st_uid == account.owner[0] and not status.st_mode & 0o077
        if last.name.startswith(prefix) and private:
            return last
    usual = Path(tempfile.gettempdir())
    short = len(os.fsencode(usual)) + len("/windlass-12345678-12345678/" + _SOCKET_NAME) <= _SOCKET_PATH_BYTES
    parent = usual if short and account.may_reach(usual) else Path("/tmp")  # noqa: S108 (mkdtemp makes it private)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def _remove_stale_pid_file(path: Path) -> None:
    """Remove the pid file of a killed server: its pid may be another process now, and PostgreSQL would not start.

    We hold the lock of the server, so no server of ours runs. A server that was started by hand holds no lock of ours:
    if the pid belongs to a postgres, the file stays, and PostgreSQL checks it.
    """
    with suppress(FileNotFoundError):
        mark = process_mark(int(path.read_text().split("\n", 1)[0]))
        if mark is None or not mark.startswith("postgres "):
            path.unlink()


# Creating the data.


def _initialise(layout: Layout, account: Account, software: Software, lock: int, *, durable: bool) -> None:
    """Create the data in a temporary folder and rename it when it is complete."""
    if not layout.password.exists():
        _write_private(layout.password, secrets.token_urlsafe(32))
    fresh = layout.home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    password = layout.home / "password.new"
    password.unlink(missing_ok=True)
    _write_private(password, layout.password.read_text())
    os.chown(password, *account.owner)
    options = [f"--pgdata={fresh}", f"--username={ROLE}", f"--pwfile={password}", "--auth=scram-sha-256"]
    options += ["--encoding=UTF8", "--no-locale", "--data-checksums", *([] if durable else ["--no-sync"])]
    _run(account.order().command(software.program("initdb"), *options), layout, lock)
    password.unlink()
    single = account.order().command(software.program("postgres"), "--single", "-D", fresh, "postgres")
    _run(single, layout, lock, f"CREATE DATABASE {DATABASE}\n")
    fresh.rename(layout.data)
    descriptor = os.open(layout.home, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_private(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def _run(command: Sequence[str], layout: Layout, lock: int, text: str = "") -> None:
    done = subprocess.run(
        command,
        cwd=layout.home,
        env={**handed_on(os.environ), "LC_ALL": "C"},
        pass_fds=(lock,),
        start_new_session=True,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Unavailable(f"PostgreSQL could not be prepared in {layout.folder}:\n{done.stdout}{done.stderr}")


# Stopping.


def _shut_down(layout: Layout, how: signal.Signals) -> None:
    """Stop the server and wait for its last process. If that takes too long, stop it at once: it recovers at the next
    start."""
    for way in (how, signal.SIGQUIT):
        pid = read_record(layout.record)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, way)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            lock = _try_lock(layout.control / "server")
            if lock is not None:
                os.close(lock)
                return
            time.sleep(_POLL_S)
    raise Unavailable(f"the embedded PostgreSQL in {layout.folder} does not stop; its log ends with:\n{_tail(layout)}")


def _tail(layout: Layout) -> str:
    """The last lines of the log."""
    try:
        with layout.log.open("rb") as log:
            log.seek(max(0, layout.log.stat().st_size - 8192))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-15:])
    except FileNotFoundError:
        return "(no log)"
