"""Limits a process's access to files by the Linux kernel (Landlock, Linux 5.13 and newer).

This module makes the system calls itself (Documentation/userspace-api/landlock.rst). The only package for Landlock on
PyPI is a development release that supports only the first version of the interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, equal on every architecture."""

_ASK_VERSION = 1
_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Number of file rights in each version of the interface, which are the lowest bits. Later versions have as many."""

_NETWORK_VERSION, _NETWORK_RIGHTS = 4, 0b11  # rights to bind and to connect TCP ports
_SCOPE_VERSION, _SCOPES = 6, 0b11  # connections to abstract Unix sockets of others, and signals to others


def version() -> int:
    """The version of the kernel's interface; 0 if the kernel has none or has disabled it."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_call(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def allow_reading_only(places: Iterable[Path]) -> None:
    """Limits this thread and its children to reading files below `places`. They can no longer open, create or change
    other files. Open files stay open. If the kernel's version supports it, TCP connections and signals to outside
    processes are forbidden, too. The limits cannot be removed.

    The process must first call `forbid_new_privileges`.

    Args:
        places: files and folders; missing ones are skipped.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    known = version()
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
