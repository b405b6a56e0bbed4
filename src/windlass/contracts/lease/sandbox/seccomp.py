"""The allow-list of system calls for a sandboxed program, as a seccomp filter.

It allows no sockets except connected pairs, no namespaces, no mounts, no access to another process's memory, no keys,
and no administrator calls. Calls that programs expect to be refused get EPERM. Every other call, including those of
future kernels, gets ENOSYS, for which C libraries have a fallback.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from .system import MACHINE, PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, PR_SET_SECCOMP, prctl
from .system_calls import ALLOWED, NAMESPACES_ONLY, REFUSED

MODE_FILTER = 2
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, GREATER, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
X32 = 0x40000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag
STREAM, SEQPACKET, TYPE_MASK = 1, 5, 0xF  # a datagram socket could send to any socket in the file system
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # these inject input into a terminal
PR_SET_DUMPABLE = 4
HIDE_FROM_SUPERVISOR = (PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER)

Code = list[bytes]


def restrict(*, in_namespaces: bool) -> None:
    """Install the filter for this process and all that it starts. Needs `no_new_privs`."""
    if MACHINE not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"there is no system call filter for {MACHINE}")
    code = program(in_namespaces=in_namespaces)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filled = Program(len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(filled), name="prctl")


def program(*, in_namespaces: bool, machine: str = MACHINE) -> bytes:
    """The filter as BPF bytecode. `in_namespaces`: the program sees no other processes or files."""
    column = list(ARCHITECTURES).index(machine)

    def numbers(names: Iterable[str]) -> list[int]:
        return [
            number for name in names if (number := {**ALLOWED, **NAMESPACES_ONLY, **REFUSED}[name][column]) is not None
        ]

    checked_by_argument = _checked_by_argument(in_namespaces=in_namespaces)
    allowed = [
        name for name in (*ALLOWED, *(NAMESPACES_ONLY if in_namespaces else ())) if name not in checked_by_argument
    ]
    refused = [*REFUSED, *(() if in_namespaces else NAMESPACES_ONLY)]
    code = [_step(LOAD, 0, 0, ARCHITECTURE), _step(EQUAL, 1, 0, ARCHITECTURES[machine]), _answer(KILL)]
    code += [_step(LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":  # x32 has the same calls under other numbers
        code += [_step(AT_LEAST, 0, 1, X32), _error(errno.EPERM)]
    for name, block in checked_by_argument.items():
        for number in numbers([name]):
            code += [_step(EQUAL, 0, len(block), number), *block]
    code += _those(numbers(allowed), _answer(ALLOW))
    code += _those(numbers(refused), _error(errno.EPERM))
    return b"".join([*code, _error(errno.ENOSYS)])


def _checked_by_argument(*, in_namespaces: bool) -> dict[str, Code]:
    """Calls that are allowed only with some arguments. A filter cannot read the flags of `clone3`, so it is on no list
    and programs fall back to `clone`."""
    options = () if in_namespaces else HIDE_FROM_SUPERVISOR
    return {
        "clone": [_load(0), _step(ANY_BIT, 0, 1, NEW_NAMESPACES), _error(errno.EPERM), _answer(ALLOW)],
        "prlimit64": [_load(0), _step(EQUAL, 1, 0, 0), _error(errno.EPERM), _answer(ALLOW)],  # its own limits only
        "socketpair": [
            _load(1), _step(AND, 0, 0, TYPE_MASK), _step(EQUAL, 2, 0, STREAM), _step(EQUAL, 1, 0, SEQPACKET),
            _error(errno.EPERM), _answer(ALLOW),
        ],
        "ioctl": [_load(1), *_those([TIOCSTI, TIOCLINUX], _error(errno.EPERM)), _answer(ALLOW)],
        "prctl": [_load(0), *_those(options, _error(errno.EPERM)), _answer(ALLOW)],
    }  # fmt: skip


def _those(numbers: Iterable[int], answer: bytes) -> Code:
    """Give `answer` for each of these numbers, tested by ranges. Keeps the loaded value for the next test."""
    code: Code = []
    for first, last in _ranges(numbers):
        code += [_step(AT_LEAST, 0, 2, first), _step(GREATER, 1, 0, last), answer]
    return code


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def _load(argument: int) -> bytes:
    """Load the lower half of an argument, which is all that these calls use."""
    return _step(LOAD, 0, 0, ARGUMENTS + 8 * argument)


def _answer(value: int) -> bytes:
    return _step(RETURN, 0, 0, value)


def _error(number: int) -> bytes:
    return _answer(ERROR | number)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
