"""Files that are written whole or not at all, and JSON documents with a checksum. Tables that only save time, because
they can be made again, are stored with `remember`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.errors import CorruptBlock, StorageError, as_storage_error
from edge.files.named_file import make_folder, read_small

CHECKSUM = "sha256"
"""The key of the checksum, which is the last key."""


def digest(content: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a document. It does not depend on the order of the keys."""
    import hashlib  # slow to import, and most short commands read no such file

    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> bytes:
    """A document as JSON with its checksum. Keys must be strings, and `sha256` is not allowed."""
    return (json.dumps({**content, CHECKSUM: digest(content)}, indent=1) + "\n").encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document that was passed to `sealed`. ValueError, which tells the difference, if the bytes are others."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.pop(CHECKSUM, None) != digest(content):
            raise ValueError("its content does not match its checksum")
        # The checksum covers the content only. This test finds changes that JSON ignores, such as white space or
        # repeated keys.
        if sealed(content) != data:
            raise ValueError("it is not as it was written")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    replace(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The document that `write_sealed` wrote; None if there is no file."""
    try:
        data = read_small(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return unsealed(data)
    except ValueError as error:
        raise CorruptBlock(f"{path} is damaged: {error}") from error


def replace(path: Path, data: bytes, *, private: bool = False) -> None:
    """Writes a file under another name, flushes it, renames it into place and flushes the folder. A `private` file can
    be read by its owner only. Drafts of processes that have ended are removed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with as_storage_error(f"{path} cannot be written"):
        make_folder(path.parent)
        for other in path.parent.glob(f".{path.name}.*"):
            if is_abandoned(other):
                with suppress(OSError):
                    other.unlink(missing_ok=True)
        try:
            mode = 0o600 if private else 0o666
            with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        flush(path.parent)


def flush(path: Path) -> None:
    """Makes a file durable, or the names in a folder. Windows does the latter by itself."""
    folder = path.is_dir()
    if folder and os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_abandoned(draft: Path, mark: str = ".") -> bool:
    """Whether the name of a draft ends, behind `mark`, with the number of a process that has ended."""
    import psutil  # imported here, because reading needs none of it

    owner = draft.name.rpartition(mark)[2]
    return owner.isdigit() and not psutil.pid_exists(int(owner))


def recall(path: Path, what: str) -> dict[str, Any]:
    """The table at a path; an empty one if there is none or it cannot be read. A damaged table is reported once (as
    `what`, in the log or on stderr) and removed."""
    try:
        return read_sealed(path) or {}
    except (CorruptBlock, StorageError) as error:
        import logging  # imported here, because it is seldom needed

        logging.getLogger("edge").warning("edge: %s; %s are found out anew", error, what)
        if isinstance(error, CorruptBlock):
            with suppress(OSError):
                path.unlink(missing_ok=True)
    return {}


def remember(path: Path, content: Mapping[str, Any]) -> None:
    """Stores a table for later. If that fails, nothing is stored, since only time depends on it."""
    with suppress(StorageError):
        write_sealed(path, content)
