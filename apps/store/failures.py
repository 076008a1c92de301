"""What is wrong with a store: SQLite's errors as ours, each one sentence with the file's name and the remedy; and
`Health`, the unfinished work and the damage of a collection or memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.folder import can_be_written, has_log, log_of
from edge.errors import EdgeError, InputError, StorageError
from edge.ivf.base import Connection

_DAMAGED = (apsw.CorruptError, apsw.NotADBError)
_DAMAGED_READS = (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_SHORT_READ)
"""Extended codes of I/O errors that mean damage: a wrong checksum, or a file that is too short."""

_NOT_OURS = (apsw.ConstraintError, apsw.MisuseError, apsw.ThreadingViolationError, apsw.BindingsError)

_NO_STATEMENT = re.compile(
    "syntax error|incomplete input|unrecognized token|unterminated string|no such function|wrong number of arguments"
    "|ambiguous column|transaction|savepoint"
)
"""What SQLite says of a statement that no tables could make right."""

_TOO_LARGE = re.compile("too many|too large|too complex|parser stack overflow")

_REFUSALS = (apsw.BusyError, apsw.CantOpenError, apsw.FullError, apsw.LockedError, apsw.NoMemError, apsw.ReadOnlyError)


class StoreUnavailable(StorageError):
    """A store cannot be used as requested; its data is not damaged."""


class DamagedStore(StorageError):
    """Stored data of a collection or memory is damaged."""


class WrongValue(Exception):
    """A stored value that this program does not write. `translated` raises it as `DamagedStore`."""


def damaged(place: object, what: str, verbs: str) -> DamagedStore:
    return DamagedStore(f"{place} {what}; `{verbs} check` says what is lost, `{verbs} repair` mends what it can")


def not_writable(folder: Path) -> StoreUnavailable:
    return StoreUnavailable(f"{folder} cannot be written to, so nothing in it can be changed")


def refuse_schema(path: Path, version: int, migrations: Sequence[object]) -> None:
    if version > len(migrations):
        raise StoreUnavailable(
            f"{path} was written by a newer version of edge-rag (schema {version}; this one knows {len(migrations)}): "
            "update edge-rag to open it"
        )
    if 0 < version <= migrations.count(None):
        raise StoreUnavailable(
            f"{path} was written before the first release of edge-rag (schema {version}), and only that version opens "
            "it; it stays as it is"
        )


@contextmanager
def damage_suppressed() -> Iterator[None]:
    """Errors that the disk, the system or another process causes do not mean damage, and are raised."""
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        if is_refusal(error):
            raise


def is_refusal(error: BaseException) -> bool:
    """Whether the disk, the system or another process caused an error. Others mean damaged data, also those of
    statements, since the schema of a damaged file may hold anything."""
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) not in _DAMAGED_READS
    return isinstance(error, _REFUSALS)


@contextmanager
def translated(path: Path, verbs: str, busy_seconds: float) -> Iterator[None]:
    """Raises SQLite's errors in the block as ours. Errors that only a bug in this program causes stay as they are."""
    try:
        yield
    except EdgeError:
        raise
    except _NOT_OURS:
        raise
    except (apsw.BusyError, apsw.LockedError) as error:
        raise StoreUnavailable(
            f"another process has been writing to {path} for more than {busy_seconds:g} s; try again when it is done"
        ) from error
    except _DAMAGED as error:
        said = "" if "not an error" in str(error) else f" ({error})"  # SQLite's text if it has no description
        raise damaged(path, f"is damaged or not a database{said}", verbs) from error
    except apsw.IOError as error:
        if getattr(error, "extendedresult", None) in _DAMAGED_READS:
            raise damaged(path, "is damaged: a page of it is not what was written", verbs) from error
        raise StorageError(f"the disk refused to read or write {path}") from error
    except apsw.TooBigError as error:
        raise InputError(
            f"a text or value in {path}, or of this request, is longer than the memory limit has room for: give a "
            "larger limit (--memory), or shorter texts"
        ) from error
    except apsw.SQLError as error:
        if _NO_STATEMENT.search(str(error)):
            raise
        if _TOO_LARGE.search(str(error)):
            raise InputError(
                f"the request is too large for the database: SQLite says {str(error)!r}; ask for less at a time"
            ) from error
        # The statement is correct, so the tables are not.
        raise damaged(path, f"does not hold what it should ({error})", verbs) from error
    except apsw.FullError as error:
        raise StoreUnavailable(f"{path} cannot grow: the disk is full") from error
    except apsw.CantOpenError as error:
        # SQLite can read a log only if it may write its shared-memory file beside it.
        left = has_log(path) and not can_be_written(path.parent)
        why = f"{path.parent} cannot be written to, and {log_of(path).name} holds its last commits" if left else error
        raise StoreUnavailable(f"{path} cannot be opened: {why}") from error
    except apsw.ReadOnlyError as error:
        raise StoreUnavailable(f"{path} cannot be written to") from error
    except apsw.Error as error:
        raise StorageError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "is damaged: a text in it is not UTF-8", verbs) from error
    except WrongValue as error:
        raise damaged(path, f"does not hold what it should ({error})", verbs) from error


HEALTH_TABLE = """
CREATE TABLE IF NOT EXISTS health(kind TEXT PRIMARY KEY, text TEXT NOT NULL, remedy TEXT NOT NULL,
    since TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One problem of a store: a sentence without its period, and the command that ends it, empty while a process is at
    it."""

    kind: str
    text: str
    remedy: str

    def __str__(self) -> str:
        if not self.remedy:
            return self.text
        return f"{self.text}; `{self.remedy}` {_ENDS.get(self.kind, 'goes on with it')}"


_NOTED = {
    "compacting": ("the last compaction was interrupted", "compact"),
    "damaged": ("a check found damage", "repair"),
    "erasing": ("an erasure was interrupted, and bytes of what was deleted are left", "repair"),
    "indexing": ("a run was interrupted", "index"),
    "missing vectors": ("some texts have no vector, because a repair was interrupted", "repair"),
}

_ENDS = {"erasing": "ends it", "damaged": "mends what it can", "missing vectors": "makes them"}


@dataclass(frozen=True, slots=True)
class Health:
    troubles: tuple[Trouble, ...] = ()

    def __bool__(self) -> bool:
        return not self.troubles

    def __iter__(self) -> Iterator[Trouble]:
        return iter(self.troubles)

    @property
    def state(self) -> str:
        """One word: `ok`, `unfinished` or `damaged`."""
        kinds = {trouble.kind for trouble in self.troubles}
        if "damaged" in kinds:
            return "damaged"
        return "unfinished" if kinds else "ok"

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "troubles": [asdict(trouble) for trouble in self.troubles]}


def gathered(db: Connection, verbs: str, *found: Trouble | None) -> Health:
    troubles = {trouble.kind: trouble for trouble in noted(db, verbs)}
    for trouble in found:
        if trouble is not None:
            troubles[trouble.kind] = trouble
    return Health(tuple(troubles[kind] for kind in sorted(troubles)))


def note(db: Connection, kind: str) -> None:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    text, verb = _NOTED[kind]
    db.execute("INSERT OR IGNORE INTO health VALUES (?, ?, ?, ?)", (kind, text, verb, since))


def is_noted(db: Connection, kind: str) -> bool:
    return db.execute("SELECT 1 FROM health WHERE kind = ?", (kind,)).fetchone() is not None


def forget(db: Connection, kind: str) -> None:
    db.execute("DELETE FROM health WHERE kind = ?", (kind,))


def noted(db: Connection, verbs: str) -> list[Trouble]:
    """Only their kinds are read: the texts come from this program, not from the file."""
    kinds = [kind for kind in _NOTED if is_noted(db, kind)]
    return [Trouble(kind, text, f"{verbs} {verb}") for kind in kinds for text, verb in [_NOTED[kind]]]
