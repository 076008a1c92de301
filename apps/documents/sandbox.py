"""The sandbox of the process that reads documents. On Linux, it can compute, read the Python installation and the
document whose descriptor it received, and answer; it can open no other file, start no program, connect to nothing and
signal nobody. Other systems have only the parent's limits on time and memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KILL_PROCESS = 0x8000_0000

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
    return _ERRNO | number


def restrict(calls: Mapping[str, Only | None], action: int, otherwise: int) -> None:
    """Filters all later system calls of this process and its children, for good, by a program in the kernel's packet
    filter language (Documentation/userspace-api/seccomp_filter.rst). `pyseccomp` needs the system's libseccomp, which
    slim images lack."""
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
    libc = ctypes.CDLL(None, use_errno=True)
    one, nothing = ctypes.c_ulong(1), ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, one, nothing, nothing, nothing):
        raise OSError(ctypes.get_errno(), f"no new privileges: {os.strerror(ctypes.get_errno())}")


def _program(machine: str, calls: Mapping[str, Only | None], action: int, otherwise: int) -> list[int]:
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


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # Numbers of the system calls, equal on every architecture.
_ASK_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""File rights of each version of the interface, which are the lowest bits."""

_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 0b11  # rights to bind and to connect TCP ports
_SCOPE_VERSION, _SCOPES = 6, 0b11  # connections to abstract Unix sockets of others, and signals to others


def landlock_version() -> int:
    """The version of the kernel's interface; 0 if the kernel has none or has disabled it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_call(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def allow_reading_only(places: Iterable[Path]) -> None:
    """Limits this thread and its children to reading files below `places`, for good. Where the kernel can, TCP
    connections and signals to others are forbidden, too. Landlock's system calls
    (Documentation/userspace-api/landlock.rst) are made here: PyPI has no release for all versions."""
    known = landlock_version()
    if not known:
        raise OSError(0, "this kernel has no Landlock")
    forbid_new_privileges()
    rights = (1 << _FILE_RIGHTS[min(known, max(_FILE_RIGHTS))]) - 1
    attributes = [rights]  # `struct landlock_ruleset_attr`, with the fields that the kernel's version knows
    if known >= _NETWORK_VERSION:
        attributes.append(_NETWORK_RIGHTS)
    if known >= _SCOPE_VERSION:
        attributes.append(_SCOPES)
    ruleset = _checked(_CREATE_RULESET, (ctypes.c_uint64 * len(attributes))(*attributes), 8 * len(attributes), 0)
    try:
        for place in places:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _allow(ruleset, place)
        _checked(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, place: Path) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        allowed = _READ_FILE | _READ_DIR if folder else _READ_FILE
        # `struct landlock_path_beneath_attr`: 8 bytes of rights and 4 bytes of a descriptor, packed.
        rule = allowed.to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    passed = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(syscall(ctypes.c_long(number), *passed))


def _checked(number: int, *arguments: object) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result


SWITCH = "EDGE_SANDBOX"
"""An environment variable. `off` turns the sandbox off, for systems where it causes trouble."""

_LIBRARIES = (
    "lxml", "pypdfium2", "pypdfium2_raw", "markdown_it", "charset_normalizer", "tree_sitter", "numpy", "onnxruntime",
    "PIL", "striprtf", "oxmsg", "olefile", "rapidocr_onnxruntime",
)  # fmt: skip
"""Packages that extractors import with the first document of a kind."""

_OURS = ("edge.runtimes", "edge.models")
"""Packages of ours that extractors import late. An editable installation keeps them in another folder."""

_CLONE_THREAD = 0x0001_0000
_FCNTL = 0x0407
"""Commands of `fcntl` that are allowed: copies of descriptors, flags and locks. Others make the kernel signal a
process."""

_SYSTEM = (
    # Shared libraries, their cache, and places of packages whose libraries refer to each other by full paths.
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store", "/gnu/store",
    # Fonts, with which the PDF library measures letters of documents without embedded fonts.
    "/usr/share/fonts", "/usr/local/share/fonts", "/usr/share/X11/fonts",
)  # fmt: skip
_CALLS = (
    "access", "arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "dup", "dup2",
    "dup3", "exit", "exit_group", "faccessat", "faccessat2", "fstat", "futex", "getcwd", "getdents64",
    "getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom", "getrusage", "gettid", "gettimeofday",
    "getuid", "lseek", "lstat", "madvise", "membarrier", "mmap", "mprotect", "mremap", "munmap", "nanosleep",
    "newfstatat", "open", "openat", "poll", "ppoll", "pread64", "preadv", "read", "readlink", "readlinkat", "readv",
    "recvmsg", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity",
    "sched_yield", "set_robust_list", "set_tid_address", "sigaltstack", "stat", "statx", "sysinfo", "time", "times",
    "uname", "write", "writev",
)  # fmt: skip
"""What a computing and reading interpreter needs. Other calls fail as unknown, so that the C library uses older
ones."""


def enter() -> dict[str, bool | str]:
    """Restricts this process for good. Returns True for each part of the sandbox that is in force, or why it is not."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0"):
        return {name: f"switched off by {SWITCH}" for name in ("files", "system calls")}
    if sys.platform != "linux":
        return {name: f"not available on {sys.platform}" for name in ("files", "system calls")}
    calls: dict[str, Only | None] = dict.fromkeys(_CALLS)
    calls["clone"] = Only(0, _CLONE_THREAD, _CLONE_THREAD)  # threads but no processes
    calls["fcntl"] = Only(1, 0, ~_FCNTL & 0xFFFF_FFFF)
    calls["tgkill"] = Only(0, os.getpid())  # a process aborts by signalling itself
    places = [*_readable()]
    return {
        "files": _outcome(lambda: allow_reading_only(places)),
        "system calls": _outcome(lambda: restrict(calls, ALLOW, refusal(errno.ENOSYS))),
    }


def _outcome(confine: Callable[[], None]) -> bool | str:
    try:
        confine()
    except OSError as error:
        return error.strerror or str(error)
    return True


def _readable() -> Iterator[Path]:
    """Files and folders from which modules and libraries are loaded."""
    yield from map(Path, _SYSTEM)
    for name in ("stdlib", "platstdlib"):
        yield Path(sysconfig.get_path(name))
    for module in list(sys.modules.values()):
        yield from map(Path, getattr(module, "__path__", ()))
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent.parent  # site-packages, which also holds the packages' shared libraries
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        yield from map(Path, (spec.submodule_search_locations if spec is not None else None) or ())
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line}
    yield from (Path(name).parent for name in mapped if ".so" in name)
