"""Untrusted programs that try to get out: to the key, to the wrapper, to other files, to the network, to the next task.

Each way of isolation that this machine has is tried with all of it. Where a machine has none, untrusted tasks are
refused with the reason; that is tested everywhere.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contracts.lease.worker.certificates import Files
from tests.contracts.lease.worker.conftest import Bench
from tests.contracts.lease.worker.stand_in import Dispatcher
from tests.contracts.lease.worker.test_program import TASK, Heard
from tests.kit.database import temporary_folder
from tests.kit.processes import alive
from tests.kit.work import soon, until

from windlass.contracts.lease.sandbox import landlock, start
from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.config import read_config
from windlass.contracts.lease.worker.isolation import WAYS, Isolation, find_isolation
from windlass.contracts.lease.worker.operator import Limits, Operator, OperatorFailed
from windlass.errors import Invalid

pytestmark = pytest.mark.slow


def python_of(way: str | None) -> str:
    """A Python that a sandboxed program can run. Root runs it as another user, which needs access to it."""
    path = Path(sys.executable).resolve()
    if way == "landlock" and os.geteuid() == 0 and not all(one.stat().st_mode & 1 for one in (path, *path.parents)):
        found = shutil.which("python3", path="/usr/local/bin:/usr/bin")
        return found or pytest.skip("no Python that every user can run")
    return sys.executable


@pytest.fixture(scope="module", params=WAYS)
def isolation(request: pytest.FixtureRequest, certificate: Files) -> Isolation:
    found = find_isolation([certificate.key, certificate.certificate], request.param)
    if found.way is None:
        assert not kernel_has(request.param), found.reasons
        pytest.skip("; ".join(found.reasons))
    return found


def kernel_has(way: str) -> bool:
    """What another program says about it: a sandbox that is broken is no reason to leave its tests out."""
    if way == "landlock":
        return landlock.version() >= landlock.SCOPES_SINCE
    user = [] if os.geteuid() == 0 else ["--user"]
    tried = subprocess.run(
        ["unshare", *user, "--mount", "--pid", "--net", "--fork", "true"], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.fixture
def programs(isolation: Isolation) -> Iterator[Programs]:
    programs = Programs(isolation)
    yield programs
    assert list(programs._base.iterdir()) == []
    programs.close()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody on this machine can write to and read from."""
    with temporary_folder() as folder:
        folder.chmod(0o777)
        yield folder


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.exists() else []


Try = Callable[..., Any]


Python = Callable[..., Operator]


@pytest.fixture
def python(isolation: Isolation) -> Python:
    """An operator that runs Python code in the sandbox."""
    path = python_of(isolation.way)
    return lambda code, **options: Operator(command=[path, "-I", "-c", code], trusted=False, **options)


@pytest.fixture
def attempt(programs: Programs, python: Python) -> Try:
    """Runs Python code in the sandbox; `found` is what it got hold of."""

    async def run(code: str, *, limits: dict[str, Any] | None = None, **options: Any) -> Any:
        around = f"import json, os, sys\nfound = {{}}\n{code}\nprint(json.dumps(found))"
        operator = python(around, limits=Limits(**(limits or {})), **options)
        answer = await soon(programs.run(operator, TASK, Heard(), {"TOKEN": "secret"}))
        return answer.result

    return run


async def test_a_caged_program_gets_its_task_and_answers(programs: Programs) -> None:
    operator = Operator(command=["sh", "-c", "cat > task; echo '{\"result\": '$(wc -c < task)'}'"], trusted=False)
    answer = await soon(programs.run(operator, TASK, Heard(), {}))

    assert answer.result == len(json.dumps(TASK, separators=(",", ":")))


READ = """
for path in {paths}:
    for mode in ("rb", "r+b", "ab", "wb"):
        try:
            with open(path, mode) as file:
                found[path] = mode
                break
        except OSError as error:
            pass
"""


async def test_it_cannot_read_or_write_the_client_key_or_the_certificate(attempt: Try, certificate: Files) -> None:
    paths = [str(certificate.key), str(certificate.certificate)]

    assert await attempt(READ.format(paths=paths)) == {}
    assert "PRIVATE KEY" in certificate.key.read_text()


async def test_it_cannot_read_them_through_links_or_under_other_names(attempt: Try, certificate: Files) -> None:
    code = f"""
key = {str(certificate.key)!r}
os.symlink(key, "link")
ways = ["link", f"/proc/self/root{{key}}", f"/proc/1/root{{key}}", f"/proc/{os.getpid()}/root{{key}}",
        f"/proc/self/cwd/../../../../../..{{key}}", "../../../../../../../.." + key]
try:
    os.link(key, "hard"); ways.append("hard")
except OSError: pass
try:
    os.chmod(key, 0o666)
    found["chmod"] = True
except OSError: pass
for way in ways:
    try: found[way] = open(way).read()
    except OSError: pass
"""
    before = certificate.key.stat().st_mode
    assert await attempt(code) == {}
    assert certificate.key.stat().st_mode == before


async def test_it_cannot_see_anything_of_the_wrapper_in_proc(attempt: Try) -> None:
    pid = os.getpid()
    names = ["environ", "mem", "maps", "cmdline", "auxv", "stack", "io", "fdinfo/1", "fd/1", "root/etc/passwd", "cwd/x"]
    code = READ.format(paths=[f"/proc/{pid}/{name}" for name in names])
    code += f"""
for name in ("fd", "task", "cwd", "root"):
    try: found[name] = os.listdir(f"/proc/{pid}/{{name}}")
    except OSError: pass
for name in ("exe", "cwd", "root"):
    try: found["link " + name] = os.readlink(f"/proc/{pid}/{{name}}")
    except OSError: pass
"""
    assert await attempt(code) == {}


async def test_it_has_nothing_of_the_wrappers_environment_and_no_secret(
    attempt: Try, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours")
    seen = await attempt("found = dict(os.environ)", env={"MODE": "fast"})

    assert seen.keys() <= {"PATH", "LANG", "LC_CTYPE", "HOME", "TMPDIR", "MODE", "PWD"}
    assert seen["MODE"] == "fast"


async def test_it_has_inherited_no_open_file_but_its_three(attempt: Try) -> None:
    code = """
for number in range(3, 256):
    try: found[number] = str(os.fstat(number))
    except OSError: pass
"""
    assert await attempt(code) == {}


async def test_it_reads_nothing_outside_its_folder_but_programs(attempt: Try, shared: Path) -> None:
    (shared / "everybody").write_text("anybody may read this")
    (shared / "everybody").chmod(0o666)
    paths = [str(shared / "everybody"), "/etc/hostname", "/etc/shadow", "/root/.profile", __file__]
    code = (
        READ.format(paths=paths)
        + f"""
for folder in ({str(shared)!r}, {str(Path(__file__).parent)!r}, "/home", "/var", "/etc/ssh", "/srv"):
    try: found[folder] = os.listdir(folder)
    except OSError: pass
"""
    )
    assert await attempt(code) == {}
    assert (shared / "everybody").read_text() == "anybody may read this"


async def test_it_writes_nothing_outside_its_folder(attempt: Try, shared: Path) -> None:
    code = f"""
for folder in ({str(shared)!r}, "/", "/tmp/..", "/var/tmp", "/dev/shm", "/usr/lib", "/etc", "/proc", sys.prefix):
    for make in (lambda p: open(p, "w").close(), os.mkdir, os.mkfifo, lambda p: os.symlink("x", p)):
        try:
            make(os.path.join(folder, "escaped"))
            found[folder] = True
        except OSError: pass
for path in ({str(shared)!r}, "/usr/bin/env", sys.executable):
    for change in (lambda p: os.chmod(p, 0o777), lambda p: os.utime(p), lambda p: os.chown(p, 0, 0), os.unlink,
                   lambda p: os.truncate(p, 0), lambda p: os.rename(p, p + ".old")):
        try:
            change(path)
            found[path] = True
        except OSError: pass
"""
    assert await attempt(code) == {}
    assert names_in(shared) == []


async def test_it_has_a_folder_of_its_own_which_is_gone_afterwards(attempt: Try) -> None:
    code = """
import tempfile
found["mine"] = os.getcwd()
found["there"] = os.listdir(".")
open("file", "w").write("x" * 1000)
os.mkdir("deep")
found["home"] = os.environ["HOME"] == os.environ["TMPDIR"] == os.getcwd()
found["temporary"] = os.path.dirname(tempfile.mkstemp()[1]) == os.getcwd()
"""
    seen = await attempt(code)
    assert (seen["there"], seen["home"], seen["temporary"]) == ([], True, True)
    assert names_in(Path(seen["mine"])) == []


SOCKETS = """
import socket
def tries(name, do):
    try:
        do()
        found[name] = True
    except OSError as error:
        pass
def connect(family, kind, address):
    with socket.socket(family, kind) as one:
        one.settimeout(5)
        one.connect(address)
        one.send(b"GET /internal/task-fetch HTTP/1.1\\r\\n\\r\\n")
tries("tcp", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port})))
tries("tcp6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", {port})))
tries("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", {port})))
tries("unix", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, {path!r}))
tries("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, {abstract!r}))
tries("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tries("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
tries("packet", lambda: socket.socket(17, socket.SOCK_RAW, 0))
tries("vsock", lambda: socket.socket(40, socket.SOCK_STREAM, 0))
tries("bind", lambda: socket.create_server(("127.0.0.1", 0)))
"""


async def test_it_cannot_call_internal_or_anybody_else(attempt: Try, dispatcher: Dispatcher, shared: Path) -> None:
    port, path, abstract = int(dispatcher.url.rpartition(":")[2]), str(shared / "socket"), f"\0windlass-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
        by_path.bind(path)
        by_name.bind(abstract)
        by_path.listen()
        by_name.listen()
        os.chmod(path, 0o777)  # noqa: PTH101
        assert await attempt(SOCKETS.format(port=port, path=path, abstract=abstract)) == {}
    assert dispatcher.requests == []


async def test_it_cannot_signal_slow_or_trace_the_wrapper(attempt: Try) -> None:
    code = f"""
import ctypes, resource, signal
pid = {os.getpid()}
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, do):
    try:
        if do() != -1: found[name] = True
    except (OSError, ValueError): pass
tries("kill", lambda: os.kill(pid, 0))
tries("group", lambda: os.killpg(os.getpgid(pid), 0))
tries("nice", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
tries("affinity", lambda: os.sched_setaffinity(pid, {{0}}))
tries("limit", lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024)))
tries("trace", lambda: libc.ptrace(16, pid, 0, 0))
tries("pidfd", lambda: libc.syscall(438, os.pidfd_open(pid), 0, 0))
"""
    assert await attempt(code) == {}


async def test_it_cannot_become_somebody_else_or_make_a_world_of_its_own(attempt: Try) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, do):
    try:
        if do() != -1: found[name] = True
    except OSError: pass
tries("setuid", lambda: os.setuid(0) if os.getuid() else -1)
tries("unshare user", lambda: libc.unshare(0x10000000))
tries("unshare mounts", lambda: libc.unshare(0x00020000))
tries("clone", lambda: libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0))
tries("mount", lambda: libc.mount(b"none", b".", b"tmpfs", 0, None))
tries("chroot", lambda: os.chroot("."))
tries("keys", lambda: libc.syscall(250, 0, -3, 0))
tries("handle", lambda: libc.syscall(304, -100, 0, 0))
tries("io_uring", lambda: libc.syscall(425, 1, 0))
"""
    assert await attempt(code) == {}


async def test_all_that_it_has_started_dies_with_it_wherever_that_hides(attempt: Try, shared: Path) -> None:
    mark = random.randrange(10**6, 10**7)
    code = """
for _ in range(2):
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
        try: os.setpgid(0, 0)
        except OSError: pass
        if os.fork():
            os._exit(0)
        for number in range(3):
            try: os.close(number)
            except OSError: pass
        os.execvp("sleep", ["sleep", "MARK"])
found["done"] = True
"""
    assert await attempt(code.replace("MARK", str(mark))) == {"done": True}

    def left() -> list[int]:
        return [pid for pid in processes() if command_of(pid) == b"sleep\x00%d\x00" % mark]

    await until(lambda: not left())


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("code", "limits", "says"),
    [
        ("while True: pass", {"cpu_s": 1}, "SIGXCPU"),
        ("import time; time.sleep(60)", {"timeout_s": 0.5}, "longer than 0.5 s"),
        ("while True: print('x' * 60000)", {"output_bytes": 100_000}, "more than 100000 bytes"),
        ("b'x' * (512 * 1024 * 1024)", {"memory_bytes": 256 * 1024 * 1024}, "MemoryError"),
        ("open('big', 'wb').write(b'x' * 100_000)", {"file_bytes": 50_000}, "SIGXFSZ|File too large"),
    ],
    ids=["cpu", "time", "output", "memory", "file"],
)
async def test_it_is_ended_when_it_uses_more_than_it_may(
    attempt: Try, code: str, limits: dict[str, Any], says: str
) -> None:
    with pytest.raises(OperatorFailed, match=says):
        await attempt(code, limits=limits)


async def test_a_fork_bomb_is_bounded_and_goes_with_the_program(attempt: Try, isolation: Isolation) -> None:
    """Where it has to run as the same user, the kernel cannot count its processes apart: then it is ended."""
    counted = isolation.way == "namespaces" or os.geteuid() == 0
    mark = str(random.randrange(10**6, 10**7))
    code = """
made = MARK * 0
try:
    for _ in range(500):
        if os.fork() == 0:
            import time
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError: pass
found["bounded"] = made < 40
"""
    if counted:
        assert await attempt(code.replace("MARK", mark), limits={"processes": 40}) == {"bounded": True}
    else:
        with pytest.raises(OperatorFailed, match="more than 40"):
            await attempt(code.replace("MARK", mark), limits={"processes": 40})
    await until(lambda: not [pid for pid in processes() if mark.encode() in command_of(pid)])


async def test_what_the_user_runs_besides_does_not_count_against_its_processes(attempt: Try) -> None:
    others = [await asyncio.create_subprocess_exec("sleep", "600") for _ in range(40)]
    try:
        code = "import subprocess\nfound['said'] = subprocess.run(['echo', 'hi'], capture_output=True).stdout.decode()"
        assert await attempt(code, limits={"processes": 20}) == {"said": "hi\n"}
    finally:
        for other in others:
            other.kill()
            await other.wait()


USE = """
import mmap, os, time
size = {size}
for _ in range({children}):
    if os.fork() == 0:
        {code}
        time.sleep(60)
        os._exit(0)
{after}
"""
SHARED_PAGES = """held = mmap.mmap(-1, size)
        for at in range(0, size, 4096): held[at] = 1
        held.madvise(mmap.MADV_DONTNEED)"""
MIB = 1024 * 1024


@pytest.mark.parametrize(
    "code", ["held = b'x' * size", SHARED_PAGES], ids=["memory", "shared memory that was given up"]
)
async def test_the_memory_of_all_its_processes_together_is_bounded(attempt: Try, code: str) -> None:
    program = USE.format(size=100 * MIB, children=6, code=code, after="time.sleep(60)")
    with pytest.raises(OperatorFailed, match="bytes of memory, all of its processes together"):
        await attempt(program, limits={"memory_bytes": 400 * MIB})


async def test_memory_that_its_processes_have_in_common_counts_once(attempt: Try) -> None:
    code = """
import time
held = b"x" * (200 * 1024 * 1024)
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        time.sleep(0.5)
        os._exit(0)
    children.append(child)
found["codes"] = [os.waitpid(child, 0)[1] for child in children]
"""
    assert await attempt(code, limits={"memory_bytes": 400 * MIB}) == {"codes": [0] * 5}


FILES = """
import time
try:
    for number in range(40):
        with open(f"file-{number}", "wb") as file: file.write(os.urandom(1024 * 1024))
    time.sleep(60)
except OSError as error:
    found["errno"] = error.errno
"""
UNLINKED = """
import time
kept = []
try:
    for number in range(40):
        kept.append(open("file", "wb", buffering=0))
        os.unlink("file")
        kept[-1].write(os.urandom(1024 * 1024))
    time.sleep(60)
except OSError as error:
    found["errno"] = error.errno
"""


@pytest.mark.parametrize("code", [FILES, UNLINKED], ids=["files", "files without a name"])
async def test_all_its_files_together_are_bounded(attempt: Try, isolation: Isolation, code: str) -> None:
    limits = {"folder_bytes": 8 * MIB}
    if isolation.way == "namespaces":
        assert await attempt(code, limits=limits) == {"errno": errno.ENOSPC}
        return
    with pytest.raises(OperatorFailed, match=f"more than {8 * MIB} bytes in files"):
        await attempt(code, limits=limits)


async def test_a_process_that_hides_from_its_limits_is_ended(attempt: Try, isolation: Isolation) -> None:
    """A program that nobody may read shows nothing of itself to others, not even to its own user."""
    if os.geteuid() == 0 or isolation.way == "namespaces":
        pytest.skip("nobody hides from root, and where files are bounded by the kernel nobody needs to look")
    code = """
import shutil
copy = os.open("copy", os.O_CREAT | os.O_WRONLY, 0o111)
os.write(copy, open(shutil.which("sleep"), "rb").read())
os.close(copy)
os.execv("copy", ["copy", "60"])
"""
    with pytest.raises(OperatorFailed, match="hides from the limits"):
        await attempt(code)


async def test_it_is_never_root(attempt: Try) -> None:
    found = await attempt("found['ids'] = [*os.getresuid(), *os.getresgid(), *os.getgroups()]")
    ids = found["ids"]

    assert 0 not in ids
    assert os.geteuid() == 0 or set(ids[:3]) == {os.geteuid()}


async def test_it_does_not_see_what_lies_beside_what_it_was_given(attempt: Try, shared: Path) -> None:
    """Nor the name of a home in which its Python lies."""
    (shared / "home" / "alice").mkdir(parents=True)
    (shared / "home" / "alice" / "code.txt").write_text("given")
    (shared / "home" / "bob").mkdir()
    code = f"""
found["given"] = open({str(shared / "home" / "alice" / "code.txt")!r}).read()
for folder in ({str(shared)!r}, {str(shared / "home")!r}):
    try: found[folder] = os.listdir(folder)
    except OSError: pass
"""
    assert await attempt(code, read=[shared / "home" / "alice"]) == {"given": "given"}


async def test_it_sends_nothing_to_a_socket_that_is_a_file(attempt: Try, shared: Path) -> None:
    path = str(shared / "journal")
    code = f"""
import socket
for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    for send in ("sendto", "sendmsg", "connect"):
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
            if send == "sendto": ours.sendto(b"hello", {path!r})
            elif send == "sendmsg": ours.sendmsg([b"hello"], [], 0, {path!r})
            else: ours.connect({path!r}); ours.send(b"hello")
        except OSError: pass
"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(path)
        journal.setblocking(False)
        os.chmod(path, 0o777)  # noqa: PTH101
        await attempt(code)
        with pytest.raises(BlockingIOError):
            journal.recv(100)


async def test_it_goes_when_its_wrapper_is_killed(isolation: Isolation) -> None:
    """Also who has lost its parent in the meantime."""
    mark = random.randrange(10**6, 10**7)  # others may run the same test
    say = f"""(sleep {mark} &); echo '{{"say": "events"}}'; exec sleep {mark}"""
    wrapper = (
        "import asyncio\n"
        "from windlass.contracts.lease.worker.child import Programs\n"
        "from windlass.contracts.lease.worker.isolation import Isolation\n"
        "from windlass.contracts.lease.worker.operator import Operator\n"
        "class Heard:\n"
        "    def send(self, message): print(message, flush=True)\n"
        f"command = ['sh', '-c', {say!r}]\n"
        f"programs = Programs(Isolation({isolation.way!r}))\n"
        "asyncio.run(programs.run(Operator(command=command, trusted=False), {}, Heard(), {}))\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", wrapper, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await soon(process.stdout.readline())

    def sleepers() -> list[int]:
        return [pid for pid in processes() if command_of(pid) == b"sleep\x00%d\x00" % mark]

    try:
        await until(lambda: len(sleepers()) == 2)
    finally:
        process.kill()
    await soon(process.wait())
    await until(lambda: not [pid for pid in sleepers() if alive(pid)])


async def test_two_untrusted_programs_do_not_see_each_other(programs: Programs, python: Python) -> None:
    """The second looks for what the first left open for everybody in its own folder."""
    ready = threading.Event()

    class Tells(Heard):
        def send(self, message: Any) -> None:
            super().send(message)
            ready.set()

    heard = Tells()
    first = python(
        "import json, os, time\n"
        "os.umask(0); open('secret', 'w').write('mine')\n"
        "print(json.dumps({'say': 'events', 'events': [os.getcwd()]}), flush=True)\n"
        "time.sleep(600)"
    )
    running = asyncio.create_task(programs.run(first, TASK, heard, {}))
    await until(ready.is_set)
    [folder] = heard.said[0]["events"]
    second = python(
        "import json, os, signal\nfound = {}\n"
        f"try: found['file'] = open({folder + '/secret'!r}).read()\nexcept OSError: pass\n"
        "for pid in range(2, 100000):\n"
        "    if pid in (os.getpid(), os.getppid()): continue\n"
        "    try: os.kill(pid, 0); found[pid] = True\n    except OSError: pass\n"
        "print(json.dumps(found))"
    )
    answer = await soon(programs.run(second, TASK, Heard(), {}))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert answer.result == {}


async def test_a_function_of_an_untrusted_queue_is_never_run_in_the_wrapper(
    world: Bench, isolation: Isolation, shared: Path
) -> None:
    (shared / "udf.py").write_text("import os\ndef work(task):\n    return [os.getpid(), task['config']['n']]\n")
    world.start(function="udf:work", isolation=isolation, trusted=False, read=[shared])

    assert await world.runs_one() == "ack"
    if python_of(isolation.way) != sys.executable:  # root does not stay root only because its Python is nobody else's
        assert "must lie where every user can run it" in world.report()["error_message"]
        return
    pid, number = world.report()["result"]
    assert (pid != os.getpid(), number) == (True, 1)


async def test_what_it_says_goes_through_the_wrapper_under_the_fence_of_its_own_task(
    world: Bench, isolation: Isolation
) -> None:
    lie = {"say": "publish", "task_id": "another", "attempt": 99, "lease_token": "guessed", "batch_uri": "s3://x"}
    world.start(command=["printf", "%s\n", json.dumps(lie)], isolation=isolation, trusted=False)

    assert await world.runs_one() == "ack"
    [publish] = world.dispatcher.requests_for("buffer-publish")
    [claim] = world.dispatcher.requests_for("task-claim")
    assert (publish.body["task_id"], publish.body["attempt"]) == (claim.body["task_id"], 1)
    assert publish.body["lease_token"] != "guessed"


# --------------------------------------------------------------------------------------------- where there is no way


async def test_without_any_way_to_isolate_it_an_untrusted_task_is_refused_with_the_reason(world: Bench) -> None:
    world.start(
        command=["true"], isolation=Isolation(None, ("namespaces: not permitted", "landlock: not there")), trusted=False
    )

    assert await world.runs_one() == "ack"
    assert world.report()["status"] == "Failed"
    assert world.report()["error"]["retryable"] is False
    assert world.report()["error_message"] == (
        "refused: this machine cannot isolate untrusted code: namespaces: not permitted; landlock: not there"
    )


def test_where_processes_cannot_be_counted_a_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "can_see_children", lambda: False)

    with pytest.raises(start.Refused, match="cannot be bounded"):
        start._fork_under_supervisor({"group": None})


def test_a_way_that_lets_a_secret_through_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The key lies where every program may read: no way of isolation helps then, and that is noticed."""
    found = find_isolation([Path("/usr/bin/env")])

    assert found.way is None
    assert all("/usr/bin/env can be read" in reason for reason in found.reasons[:1])


def test_an_operator_may_not_be_shown_a_folder_with_the_key_in_it(certificate: Files, authority: Any) -> None:
    flags = {
        "server": "https://localhost", "queues": ["q"], "certificate": str(certificate.certificate),
        "key": str(certificate.key), "ca": str(authority.certificate),
        "operators": {"work": {"command": ["true"], "trusted": False, "read": [str(certificate.key.parent)]}},
    }  # fmt: skip
    with pytest.raises(Invalid, match="which only the wrapper may read"):
        read_config(None, flags)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_the_other_user_cannot_read_is_named(certificate: Files, authority: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    flags = {
        "server": "https://localhost", "queues": ["q"], "certificate": str(certificate.certificate),
        "key": str(certificate.key), "ca": str(authority.certificate),
        "operators": {"work": {"command": ["true"], "trusted": False, "read": [str(tmp_path)]}},
    }  # fmt: skip
    with pytest.raises(Invalid, match="must be readable by all users"):
        read_config(None, flags)
