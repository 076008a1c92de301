"""Backups: a consistent copy of a database and of the segments that it names, and the replacement of a database in one
transaction. Other processes may write meanwhile. A kill leaves either the old or the new content whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw

from edge.apps.store.connections import LOCK, WriterLock, plain
from edge.apps.store.database import Migration
from edge.apps.store.failures import is_refusal, refuse_schema, translated
from edge.apps.store.folder import SEGMENTS, claim, log_of, make_folder
from edge.apps.store.salvage import move_log
from edge.errors import InputError, StorageError, as_storage_error
from edge.files.named_file import read_small
from edge.files.sealed import flush
from edge.ivf.storage.manifest import IndexManifest

_PATIENCE_S = 30.0
_PIECE = 1 << 20

_LOG_PATIENCE_MS = 2_000


def overwrite(path: Path, source: Path, *, verbs: str, ready: Callable[[], bool] = lambda: True) -> bool:
    """Replaces the content of the database `path`, which may be damaged or missing; returns whether it did. `ready` is
    called when no other process can write any more; if it returns False, nothing is replaced."""
    with translated(path, verbs, _PATIENCE_S):
        try:
            return _overwritten(path, source, ready)
        except apsw.Error as error:
            if is_refusal(error):
                raise
        ready()  # nobody can write to a file that SQLite does not open, so the answer is known
        with as_storage_error(f"{path} cannot be written"):
            # SQLite would move a log that is left behind into the new file. Its pages are moved into the old one before
            # it is removed, so that a kill in between loses none.
            move_log(path)
            for beside in (log_of(path), path.with_name(path.name + "-shm")):
                beside.unlink(missing_ok=True)
            copy_whole(source, path)
    return True


def copy_whole(source: Path, target: Path) -> None:
    """Waits until the copy is durable under its name."""
    partial = target.with_name(target.name + ".tmp")
    with source.open("rb") as old, partial.open("wb") as new:
        shutil.copyfileobj(old, new, _PIECE)
        new.flush()
        os.fsync(new.fileno())
    partial.replace(target)
    flush(target.parent)


def _overwritten(path: Path, source: Path, ready: Callable[[], bool]) -> bool:
    new, old = plain(source), plain(path)
    try:
        old.set_busy_timeout(int(_PATIENCE_S * 1000))
        with old.backup("main", new, "main") as copying:
            copying.step(1)
            if not ready():
                return False
            copying.step(-1)
        # A recovery of a damaged log would stop before the pages that were just written. So empty the log.
        old.set_busy_timeout(_LOG_PATIENCE_MS)
        with suppress(apsw.BusyError):
            old.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        old.close(True)
        new.close(True)
    return True


def put_aside(path: Path) -> Path:
    folder = aside(path.parent)
    with as_storage_error(f"{path} cannot be copied to {folder}"):
        for source in (path, log_of(path)):
            if source.exists():
                shutil.copy2(source, folder / source.name)
                flush(folder / source.name)
        flush(folder)
    return folder / path.name


def aside(parent: Path) -> Path:
    name = f"damaged-{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(100):
        folder = parent / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise StorageError(f"{folder} cannot be made: {error.strerror}") from error
        return folder
    raise StorageError(f"{parent} has no room for one more folder of damaged files")


_MANIFEST = "edge-backup.json"
_VERSION = 1

_TRIES = 10  # Maintenance in another process may remove a segment before it is copied.


@dataclass(frozen=True, slots=True)
class Store:
    kind: str
    path: Path
    database: str
    verbs: str
    migrations: Sequence[Migration]


def back_up(store: Store, target: Path) -> int:
    """Copies a store into the new folder `target`, which appears when it is complete; returns the bytes of the copy."""
    if not (store.path / store.database).is_file():
        raise StorageError(f"there is no {store.kind} in {store.path}")
    target = Path(os.path.realpath(target))  # if `target` is a link to a folder, the link stays
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists: name a new folder for the backup")
    make_folder(target.parent)
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", suffix=".partial", dir=target.parent))
    try:
        files = [store.database, *_copy(store, draft)]
        entries = {name: _described(draft / name) for name in files}
        made = datetime.now(UTC).isoformat(timespec="seconds")
        document = {"version": _VERSION, "kind": store.kind, "made": made, "files": entries}
        with (draft / _MANIFEST).open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        flush(draft)
        if target.exists():
            target.rmdir()
        draft.replace(target)
        flush(target.parent)
    except OSError as error:
        raise StorageError(f"the backup cannot be written to {target.parent}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sum(int(entry["bytes"]) for entry in entries.values())


def restore(store: Store, source: Path, *, force: bool) -> int:
    """Verifies a backup and puts it in the place of a store, which stays unchanged until one transaction replaces it;
    returns its bytes."""
    entries = _verified(store, source)
    _refuse_unknown(store, source / store.database)
    path = store.path / store.database
    claim(store.path, store.database)
    with WriterLock(store.path / LOCK)():
        if path.exists() and not force:
            raise InputError(f"there is a {store.kind} in {store.path} already: --force puts the backup in its place")
        _put_back(store, source, [name for name in entries if name != store.database])
    return sum(int(entry["bytes"]) for entry in entries.values())


def _refuse_unknown(store: Store, path: Path) -> None:
    with translated(path, store.verbs, _PATIENCE_S):
        db = plain(path)
        try:
            refuse_schema(path, int(db.pragma("user_version")), store.migrations)
        finally:
            db.close(True)


def _put_back(store: Store, source: Path, segments: list[str]) -> None:
    path = store.path / store.database

    def bring() -> bool:
        for name in segments:
            if not (store.path / name).exists():
                (store.path / name).parent.mkdir(exist_ok=True)
                copy_whole(source / name, store.path / name)
        return True

    with as_storage_error(f"the backup cannot be restored to {store.path}"):
        for name in segments:  # a segment of this name may exist and be damaged
            (store.path / name).parent.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # maintenance removed the segment, see below
                copy_whole(source / name, store.path / name)
        with tempfile.TemporaryDirectory(dir=store.path) as folder, translated(path, store.verbs, _PATIENCE_S):
            draft = Path(folder) / store.database
            shutil.copyfile(source / store.database, draft)
            # Maintenance in another process removes segments that no commit names. `bring` copies such segments again
            # when no other process can write. The next commit then names them.
            overwrite(path, draft, verbs=store.verbs, ready=bring)


def _copy(store: Store, draft: Path) -> list[str]:
    (draft / SEGMENTS).mkdir()
    for _ in range(_TRIES):
        with translated(store.path / store.database, store.verbs, _PATIENCE_S):
            names = _copy_database(store.path / store.database, draft / store.database)
        missing = []
        for name in names:
            if not (draft / SEGMENTS / name).exists():
                try:
                    copy_whole(store.path / SEGMENTS / name, draft / SEGMENTS / name)
                except FileNotFoundError:
                    missing.append(name)
        if not missing:
            for file in (draft / SEGMENTS).iterdir():
                if file.name not in names:
                    file.unlink()
            flush(draft / SEGMENTS)
            return [f"{SEGMENTS}/{name}" for name in names]
    raise StorageError(
        f"{store.path / SEGMENTS / missing[0]} is missing; `{store.verbs} repair` makes its vectors again"
    )


def _copy_database(source: Path, target: Path) -> list[str]:
    target.unlink(missing_ok=True)
    old, new = plain(source), plain(target)
    try:
        old.set_busy_timeout(int(_PATIENCE_S * 1000))
        with new.backup("main", old, "main") as copying:
            copying.step(-1)
        new.execute("PRAGMA journal_mode = DELETE").fetchall()  # one file, without a log
        tables = new.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ivf_segments'").fetchall()
        found = new.execute("PRAGMA quick_check(1)").fetchall()
        if found != [("ok",)]:
            raise apsw.CorruptError(str(found[0][0]))
        return IndexManifest(new).segment_names() if tables else []
    finally:
        new.close(True)
        old.close(True)


def _verified(store: Store, source: Path) -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(read_small(source / _MANIFEST))
        kind, version, entries = document["kind"], document["version"], dict(document["files"])
    except FileNotFoundError:
        raise InputError(f"{source} is no backup: it has no {_MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{source / _MANIFEST} cannot be read: {error}") from error
    if version != _VERSION:
        raise InputError(f"{source} was made by another version of edge-rag (format {version!a})")
    if kind != store.kind:
        other = "edge" if kind == "collection" else "edge memory"
        raise InputError(f"{source} is the backup of a {kind!s}: `{other} restore` puts it back")
    for name, entry in entries.items():
        if name != store.database and (Path(name).parent.as_posix() != SEGMENTS or Path(name).name in ("..", "")):
            raise StorageError(f"{source / _MANIFEST} names {name!a}, which no backup holds")
        with as_storage_error(f"{source / name} cannot be read"):
            found = _described(source / name)
        if found != entry:
            raise StorageError(f"{source / name} is not what was backed up: its checksum differs")
    if store.database not in entries:
        raise StorageError(f"{source / _MANIFEST} names no database")
    return entries


def _described(path: Path) -> dict[str, Any]:
    digest = blake2b(digest_size=32)
    size = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return {"bytes": size, "blake2b": digest.hexdigest()}
