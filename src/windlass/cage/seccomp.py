"""Which questions to the kernel a caged program may ask: a filter that passes what is on a list, and nothing else.

No sockets of any kind but connected pairs, no namespaces, no mounts, no other process's memory, no keys, nothing that
only administrators need. Calls that programs know to be refused are «not permitted»; every other one, also those that
the next kernel brings, is «not implemented», to which C libraries have an answer.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterable

from .numbers import ALLOWED, ALONE, REFUSED
from .system import MACHINE, PR_SET_SECCOMP, call

MODE_FILTER = 2
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, GREATER, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # where these are in what the filter is shown
X32 = 0x40000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag
STREAM, SEQPACKET, TYPE_MASK = 1, 5, 0xF  # datagrams could be sent to any socket that is a file
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # they type into a terminal
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36  # they hide from whoever watches

Code = list[bytes]


def restrict(*, alone: bool) -> None:
    """From now on, for this process and all that it starts. Needs `no_new_privs`. `alone`: nobody else is in sight."""
    if MACHINE not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {MACHINE}")
    code = program(alone=alone)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filled = Program(len(code) // 8, ctypes.addressof(buffer))
    call(
        "prctl", PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(filled), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


def program(*, alone: bool, machine: str = MACHINE) -> bytes:
    """The filter, in the language of the kernel's packet filter."""
    column = list(ARCHITECTURES).index(machine)

    def numbers(names: Iterable[str]) -> list[int]:
        return [number for name in names if (number := {**ALLOWED, **ALONE, **REFUSED}[name][column]) is not None]

    looked_at = _looked_at(alone=alone)
    allowed = [name for name in (*ALLOWED, *(ALONE if alone else ())) if name not in looked_at]
    refused = [*REFUSED, *(() if alone else ALONE)]
    code = [_step(LOAD, 0, 0, ARCHITECTURE), _step(EQUAL, 1, 0, ARCHITECTURES[machine]), _answer(KILL)]
    code += [_step(LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":  # the same calls under other numbers
        code += [_step(AT_LEAST, 0, 1, X32), _error(errno.EPERM)]
    for name, block in looked_at.items():
        for number in numbers([name]):
            code += [_step(EQUAL, 0, len(block), number), *block]
    code += _those(numbers(allowed), _answer(ALLOW))
    code += _those(numbers(refused), _error(errno.EPERM))
    return b"".join([*code, _error(errno.ENOSYS)])


def _looked_at(*, alone: bool) -> dict[str, Code]:
    """Calls that are allowed with some arguments only. The flags of `clone3` cannot be seen: it is on no list, and
    `clone` is used in its place."""
    options = () if alone else (PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER)
    return {
        "clone": [_load(0), _step(ANY_BIT, 0, 1, NEW_NAMESPACES), _error(errno.EPERM), _answer(ALLOW)],
        "prlimit64": [_load(0), _step(EQUAL, 1, 0, 0), _error(errno.EPERM), _answer(ALLOW)],  # one's own only
        "socketpair": [
            _load(1), _step(AND, 0, 0, TYPE_MASK), _step(EQUAL, 2, 0, STREAM), _step(EQUAL, 1, 0, SEQPACKET),
            _error(errno.EPERM), _answer(ALLOW),
        ],
        "ioctl": [_load(1), *_those([TIOCSTI, TIOCLINUX], _error(errno.EPERM)), _answer(ALLOW)],
        "prctl": [_load(0), *_those(options, _error(errno.EPERM)), _answer(ALLOW)],
    }  # fmt: skip


def _those(numbers: Iterable[int], answer: bytes) -> Code:
    """The answer to each of them, by ranges; what was loaded stays for what follows."""
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
    """The lower half of an argument, which is all that these calls look at."""
    return _step(LOAD, 0, 0, ARGUMENTS + 8 * argument)


def _answer(value: int) -> bytes:
    return _step(RETURN, 0, 0, value)


def _error(number: int) -> bytes:
    return _answer(ERROR | number)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
