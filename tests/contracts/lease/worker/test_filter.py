"""The filter of system calls: what it passes on each machine, and that ordinary programs live with it."""

from __future__ import annotations

import errno
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.lease.worker.test_escape import Python, isolation, programs, python, python_of
from tests.contracts.lease.worker.test_program import TASK, Heard
from tests.kit.work import soon

from windlass.contracts.lease.sandbox import seccomp
from windlass.contracts.lease.sandbox.system import MACHINE
from windlass.contracts.lease.sandbox.system_calls import ALLOWED, NAMESPACES_ONLY, REFUSED
from windlass.contracts.lease.worker.child import Programs
from windlass.contracts.lease.worker.isolation import Isolation
from windlass.contracts.lease.worker.operator import Operator, OperatorFailed

pytestmark = pytest.mark.slow

__all__ = ["isolation", "programs", "python"]  # fixtures

MACHINES = list(seccomp.ARCHITECTURES)
LISTED = {**ALLOWED, **NAMESPACES_ONLY, **REFUSED}
LOOKED_AT = {"clone", "prlimit64", "socketpair", "ioctl", "prctl"}
EPERM, ENOSYS = seccomp.ERROR | errno.EPERM, seccomp.ERROR | errno.ENOSYS


def judge(code: bytes, number: int, arguments: tuple[int, ...] = (), architecture: int | None = None) -> int:
    """What the kernel would make of it: the few instructions that we use."""
    machine = architecture or struct.unpack_from("=HBBI", code, 8)[3]
    shown = struct.pack("=IIQ6Q", number, machine, 0, *arguments, *[0] * (6 - len(arguments)))
    steps = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    at = loaded = 0
    while True:
        operation, if_true, if_false, value = steps[at]
        at += 1
        match operation:
            case seccomp.LOAD:
                (loaded,) = struct.unpack_from("=I", shown, value)
            case seccomp.AND:
                loaded &= value
            case seccomp.RETURN:
                return value
            case _:
                holds = {
                    seccomp.EQUAL: loaded == value, seccomp.GREATER: loaded > value, seccomp.AT_LEAST: loaded >= value,
                    seccomp.ANY_BIT: bool(loaded & value),
                }[operation]  # fmt: skip
                at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("in_namespaces", [True, False], ids=["in_namespaces", "among others"])
def test_what_is_on_no_list_is_answered_as_if_there_were_no_such_call(machine: str, in_namespaces: bool) -> None:
    column = MACHINES.index(machine)
    numbers = {name: LISTED[name][column] for name in LISTED}
    passed = {*ALLOWED, *(NAMESPACES_ONLY if in_namespaces else ())}
    by_number = {number: name for name, number in numbers.items() if number is not None}
    code = seccomp.program(in_namespaces=in_namespaces, machine=machine)

    for number in range(1024):
        name = by_number.get(number)
        if name in LOOKED_AT:
            continue
        wanted = ENOSYS if name is None else seccomp.ALLOW if name in passed else EPERM
        assert judge(code, number) == wanted, (number, name)


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_are_looked_at_pass_with_harmless_arguments_only(machine: str) -> None:
    column = MACHINES.index(machine)
    code, isolated = (seccomp.program(in_namespaces=value, machine=machine) for value in (False, True))

    def passes(name: str, *arguments: int, code: bytes = code) -> bool:
        number = LISTED[name][column]
        assert number is not None
        return judge(code, number, arguments) == seccomp.ALLOW

    assert passes("clone", 0x01200011)  # as fork does it
    assert passes("clone", 0x003D0F00)  # as threads are made
    assert not any(passes("clone", flag) for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x08000000))
    assert passes("prlimit64", 0)
    assert not passes("prlimit64", 1)
    assert passes("socketpair", 1, 1 | 0o2000000)
    assert not passes("socketpair", 1, 2 | 0o2000000)
    assert passes("ioctl", 1, 0x5401)
    assert not passes("ioctl", 0, seccomp.TIOCSTI)
    assert passes("prctl", 15)
    assert not passes("prctl", seccomp.PR_SET_DUMPABLE)
    assert passes("prctl", seccomp.PR_SET_DUMPABLE, code=isolated)


def test_a_program_for_another_machine_is_killed() -> None:
    code = seccomp.program(in_namespaces=True, machine="x86_64")

    assert judge(code, 0, architecture=0x40000003) == seccomp.KILL
    assert judge(code, 0x40000000 | 41) == EPERM


HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
LATER = {"setxattrat", "removexattrat", "fchmodat2"}  # than the headers of some that we run on


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip(f"no {HEADERS[machine]}")
    text = HEADERS[machine].read_text()
    said = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    said["newfstatat"] = said.get("fstatat", said.get("newfstatat", -1))
    column = MACHINES.index(machine)

    wrong = {name: (LISTED[name][column], said.get(name)) for name in LISTED if LISTED[name][column] != said.get(name)}
    assert wrong.keys() <= LATER, wrong


# --------------------------------------------------------------------------------------------- programs in the sandbox

KNOWN = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number in {"clone3": 435, "newest": 999, "bpf": NUMBER}.items():
    assert libc.syscall(number, 0, 0, 0, 0, 0) == -1
    found[name] = ctypes.get_errno()
print(json.dumps(found))
"""
PYTHON_LIVES = """
import asyncio, concurrent.futures, decimal, hashlib, json, os, sqlite3, ssl, subprocess, tempfile, threading, zlib
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    out, _ = await process.communicate(b"through a pipe")
    return out.decode(), await asyncio.to_thread(lambda: threading.get_ident() > 0)
said, in_thread = asyncio.run(main())
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    total = sum(pool.map(lambda n: n * n, range(100)))
with tempfile.NamedTemporaryFile(dir=".") as file:
    base = sqlite3.connect(file.name)
    base.execute("create table t (n)"); base.execute("insert into t values (1)"); base.commit()
    rows = base.execute("select count(*) from t").fetchone()[0]
shell = subprocess.run("echo b a | tr ' ' '\\\\n' | sort | head -1", shell=True, capture_output=True, text=True).stdout
print(json.dumps([said, in_thread, total, rows, shell.strip(), zlib.crc32(b"x"), len(os.listdir("."))]))
"""
NUMPY = "import numpy; a = numpy.ones((200, 200)); print(int((a @ a).sum()))"
NODE = "const fs = require('fs'); fs.writeFileSync('a', 'x'.repeat(10)); console.log(fs.readFileSync('a').length)"
SHELL = "mkdir d; printf 'b\\na\\n' > d/f; cp d/f g; mv g h; tar cf t d; tar tf t | wc -l; rm -r d; sort h | awk 1 >&2"


async def test_new_and_unknown_calls_are_not_implemented_and_forbidden_ones_not_permitted(
    programs: Programs, python: Python
) -> None:
    number = REFUSED["bpf"][MACHINES.index(MACHINE)]
    answer = await soon(programs.run(python(KNOWN.replace("NUMBER", str(number))), TASK, Heard(), {}))

    assert answer.result == {"clone3": errno.ENOSYS, "newest": errno.ENOSYS, "bpf": errno.EPERM}


async def test_python_lives_in_the_cage(programs: Programs, python: Python) -> None:
    answer = await soon(programs.run(python(PYTHON_LIVES), TASK, Heard(), {}))

    assert answer.result == ["through a pipe", True, 328350, 1, "a", 2363233923, 0]


def commands(way: str | None) -> Iterator[tuple[str, list[str], object]]:
    yield "numpy", [python_of(way), "-c", NUMPY], 8000000
    yield "node", ["node", "-e", NODE], 10
    yield "sh", ["sh", "-c", SHELL], 2
    yield "perl", ["perl", "-e", "open(F, '>', 'x'); print F 'abc'; close F; print -s 'x'"], 3


@pytest.mark.parametrize("name", ["numpy", "node", "sh", "perl"])
async def test_other_programs_live_in_the_cage(programs: Programs, isolation: Isolation, name: str) -> None:
    [(command, wanted)] = [(command, wanted) for known, command, wanted in commands(isolation.way) if known == name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {name} here")
    try:
        await soon(programs.run(Operator(command=command), TASK, Heard(), {}))
    except OperatorFailed as error:
        pytest.skip(f"{name} does not work here at all: {error}")
    answer = await soon(programs.run(Operator(command=command, trusted=False), TASK, Heard(), {}))
    assert answer.result == wanted
