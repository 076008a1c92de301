"""The sandbox of the process that reads documents: what a document that took it over could still do.

On Linux: compute, read the Python installation, read the document whose descriptor it was given, and answer. It opens
no other file, writes none, starts no program, makes no connection and signals nobody. Elsewhere only limits of time and
memory are in force, which the parent process holds.
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
"""Set to `off`, documents are read without a sandbox: for systems on which it is in the way."""

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
"""Packages that extractors import when the first document of a kind comes."""

_OURS = ("edge.runtimes",)
"""Packages of ours that extractors import late, and that an editable installation keeps in another place."""

_CLONE_THREAD = 0x0001_0000
_SYSTEM = (
    # Shared libraries, the list of them, and the places of packages whose libraries name each other by full paths.
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/nix/store", "/gnu/store",
    # Fonts, by which the PDF library measures letters of documents that bring none.
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
"""What an interpreter that computes and reads may ask of the kernel. All else fails as if the kernel did not know it:
the C library then takes an older way where it has one."""


def enter(*, everything_importable: bool) -> dict[str, bool | str]:
    """Shuts this process in, for good.

    Args:
        everything_importable: let it read whatever is on the import path, which plug-ins need.

    Returns:
        For each part of the sandbox, whether it is in force, or why not.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0"):
        return {name: f"switched off by {SWITCH}" for name in ("files", "system calls")}
    if sys.platform != "linux":
        return {name: f"not available on {sys.platform}" for name in ("files", "system calls")}
    calls: dict[str, Only | None] = dict.fromkeys(_CALLS)
    calls["clone"] = Only(0, _CLONE_THREAD, _CLONE_THREAD)  # threads, and no processes
    calls["tgkill"] = Only(0, os.getpid())  # how a process ends itself by a signal
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
    """Files and folders that modules and libraries are loaded from."""
    yield from map(Path, _SYSTEM)
    for name in ("stdlib", "platstdlib"):
        yield Path(sysconfig.get_path(name))
    for module in list(sys.modules.values()):
        yield from map(Path, getattr(module, "__path__", ()))
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent.parent  # the folder of packages, which holds their libraries, too
    for name in _OURS:
        spec = importlib.util.find_spec(name)
        yield from map(Path, (spec.submodule_search_locations if spec is not None else None) or ())
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if "/" in line}
    yield from (Path(name).parent for name in mapped if ".so" in name)
    if everything_importable:
        yield from map(Path, sys.path)
