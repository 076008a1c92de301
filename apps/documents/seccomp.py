"""Limits the system calls of a process by the Linux kernel (seccomp, mode 2).

A filter is a program in the kernel's packet filter language (Documentation/userspace-api/seccomp_filter.rst). This
module writes the program itself instead of using `pyseccomp`. That package needs the system's libseccomp, which slim
images lack, and runs `ldconfig` or a compiler at every import to find it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass

KILL_PROCESS = 0x8000_0000
"""The process ends at once with SIGSYS."""

ALLOW = 0x7FFF_0000

_ERRNO = 0x0005_0000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38
_LOAD, _AND, _RETURN, _EQUAL, _AT_LEAST = 0x20, 0x54, 0x06, 0x15, 0x35
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in the kernel's `struct seccomp_data`. An argument has 8 bytes, the low half first."""

_X32 = 0x4000_0000
"""A bit in the system call numbers of x86-64's second, rarely built interface, which could bypass the filter."""

_ARCHITECTURES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_NUMBERS = {
    # x86-64, AArch64; None if the architecture has no such call.
    "access": (21, None), "arch_prctl": (158, None), "brk": (12, 214), "clock_getres": (229, 114),
    "clock_gettime": (228, 113), "clock_nanosleep": (230, 115), "clone": (56, 220), "close": (3, 57),
    "connect": (42, 203), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "exit": (60, 93),
    "exit_group": (231, 94), "faccessat": (269, 48), "faccessat2": (439, 439), "fcntl": (72, 25), "fstat": (5, 80),
    "futex": (202, 98), "getcwd": (79, 17), "getdents64": (217, 61), "getegid": (108, 177), "geteuid": (107, 175),
    "getgid": (104, 176), "getpid": (39, 172), "getppid": (110, 173), "getrandom": (318, 278), "getrusage": (98, 165),
    "gettid": (186, 178), "gettimeofday": (96, 169), "getuid": (102, 174), "lseek": (8, 62), "lstat": (6, None),
    "madvise": (28, 233), "membarrier": (324, 283), "mmap": (9, 222), "mprotect": (10, 226), "mremap": (25, 216),
    "munmap": (11, 215), "nanosleep": (35, 101), "newfstatat": (262, 79), "open": (2, None), "openat": (257, 56),
    "poll": (7, None), "ppoll": (271, 73), "pread64": (17, 67), "preadv": (295, 69), "prlimit64": (302, 261),
    "read": (0, 63), "readlink": (89, None), "readlinkat": (267, 78), "readv": (19, 65), "recvmsg": (47, 212),
    "restart_syscall": (219, 128), "rseq": (334, 293), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sched_getaffinity": (204, 123), "sched_yield": (24, 124),
    "set_robust_list": (273, 99), "set_tid_address": (218, 96), "sigaltstack": (131, 132), "socket": (41, 198),
    "stat": (4, None), "statx": (332, 291), "sysinfo": (99, 179), "tgkill": (234, 131), "time": (201, None),
    "times": (100, 153), "uname": (63, 160), "write": (1, 64), "writev": (20, 66),
}  # fmt: skip
"""Numbers of the system calls that rules may name, from the kernel's tables. The numbers never change."""


@dataclass(frozen=True, slots=True)
class Only:
    """A condition on one argument of a call, a number of at most 32 bits: its bits in `mask` must equal `value`."""

    argument: int
    value: int
    mask: int = 0xFFFF_FFFF


def refusal(number: int) -> int:
    """The action that makes a call fail with this `errno`."""
    return _ERRNO | number


def restrict(calls: Mapping[str, Only | None], action: int, otherwise: int) -> None:
    """Filters all later system calls of this process and its children. The filter cannot be removed.

    Args:
        calls: names of system calls; with a condition, only calls that meet it match.
        action: the action for matching calls.
        otherwise: the action for all other calls.

    Raises:
        OSError: the kernel has no filters, or rejects this one.
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        raise OSError(0, f"no filter of system calls is known for {sys.platform} on {machine}")
    program = _program(machine, calls, action, otherwise)
    code = (ctypes.c_uint64 * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    forbid_new_privileges()
    # `struct sock_fprog`: the number of instructions and their address.
    header = (ctypes.c_size_t * 2)(len(program), ctypes.addressof(code))
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), header, ctypes.c_ulong(0), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def forbid_new_privileges() -> None:
    """Forbids programs that this process starts to gain rights from their owner (setuid) or from capabilities.

    Raises:
        OSError: the kernel is older than Linux 3.5.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    one, nothing = ctypes.c_ulong(1), ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, one, nothing, nothing, nothing):
        raise OSError(ctypes.get_errno(), f"no new privileges: {os.strerror(ctypes.get_errno())}")


def _program(machine: str, calls: Mapping[str, Only | None], action: int, otherwise: int) -> list[int]:
    """The instructions of the filter, 8 bytes each."""
    program = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_AT),
    ]
    if machine == "x86_64":
        program += [_instruction(_AT_LEAST, _X32, 0, 1), _instruction(_RETURN, KILL_PROCESS)]
    column = list(_ARCHITECTURES).index(machine)
    for name, only in calls.items():
        number = _NUMBERS[name][column]
        if number is None:
            continue
        if only is None:
            program += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, action)]
            continue
        program += [
            _instruction(_EQUAL, number, 0, 5),
            _instruction(_LOAD, _ARGUMENTS_AT + 8 * only.argument),
            _instruction(_AND, only.mask),
            _instruction(_EQUAL, only.value, 0, 1),
            _instruction(_RETURN, action),
            _instruction(_RETURN, otherwise),
        ]
    return [*program, _instruction(_RETURN, otherwise)]


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> int:
    """`struct sock_filter` as one little-endian number: code, two jumps, operand."""
    return code | if_true << 16 | if_false << 24 | operand << 32
