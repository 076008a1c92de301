"""Files that appear whole or not at all, and JSON documents that carry a checksum of themselves.

A file that the program writes and reads back goes through here, unless its format has checksums of its own (blocks of
weights, IVF segments, KV states) or a person edits it. What is read is what was written, byte for byte, or the damage
is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from edge.errors import CorruptBlock, StorageError

CHECKSUM = "sha256"
"""The key that holds the checksum; it stands last."""


def digest(content: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a document, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(content: Mapping[str, Any]) -> bytes:
    """A document as JSON with its checksum. Keys are text, and none of them is `sha256`."""
    return (json.dumps({**content, CHECKSUM: digest(content)}, indent=1) + "\n").encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """The document that `sealed` was given.

    Raises:
        ValueError: the bytes are not what `sealed` returned; the message says in what way.
    """
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if CHECKSUM not in content:
            raise ValueError("it carries no checksum, so that an earlier version may have written it")
        if content.pop(CHECKSUM) != digest(content):
            raise ValueError("its content does not match its checksum")
        # The checksum is of the content; this finds what JSON ignores, such as white space or a key that comes twice.
        if sealed(content) != data:
            raise ValueError("it is not as it was written")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return content


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a document with its checksum, in place of what was there.

    Raises:
        StorageError: the disk refuses; what was there is still there.
    """
    replace(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The document that `write_sealed` wrote; None when there is no file.

    Raises:
        CorruptBlock: it is damaged, or was never sealed.
        StorageError: the disk reports an error.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return unsealed(data)
    except ValueError as error:
        raise CorruptBlock(f"{path} is damaged: {error}") from error


def replace(path: Path, data: bytes) -> None:
    """Writes a file under another name, flushes it, renames it into place and flushes the folder.

    After a kill or a power loss the older file or this one is there, and nothing in between. Unfinished files of
    processes that are no more are removed.

    Raises:
        StorageError: the disk refuses; what was there is still there.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        try:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except OSError:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        flush_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error


def flush_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Where a folder cannot be opened (Windows) the system does so by itself.

    Raises:
        OSError: the disk reports an error.
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_abandoned(path: Path) -> None:
    for draft in path.parent.glob(f".{path.name}.*"):
        owner = draft.name.rpartition(".")[2]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            with suppress(OSError):
                draft.unlink(missing_ok=True)
