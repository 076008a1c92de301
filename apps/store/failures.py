"""SQLite's errors as ours: one sentence with the file's name, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from edge.errors import EdgeError, StorageError

_DAMAGED = (apsw.CorruptError, apsw.NotADBError)
_DAMAGED_READS = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_SHORT_READ)
"""Extended codes of input/output errors that are damage: a wrong checksum, or a file that is too short."""

_NOT_OURS = (apsw.ConstraintError, apsw.MisuseError, apsw.ThreadingViolationError, apsw.BindingsError)
"""What only a fault of this program raises."""


_REFUSALS = (apsw.BusyError, apsw.CantOpenError, apsw.FullError, apsw.LockedError, apsw.NoMemError, apsw.ReadOnlyError)


class DamagedStore(StorageError):
    """What is stored in a collection or memory is not what was written."""


def damaged(path: Path, what: str, verbs: str) -> DamagedStore:
    """The error for a damaged database.

    Args:
        what: the rest of the sentence after the file's name.
        verbs: the command whose verbs `check` and `repair` are meant.
    """
    return DamagedStore(f"{path} {what}; `{verbs} check` says what is lost, `{verbs} repair` mends what it can")


@contextmanager
def damage_suppressed() -> Iterator[None]:
    """Goes on behind the block where what is stored there is not what was written. What the disk, the system or another
    process refuses says nothing about that, and is raised."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        if is_refusal(error):
            raise


def is_refusal(error: BaseException) -> bool:
    """Whether an error of SQLite's comes from the disk, the system or another process, and not from what is stored."""
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) not in _DAMAGED_READS
    return isinstance(error, _REFUSALS)


@contextmanager
def translated(path: Path, verbs: str, busy_seconds: float) -> Iterator[None]:
    """Raises `StorageError` for what SQLite raises in the block.

    Args:
        path: the database file.
        verbs: as for `damaged`.
        busy_seconds: how long another process was waited for.
    """
    try:
        yield
    except EdgeError:
        raise
    except _NOT_OURS:
        raise
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StorageError(
            f"another process has been writing to {path} for more than {busy_seconds:g} s; try again when it is done"
        ) from error
    except _DAMAGED as error:
        said = "" if "not an error" in str(error) else f" ({error})"  # what SQLite says where it has no words
        raise damaged(path, f"is damaged or not a database{said}", verbs) from error
    except apsw.IOError as error:
        if getattr(error, "extendedresult", None) in _DAMAGED_READS:
            raise damaged(path, "is damaged: a page of it is not what was written", verbs) from error
        raise StorageError(f"the disk refused to read or write {path}") from error
    except apsw.SQLError as error:  # our statements are right, so the tables are not
        raise damaged(path, f"does not hold what it should ({error})", verbs) from error
    except apsw.FullError as error:
        raise StorageError(f"{path} cannot grow: the disk is full") from error
    except apsw.Error as error:
        raise StorageError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "is damaged: a text in it is not UTF-8", verbs) from error
