"""The sandbox of the process that reads documents. It limits the harm of a document that takes over the process.

On Linux, the process can compute, read the Python installation, read the document whose descriptor it received, and
answer. It can open no other file, write no file, start no program, connect to nothing and signal no other process. On
other systems, only the parent's limits on time and memory apply.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from edge.apps.documents.seccomp import ALLOW, Only, forbid_new_privileges, refusal, restrict

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, equal on every architecture."""

_ASK_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights in each version of the interface, which are the lowest bits. Later versions have as many."""

_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 0b11  # rights to bind and to connect TCP ports
_SCOPE_VERSION, _SCOPES = 6, 0b11  # connections to abstract Unix sockets of others, and signals to others


def landlock_version() -> int:
    """The version of the kernel's interface; 0 if the kernel has none or has disabled it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_call(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def allow_reading_only(places: Iterable[Path]) -> None:
    """Limits this thread and its children to reading files below `places`. They can no longer open, create or change
    other files. Open files stay open. If the kernel's version supports it, TCP connections and signals to outside
    processes are forbidden, too. The limits cannot be removed.

    The system calls of Landlock (Linux 5.13 and newer, Documentation/userspace-api/landlock.rst) are made here, because
    the only package for it on PyPI is a development release that supports only the first version of the interface.
    The process must first call `forbid_new_privileges`.

    Args:
        places: files and folders; missing ones are skipped.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    known = landlock_version()
    if not known:
        raise OSError(0, "this kernel has no Landlock")
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
    "lxml",
    "pypdfium2",
    "pypdfium2_raw",
    "markdown_it",
    "charset_normalizer",
    "tree_sitter",
    "numpy",
    "onnxruntime",
    "PIL",
    "rapidocr_onnxruntime",
)
"""Packages that extractors import with the first document of a kind."""

_OURS = ("edge.runtimes",)
"""Packages of ours that extractors import late. An editable installation keeps them in another folder."""

_CLONE_THREAD = 0x0001_0000
_SYSTEM = (
    # Shared libraries, their cache, and places of packages whose libraries refer to each other by full paths.
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store", "/gnu/store",
    # Fonts, with which the PDF library measures letters of documents without embedded fonts.
    "/usr/share/fonts", "/usr/local/share/fonts", "/usr/share/X11/fonts",
)  # fmt: skip
_CALLS = (
    "access", "arch_prctl", "brk", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "dup", "dup2",
    "dup3", "exit", "exit_group", "faccessat", "faccessat2", "fcntl", "fstat", "futex", "getcwd", "getdents64",
    "getegid", "geteuid", "getgid", "getpid", "getppid", "getrandom", "getrusage", "gettid", "gettimeofday",
    "getuid", "lseek", "lstat", "madvise", "membarrier", "mmap", "mprotect", "mremap", "munmap", "nanosleep",
    "newfstatat", "open", "openat", "poll", "ppoll", "pread64", "preadv", "read", "readlink", "readlinkat", "readv",
    "recvmsg", "restart_syscall", "rseq", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sched_getaffinity",
    "sched_yield", "set_robust_list", "set_tid_address", "sigaltstack", "stat", "statx", "sysinfo", "time", "times",
    "uname", "write", "writev",
)  # fmt: skip
"""System calls that a computing and reading interpreter needs. All others fail as if the kernel did not have them, so
that the C library uses an older way if there is one."""


def enter(*, everything_importable: bool) -> dict[str, bool | str]:
    """Restricts this process permanently.

    Args:
        everything_importable: allows reads anywhere on the import path, which plug-ins need.

    Returns:
        For each part of the sandbox, True if it is in force, or the reason why it is not.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0"):
        return {name: f"switched off by {SWITCH}" for name in ("files", "system calls")}
    if sys.platform != "linux":
        return {name: f"not available on {sys.platform}" for name in ("files", "system calls")}
    calls: dict[str, Only | None] = dict.fromkeys(_CALLS)
    calls["clone"] = Only(0, _CLONE_THREAD, _CLONE_THREAD)  # threads but no processes
    calls["tgkill"] = Only(0, os.getpid())  # a process aborts by signalling itself
    places = [*_readable(everything_importable)]
    found: dict[str, bool | str] = {}
    try:
        forbid_new_privileges()
        allow_reading_only(places)
        found["files"] = True
    except OSError as error:
        found["files"] = error.strerror or str(error)
    try:
        restrict(calls, ALLOW, refusal(errno.ENOSYS))
        found["system calls"] = True
    except OSError as error:
        found["system calls"] = error.strerror or str(error)
    return found


def _readable(everything_importable: bool) -> Iterator[Path]:
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
    if everything_importable:
        yield from map(Path, sys.path)
