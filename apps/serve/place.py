"""Where a running server is found by its own user: a Unix socket and a note beside it, in a folder of the owner's.

The command line asks here before it loads anything else, so nothing heavy is imported.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import platformdirs

from edge.errors import StorageError

_SOCKET, _NOTE = "serve.sock", "serve.json"
_LONGEST = 100
"""Bytes of a socket's path; systems allow 104 to 108."""

_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2
"""macOS's options that tell who is at the other end (<sys/un.h>)."""


def folder_path() -> Path:
    """The folder of the socket, which need not exist."""
    with warnings.catch_warnings():  # where the system names no such folder, the one it falls back to is checked
        warnings.simplefilter("ignore")
        return platformdirs.user_runtime_path("edge-rag", appauthor=False)


def runtime_folder() -> Path:
    """The folder of the socket, made if it is missing; only its owner may enter it.

    Raises:
        StorageError: it cannot be made, or others may enter it.
    """
    folder = folder_path()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
        if hasattr(os, "getuid"):
            if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
                raise StorageError(f"{folder} belongs to somebody else, so no socket is made there")
            if stat.S_IMODE(found.st_mode) & 0o077:
                folder.chmod(0o700)
    except OSError as error:
        raise StorageError(f"{folder} cannot be made: {error.strerror}") from error
    return folder


def socket_path() -> Path | None:
    """The server's socket, whether a server runs or not; None where the system has none."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    path = runtime_folder() / _SOCKET
    return path if len(os.fsencode(path)) <= _LONGEST else None


def own_socket() -> Path | None:
    """The socket of a server that this user has started; None if there is none, or if anybody else could have put it
    there. Nothing is made or changed."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    folder = folder_path()
    path = folder / _SOCKET
    try:
        around, found = folder.lstat(), path.lstat()
    except OSError:
        return None
    own = os.getuid()
    private = stat.S_ISDIR(around.st_mode) and around.st_uid == own and not stat.S_IMODE(around.st_mode) & 0o077
    return path if private and stat.S_ISSOCK(found.st_mode) and found.st_uid == own else None


def is_own(connected: socket.socket) -> bool:
    """Whether the process at the other end of a Unix socket belongs to this user, as the system says."""
    if hasattr(socket, "SO_PEERCRED"):  # Linux: pid, uid, gid
        _, owner, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    elif sys.platform == "darwin":  # struct xucred of <sys/ucred.h>: version, uid, groups
        _, owner = struct.unpack_from("=2I", connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76))
    else:
        return False
    return bool(owner == os.getuid())


def peer_pid(connected: socket.socket) -> int | None:
    """The process that listens at the other end of a Unix socket; None if it is another user's, or is not known."""
    if not is_own(connected):
        return None
    if hasattr(socket, "SO_PEERCRED"):
        found = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    else:
        found = struct.unpack("i", connected.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))[0]
    return int(found)


def reach(path: Path, seconds: float = 2.0) -> socket.socket:
    """A connection to the process that listens on a Unix socket. The process need not answer.

    Args:
        seconds: time for the process to accept the connection; it stays the connection's timeout.

    Raises:
        OSError: no process listens there, or it does not accept the connection in time.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(seconds)
        made.connect(str(path))
    except BaseException:
        made.close()
        raise
    return made


def listen(path: Path) -> socket.socket:
    """A listening socket that only its owner can open.

    Raises:
        StorageError: a server listens there already, or the socket cannot be made.
    """
    try:
        reach(path).close()
    except OSError:
        pass
    else:
        raise StorageError(f"a server of yours runs already and listens on {path}")
    path.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise StorageError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        os.umask(before)
    made.listen(128)
    return made


def write_note(note: dict[str, Any]) -> Path:
    """Leaves a note on the running server beside its socket; returns where."""
    path = runtime_folder() / _NOTE
    path.write_text(json.dumps(note), "utf-8")
    path.chmod(0o600)
    return path


def read_note() -> dict[str, Any] | None:
    """The note of the last server; None if there is none."""
    try:
        found = json.loads((runtime_folder() / _NOTE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
