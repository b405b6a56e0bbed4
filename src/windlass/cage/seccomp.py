"""Which questions to the kernel a caged program may not ask: a filter that answers them with «not permitted».

No sockets of any kind (`socketpair` stays), no namespaces, no mounts, no other process's memory, no keys, nothing that
only administrators need. What follows from a call being refused is the program's own business.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from .system import MACHINE, PR_SET_SECCOMP, call

MODE_FILTER = 2
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4  # where these are in what the filter is shown
FIRST_ARGUMENT = 16
X32 = 0x40000000
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW… flag

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# name: number on x86_64, number on aarch64 (None: it has none)
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "move_mount": (429, 429),
    "open_tree": (428, 428), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "process_madvise": (440, 440), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "iopl": (172, None), "ioperm": (173, None),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "lookup_dcookie": (212, 18),
    "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "prlimit64": (302, 261),
    "setsid": (112, 157), "setpgid": (109, 154), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "setxattrat": (463, 463), "removexattrat": (466, 466), "utime": (132, None), "utimes": (235, None),
    "futimesat": (261, None), "utimensat": (280, 88),
}  # fmt: skip
_names = list(NUMBERS)
# Where others can be seen: to leave the group in which one is killed, to slow others down, to change the rights and
# times of their files, at which Landlock does not look.
AMONG_OTHERS = _names[_names.index("setsid") :]
ALWAYS = [name for name in _names[: _names.index("setsid")] if name not in ("clone", "clone3", "prlimit64")]


def refuse(*, among_others: bool) -> None:
    """From now on, for this process and all that it starts. Needs `no_new_privs`."""
    if MACHINE not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {MACHINE}")
    code = program([*ALWAYS, *(AMONG_OTHERS if among_others else ())])
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filled = Program(len(code) // 8, ctypes.addressof(buffer))
    call(
        "prctl", PR_SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), ctypes.byref(filled), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


def program(names: list[str], machine: str = MACHINE) -> bytes:
    """The filter, in the language of the kernel's packet filter. Every jump is to the next instructions only."""
    column = list(ARCHITECTURES).index(machine)
    numbers = [number for name in names if (number := NUMBERS[name][column]) is not None]
    refused, unknown = _error(errno.EPERM), _error(errno.ENOSYS)
    code = [_step(LOAD, 0, 0, ARCHITECTURE), _step(EQUAL, 1, 0, ARCHITECTURES[machine]), _step(RETURN, 0, 0, KILL)]
    code += [_step(LOAD, 0, 0, NUMBER)]
    if machine == "x86_64":  # the same calls under other numbers
        code += [_step(AT_LEAST, 0, 1, X32), refused]
    for number in numbers:
        code += [_step(EQUAL, 0, 1, number), refused]
    code += [
        _step(EQUAL, 0, 1, NUMBERS["clone3"][column] or 0),
        unknown,
    ]  # its flags cannot be seen; `clone` is used then
    flags = [
        _step(LOAD, 0, 0, FIRST_ARGUMENT),
        _step(ANY_BIT, 0, 1, NEW_NAMESPACES),
        refused,
        _step(RETURN, 0, 0, ALLOW),
    ]
    code += [_step(EQUAL, 0, len(flags), NUMBERS["clone"][column] or 0), *flags]
    of_another = [_step(LOAD, 0, 0, FIRST_ARGUMENT), _step(EQUAL, 1, 0, 0), refused, _step(RETURN, 0, 0, ALLOW)]
    code += [_step(EQUAL, 0, len(of_another), NUMBERS["prlimit64"][column] or 0), *of_another]
    return b"".join([*code, _step(RETURN, 0, 0, ALLOW)])


def _error(number: int) -> bytes:
    return _step(RETURN, 0, 0, ERROR | number)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
