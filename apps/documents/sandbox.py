"""The sandbox of the process that reads documents. It limits the harm of a document that takes over the process.

On Linux, the process can compute, read the Python installation, read the document whose descriptor it received, and
answer. It can open no other file, write no file, start no program, connect to nothing and signal no other process. On
other systems, only the parent's limits on time and memory apply.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from edge.apps.documents.landlock import allow_reading_only
from edge.apps.documents.seccomp import ALLOW, Only, forbid_new_privileges, refusal, restrict

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
