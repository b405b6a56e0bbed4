"""A real PostgreSQL below a data directory, shared by all processes of one user that open it.

The rule of this file: kernel locks say who is there, never a file's text. A user of the server holds a shared lock,
and the server's processes hold another, so a killed process is gone at once. The first user starts the server, the
last one stops it. It does not know what the database is for, nor which user and programs it runs on (`embedded_host`).

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
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal
from urllib.parse import quote

from windlass.core.environment import handed_on
from windlass.errors import Forbidden, Invalid, Rejected, Unavailable
from windlass.store.embedded.host import Account, Software, choose_account, find_software
from windlass.store.embedded.launch import process_mark, read_record

DATABASE = "windlass"
ROLE = "windlass"
START_TIMEOUT_S = 300.0  # replaying a long log after a crash is slow, and not an error
STOP_TIMEOUT_S = 60.0
LOG_BYTES = 4 * 1024 * 1024
_POLL_S = 0.005
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 107 if sys.platform == "linux" else 103
_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# Durability is left at the server's defaults, which are the safe ones.
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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything is."""

    folder: Path

    @property
    def control(self) -> Path:
        return self.folder / "control"

    @property
    def home(self) -> Path:
        return self.folder / "postgres"

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.control / "server.log"

    @property
    def record(self) -> Path:
        return self.control / "process"

    @property
    def password(self) -> Path:
        return self.control / "password"

    @property
    def socket_folder(self) -> Path:
        """As the server was last started with."""
        return Path((self.control / "socket").read_text())


class EmbeddedServer:
    """One user of the server of a data directory. Closing it leaves; the last one to leave stops the server."""

    def __init__(self, layout: Layout, user: int) -> None:
        self._layout = layout
        self._user: int | None = user
        atexit.register(self.close)

    @classmethod
    def open(
        cls, data_dir: Path, *, version: int | None = None, settings: Mapping[str, str] = MappingProxyType({})
    ) -> EmbeddedServer:
        """Joins the server of `data_dir`, or starts it. `settings` count for the one who starts it."""
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
        """Stops the server for everybody; the next `open` starts it again."""
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
            os.close(user)  # somebody removed the data directory; PostgreSQL notices by itself, and ends
            return
        with _exclusive(self._layout):
            # Closed, not unlocked: a child that was forked from us and still lives keeps its share of the lock.
            os.close(user)
            last = _try_lock(self._layout.control / "users")
            if last is not None:
                os.close(last)
                _shut_down(self._layout, signal.SIGINT)
                _remove_far_socket(self._layout)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _prepared(data_dir: Path) -> Layout:
    try:
        layout = Layout(Path(data_dir).resolve())
        # Root's server runs as somebody else, who must be able to pass through; what is inside stays private.
        layout.folder.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        for private in (layout.control, layout.home):
            private.mkdir(mode=0o700, exist_ok=True)
            private.chmod(0o700)
    except PermissionError as error:
        raise Forbidden(f"the data directory {data_dir} belongs to another user: {error}") from error
    except (OSError, ValueError) as error:
        raise Invalid(f"{str(data_dir)!r} cannot be one: {error}", field="data_dir") from error
    return layout


# Locks. Each call opens the file anew, so that two users in one process are two users.


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
    """Opening, closing and stopping happen one at a time."""
    descriptor = _lock(layout.control / "open", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


# Starting.


def _bring_up(layout: Layout, version: int | None, settings: Mapping[str, str]) -> None:
    """Returns when a server answers: one that ran, that was being started by somebody who died, or a new one."""
    version = _settled_version(layout, version)
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


def _settled_version(layout: Layout, version: int | None) -> int | None:
    """Data stays with the version that made it, also when a newer wheel is installed."""
    with suppress(FileNotFoundError):
        made_by = int((layout.data / "PG_VERSION").read_text())
        if version not in (None, made_by):
            raise Rejected(f"{layout.folder} holds data of PostgreSQL {made_by}, not {version}", version=version)
        return made_by
    return version


def _server_or_lock(layout: Layout) -> int | None:
    """None once the server answers, or the server's lock once no process of any server is left."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        lock = _try_lock(layout.control / "server")
        if lock is not None:
            return lock
        if _answers(layout):
            return None
        time.sleep(_POLL_S)
    raise Unavailable(
        f"the embedded PostgreSQL in {layout.folder} is there but does not answer after {START_TIMEOUT_S:.0f} s; "
        f"its log ends with:\n{_tail(layout)}"
    )


def _answers(layout: Layout) -> bool:
    """Asks as a client would; only an answer other than "starting up" or "shutting down" counts."""
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
    _forget_dead_server(layout.data / "postmaster.pid")
    _forget_dead_server(place / f"{_SOCKET_NAME}.lock")
    given = {**_SETTINGS, **settings, **_private_settings(place)}
    options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
    order = account.order(log=str(layout.log), log_bytes=LOG_BYTES, record=str(layout.record))
    # The server inherits the lock, and so do its children: it is free when the last of them has ended.
    _run(order.command(software.program("postgres"), "-D", layout.data, *options), layout, lock)


def _private_settings(folder: Path) -> dict[str, str]:
    return {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_directories": '"' + str(folder).replace('"', '""') + '"',
        "unix_socket_permissions": "0700",
    }


def _hand_over(folder: Path, owner: tuple[int, int]) -> None:
    """The whole folder belongs to the user that the server runs as, also when another way was taken last time."""
    status = folder.stat()
    if (status.st_uid, status.st_gid) != owner and os.geteuid() == 0:
        for path in (*folder.rglob("*"), folder):
            os.chown(path, *owner, follow_symlinks=False)


def _socket_folder(layout: Layout, account: Account) -> Path:
    """Inside the data directory if the path is short enough for the kernel, else in a private folder of its own."""
    place = layout.home / "socket"
    if len(os.fsencode(place / _SOCKET_NAME)) <= _SOCKET_PATH_BYTES:
        place.mkdir(mode=0o700, exist_ok=True)
    else:
        place = _far_folder(layout, account)
    os.chown(place, *account.owner)
    _write_private(layout.control / "socket", str(place))
    return place


def _far_folder(layout: Layout, account: Account) -> Path:
    """The one of last time, if it is still there: others may hold its DSN. A copied data directory gets its own."""
    prefix = f"windlass-{hashlib.sha256(os.fsencode(layout.folder)).hexdigest()[:8]}-"
    with suppress(FileNotFoundError):
        last = layout.socket_folder
        if last.name.startswith(prefix) and _is_private(last, account):
            return last
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_short_temp_folder(account)))


def _short_temp_folder(account: Account) -> Path:
    usual = Path(tempfile.gettempdir())
    short = len(os.fsencode(usual)) + len("/windlass-12345678-12345678/" + _SOCKET_NAME) <= _SOCKET_PATH_BYTES
    return usual if short and account.may_reach(usual) else Path("/tmp")  # noqa: S108 (mkdtemp makes it private)


def _is_private(folder: Path, account: Account) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == account.owner[0] and not status.st_mode & 0o077


def _remove_far_socket(layout: Layout) -> None:
    with suppress(FileNotFoundError):
        if not layout.socket_folder.is_relative_to(layout.folder):
            shutil.rmtree(layout.socket_folder, ignore_errors=True)


def _forget_dead_server(path: Path) -> None:
    """Removes a pid file of a killed server: its pid may be another process by now, and PostgreSQL would not start.

    We hold the server's lock, so no server of ours is alive. One that somebody started by hand holds no lock of ours:
    where the pid is a postgres, the file stays, and PostgreSQL decides by its own means.
    """
    with suppress(FileNotFoundError):
        mark = process_mark(int(path.read_text().split("\n", 1)[0]))
        if mark is None or not mark.startswith("postgres "):
            path.unlink()


# Making the data.


def _initialise(layout: Layout, account: Account, software: Software, lock: int, *, durable: bool) -> None:
    """Builds the data beside its place and moves it there when complete: what an interruption leaves is made anew."""
    fresh = layout.home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    password = layout.home / "password.new"
    password.unlink(missing_ok=True)
    _write_private(password, _password(layout))
    os.chown(password, *account.owner)
    options = [f"--pgdata={fresh}", f"--username={ROLE}", f"--pwfile={password}", "--auth=scram-sha-256"]
    options += ["--encoding=UTF8", "--no-locale", "--data-checksums", *([] if durable else ["--no-sync"])]
    _run(account.order().command(software.program("initdb"), *options), layout, lock)
    password.unlink()
    single = account.order().command(software.program("postgres"), "--single", "-D", fresh, "postgres")
    _run(single, layout, lock, f"CREATE DATABASE {DATABASE}\n")
    fresh.rename(layout.data)
    _sync_folder(layout.home)


def _password(layout: Layout) -> str:
    if not layout.password.exists():
        _write_private(layout.password, secrets.token_urlsafe(32))
    return layout.password.read_text()


def _write_private(path: Path, text: str) -> None:
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
    """Asks, waits for the last process of the server to end, and insists once: it recovers at the next start."""
    for way in (how, signal.SIGQUIT):
        pid = read_record(layout.record)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, way)
        if _ended(layout):
            return
    raise Unavailable(f"the embedded PostgreSQL in {layout.folder} does not stop; its log ends with:\n{_tail(layout)}")


def _ended(layout: Layout) -> bool:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        lock = _try_lock(layout.control / "server")
        if lock is not None:
            os.close(lock)
            return True
        time.sleep(_POLL_S)
    return False


def _tail(layout: Layout, lines: int = 15) -> str:
    try:
        with layout.log.open("rb") as log:
            log.seek(max(0, layout.log.stat().st_size - 8192))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return "(no log)"
