"""`CollectionWriter`: every change of a collection. One writer runs at a time, across threads and processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

from edge.apps.collection.catalog import (
    TEXT_ROOT,
    Catalog,
    ChunkRebuild,
    FileRow,
    files_below,
    forget_roots,
    read_roots,
    register_roots,
)
from edge.apps.collection.discovery import Discovery, Entry, Scanned, follow_move
from edge.apps.collection.intake import Advance, Intake, Preparation, Prepared, is_racy, promising, with_more_memory
from edge.apps.collection.models import CollectionModels
from edge.apps.collection.paths import (
    Item,
    absence,
    below,
    check_there,
    checked,
    listed,
    nearest,
    on_disk,
    on_the_way,
    outermost,
    resolved,
    with_nested,
)
from edge.apps.collection.report import FileProgress, IndexReport, Tally
from edge.apps.documents.base import NO_STAMP, WORKER_NBYTES, Extracted, FoundFile
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.decoding import normalised
from edge.apps.documents.extraction import Extractor
from edge.apps.documents.plain import text_blocks
from edge.apps.documents.scanner import fingerprint, scan
from edge.apps.store.connections import WriterLock
from edge.apps.store.database import Database, get_setting, set_setting
from edge.apps.store.erasure import ERASING, Erasure, compact, erasing, erasure, finish
from edge.apps.store.failures import forget, is_noted, note
from edge.apps.store.models import BATCH_NBYTES, INDEXING
from edge.apps.store.rebuilding import Floats, Progress, Rebuilding
from edge.apps.store.rows import held_by_key
from edge.budget import MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded, EdgeError, InputError
from edge.ivf.index import VectorIndex
from edge.ivf.maintenance.work import Write
from edge.streaming.forwarding import SLACK
from edge.trace import Trace

Result = TypeVar("Result")

_COPIES, _PER_TEXT = 8, 1_000
"""Memory of a text while it is cut: bytes per byte of the text, and bytes besides. Measured with a text of 4 MB."""


_AT_ONCE = 1_000_000  # Bytes of files that a search waits for (a second).
_PATIENCE_S, _LESS_S = 5.0, 1.0  # How long it waits for others, and while another reads what no search has read yet.
_SEEN = "seen"  # The setting with the state of the folder whose files were compared last.
_STEP, _PAUSE_S = 300_000, 0.15  # Bytes between which the background lets others write. SQLite tries every 0.1 s.


class CollectionWriter:
    """The writing half of a collection. Every method waits for other writers."""

    def __init__(
        self,
        path: Path,
        database: Database,
        lock: WriterLock,
        catalog: Catalog,
        models: CollectionModels,
        vectors: Callable[[], VectorIndex | None],
        budget: MemoryBudget,
        trace: Trace,
        scratch: Path,
    ) -> None:
        self._lock = lock
        self._path = path
        self._database = database
        self._catalog = catalog
        self._models = models
        self._vectors = vectors
        self._budget = budget
        self._trace = trace
        self._scratch = scratch
        self._extractor: Extractor | None = None
        self._source = ChunkRebuild(lambda texts: models.embed(texts), self._known)
        self._rebuilding = Rebuilding(database, self._source)

    def index(self, given: Sequence[str], *, retry: bool, progress: FileProgress | None) -> IndexReport:
        """Of new roots, those without an indexed file are removed again if an error ends the run."""
        with self._lock():
            with self._database.write() as db:
                follow_move(db, self._path)
                new = register_roots(db, given)
                roots = read_roots(db)
            if not roots:
                raise InputError("the collection has no folder to index yet; name one")
            try:
                return self._index_roots(given, roots, retry=retry, progress=progress)
            except EdgeError:
                self._forget_empty(new)
                raise

    def _index_roots(
        self, given: Sequence[str], roots: Sequence[str], *, retry: bool, progress: FileProgress | None
    ) -> IndexReport:
        chosen = with_nested(given, roots) if given else roots
        present, missing = self._present(chosen, frozenset(chosen))

        def scanned(known: Callable[[FoundFile], bool]) -> Iterable[Entry]:
            return scan(present, exclude=[self._path], unchanged=known, budget=self._budget)

        def settled() -> list[str]:
            return self._present(present, frozenset(present))[0]

        return self._run(scanned, roots, present, settled, retry=retry, progress=progress, missing=missing)

    def refresh(self, root: str, query: str) -> None:
        now = time.time()
        with self._database.read() as db:
            before = get_setting(db, _SEEN)
        compared = before is not None and before == self._seen(root)
        with self._database.read() as db:
            if compared and not self._catalog.count_due(db, [root]):
                return
        with self._lock(_LESS_S if compared else _PATIENCE_S):
            if compared:
                self._read_some(query, _AT_ONCE, Tally())
                return
            if before is None:  # there will be files to read
                self._reader().begin()
            with self._database.write() as db:
                register_roots(db, [root])
            present, tally = self._present([root], frozenset())[0], Tally()
            discovery = Discovery(self._database, self._catalog, self._vectors(), tally)
            discovery.compare(
                lambda known: scan(present, exclude=[self._path], unchanged=known, budget=self._budget), [root]
            )
            self._read_some(query, _AT_ONCE, tally)
            discovery.remove_unseen(self._present(present, frozenset())[0])
            seen = self._seen(root, before=now)
            with self._database.write() as db:
                set_setting(db, _SEEN, seen)

    def _seen(self, root: str, before: float | None = None) -> str:
        """The state of a folder and of the number of its files in the collection; one of its own, which never comes
        again, if it cannot be told, or has changed since `before` or so shortly before that a later change may have the
        same time."""
        with self._database.read() as db:
            known = db.execute("SELECT count(*) FROM files").fetchone()[0]
            skipped = db.execute("SELECT path FROM files WHERE status = 'skipped' AND size = 0")  # all folders are so
            left_out = held_by_key(db, skipped, lambda row: (on_disk(row[0]), None))
            left_out[str(self._path)] = None
            seen, newest = fingerprint(Path(root), left_out)
        told = seen and (before is None or not is_racy(newest, before))
        return f"{seen} {known}" if told else os.urandom(16).hex()

    def complete(self) -> None:
        left = True
        while left:  # words need no embedder
            time.sleep(_PAUSE_S)
            with self._lock():
                left = self._read_some("", _STEP, Tally())
        self.close()
        with self._database.write() as db:
            forget(db, "indexing")
        self._models.check_room("indexing", rerank=False, candidates=0, writes=True, extra=INDEXING)
        index = self._claimed()
        self._rebuilding.finish(index)  # which shares the collection with other writers
        with self._lock():
            self._make_way(lambda: index.maintain(self._database.write))

    def _read_some(self, query: str, nbytes: int, tally: Tally) -> bool:
        """Adds the most promising due files, without their vectors. False if none was left."""
        with self._database.read() as db:
            roots = read_roots(db)
        files = list(promising(self._database, self._catalog, roots, query, nbytes, self._budget))
        if files:
            self._read(files, self._vectors(), tally)
        return bool(files)

    def update(self, paths: Iterable[str], *, progress: FileProgress | None) -> IndexReport:
        with self._lock():
            with self._database.read() as db:
                roots = read_roots(db)
            every_root = frozenset(roots)
            changed: dict[str, list[str]] = {}
            for path in outermost(paths):
                if (root := nearest(path, every_root)) is not None:
                    changed.setdefault(root, []).append(path)
            # Only for a root that is itself in `paths` may an empty folder count as absent. For others, the paths of
            # deleted files explain an empty root.
            whole = frozenset(root for root in changed if root in changed[root])
            present, missing = self._present(changed, whole)

            def scanned(known: Callable[[FoundFile], bool]) -> Iterator[Entry]:
                for root in present:
                    way = on_the_way(root, changed[root])
                    yield from scan([root], exclude=[self._path], unchanged=known, only=way, budget=self._budget)

            def settled() -> list[str]:
                return [path for root in self._present(present, whole)[0] for path in changed[root]]

            scopes = [path for root in present for path in changed[root]]
            return self._run(scanned, roots, scopes, settled, retry=False, progress=progress, missing=missing)

    def add(self, items: Item | Sequence[Item], ids: Sequence[str] | None, title: str | Sequence[str]) -> list[str]:
        names, texts, files = separated(items, ids, title)
        check_there(files)
        with self._lock():
            if files:  # files come first, because a path may not exist
                self.index(files, retry=False, progress=None)
            if texts:
                tally = Tally()
                with self._budget.reserve("texts to add", _added_nbytes(texts)):
                    prepared = (self._prepared(name, text, title) for name, (text, title) in texts.items())
                    self._take(prepared, index := self._index(), tally)
                    self._embed(index, tally)
                    self._maintain(tally)
        return names

    def delete(self, items: Sequence[tuple[str | None, Sequence[str]]]) -> int:
        """`items` has the name of each if it may name a text, and the absolute paths that it may mean otherwise."""
        with self._lock():
            tally = Tally()
            self._remove(items, tally, self._database.write)
            self._maintain(tally)
            return tally.counts["removed"]

    def purge(self, items: Sequence[tuple[str | None, Sequence[str]]]) -> Erasure:
        """Also erases what earlier removals have left, and descriptions of what is removed."""
        with self._lock():
            tally = Tally()
            with erasing(self._database) as db:
                for condition, params in (below(path) for _, paths in items for path in paths):
                    db.execute(f"DELETE FROM descriptions WHERE {condition}", params)
            self._remove(items, tally, partial(erasing, self._database))
            self.end_erasure()
            return erasure(self._database.path, {"files": tally.counts["removed"]})

    def end_erasure(self) -> None:
        """Writes the files of the collection anew, and removes the KV states of all documents, whose tokens are
        texts."""
        from edge.kv_cache.store import STATES, forget_states  # searches of projects do without

        with self._lock():
            forget_states(self._scratch / STATES)
            finish(self._database, lambda: self._compact(None))

    def _remove(self, items: Sequence[tuple[str | None, Sequence[str]]], tally: Tally, begun: Write) -> None:
        files: set[int] = set()
        with begun() as db:
            for name, paths in items:
                text = None if name is None else self._catalog.find(db, name)
                if text is not None and text.root == TEXT_ROOT:
                    files.add(text.id)
                    continue
                for path in paths:
                    condition, params = files_below(path)
                    found = [row[0] for row in db.execute(f"SELECT id FROM files WHERE {condition}", params)]
                    files.update(found)
                    if forget_roots(db, path) or found:
                        break
        Discovery(self._database, self._catalog, self._vectors(), tally).remove(sorted(files), begun)

    def rebuild(self, progress: Progress | None) -> int:
        with self._lock():
            self._models.claim()
            index = self._vectors()
            assert index is not None
            self._rebuilding.begin(index)
            made = self._rebuilding.finish(index, progress)
            self._make_way(lambda: index.maintain(self._database.write))
            return made

    def compact(self, progress: Callable[[str, int, int], None] | None) -> bool:
        with self._lock():
            with self._database.write() as db:
                note(db, "compacting")
            return self._compact(progress)

    def close(self) -> None:
        if self._extractor is not None:
            self._extractor.close()
            self._extractor = None

    def _present(self, roots: Iterable[str], whole: Set[str]) -> tuple[list[str], tuple[str, ...]]:
        """Present and missing roots. One in `whole` is also missing if it is empty although the collection has files of
        it."""
        present: list[str] = []
        missing: list[str] = []
        for root in roots:
            gone = absence(root, lambda root: root in whole and self._holds(root))
            (present if gone is None else missing).append(root)
        return present, tuple(missing)

    def _holds(self, root: str) -> bool:
        condition, params = files_below(root)
        with self._database.read() as db:
            query = f"SELECT 1 FROM files WHERE {condition} AND status = 'indexed' LIMIT 1"
            return db.execute(query, params).fetchone() is not None

    def _run(
        self,
        scanned: Scanned,
        roots: Sequence[str],
        scopes: Sequence[str],
        settled: Callable[[], Sequence[str]],
        *,
        retry: bool,
        progress: FileProgress | None,
        missing: tuple[str, ...] = (),
    ) -> IndexReport:
        """`settled` is called after indexing, and returns the scopes whose roots are still present: files of a disk
        that was disconnected meanwhile are not removed."""
        tally = Tally()
        discovery = Discovery(self._database, self._catalog, self._vectors(), tally, retry=retry)
        interrupted = self._resume()
        with tally.timed("scan_s"), self._trace.span("scan", "index"):
            discovery.compare(scanned, roots)
        with self._database.read() as db:
            due = self._catalog.count_due(db, scopes)
        if due:
            self._models.check_room("indexing", rerank=False, candidates=0, writes=True, extra=INDEXING)
            index = self._claimed()
            with self._database.write() as db:
                note(db, "indexing")
            if self._extractor is None:
                self._check_room()
            advance = None if progress is None else self._advance(scopes, progress)
            self._read(self._catalog.due(self._database, scopes), index, tally, advance)
            self._embed(index, tally, advance)
        elif interrupted:
            self._index()
        with tally.timed("commit_s"):  # last, because a moved file passes its vectors on to its new name
            discovery.remove_unseen(settled())
        self._maintain(tally, due=interrupted)
        with self._database.read() as db:
            begun = is_noted(db, "indexing")
        if begun:
            with self._database.write() as db:
                forget(db, "indexing")
        return tally.report(missing)

    def _read(
        self, due: Iterable[FileRow], index: VectorIndex | None, tally: Tally, advance: Advance | None = None
    ) -> None:
        waits = None if advance is None else advance.reading
        with Preparation(self._database, due, self._reader(), self._budget, tally, waits=waits) as preparation:
            self._take(preparation, index, tally, advance)

    def _reader(self) -> Extractor:
        if self._extractor is None:
            self._extractor = Extractor(budget=self._budget, trace=self._trace)
        return self._extractor

    def _take(
        self, files: Iterable[Prepared], index: VectorIndex | None, tally: Tally, advance: Advance | None = None
    ) -> None:
        """Adds files with their words. Their vectors are made afterwards."""
        with self._database.write() as db:
            self._rebuilding.postpone(db, self._catalog.last_chunk(db))
        Intake(self._database, self._catalog, index, tally, extractor=self._extractor, advance=advance).take(files)

    def _embed(self, index: VectorIndex, tally: Tally, advance: Advance | None = None) -> None:
        reused, seconds = self._source.reused, self._source.seconds
        told = None if advance is None else advance.embedded
        with nullcontext() if advance is None else advance.embedding():
            with_more_memory(self._extractor, lambda: self._rebuilding.finish(index, told))
        tally.reused += self._source.reused - reused
        tally.seconds["embed_s"] += self._source.seconds - seconds

    def _known(self, hashes: Sequence[bytes]) -> dict[bytes, Floats]:
        index = self._vectors()
        assert index is not None
        with self._database.read() as db:
            same = self._catalog.same_chunks(db, hashes)
            rows = index.vectors(db, np.array(list(same.values()), np.int64), absent_as_zero=True) if same else ()
        return {key: row for key, row in zip(same, rows, strict=True) if row.any()}

    def _maintain(self, tally: Tally, *, due: bool = False) -> None:
        """Maintains the vector index after changes; if `due`, even without changes."""
        index = self._vectors()
        if index is not None and (due or tally.counts["indexed"] or tally.counts["removed"]):
            with tally.timed("maintain_s"), self._trace.span("maintain", "index"):
                self._make_way(lambda: index.maintain(self._database.write))

    def _resume(self) -> bool:
        """Continues an interrupted compaction. Returns whether a run was interrupted, or passages lack vectors."""
        with self._database.read() as db:
            waiting = self._rebuilding.trouble(db, "passages", "") is not None
            interrupted, compacting = is_noted(db, "indexing"), is_noted(db, "compacting")
            erased = is_noted(db, ERASING)
        if compacting:
            self._compact(None)
        if erased:
            self.end_erasure()
        return waiting or interrupted

    def _compact(self, progress: Callable[[str, int, int], None] | None) -> bool:
        alone = compact(self._database, self._catalog.lexical, self._vectors(), self._make_way, progress)
        with self._database.write() as db:
            forget(db, "compacting")
        return alone

    def _forget_empty(self, roots: Iterable[str]) -> None:
        empty = [root for root in roots if not self._holds(root)]
        with self._database.write() as db:
            for root in empty:
                condition, params = files_below(root)
                db.execute("DELETE FROM roots WHERE path = ?", (root,))
                sql = f"DELETE FROM files WHERE {condition} AND root = ? AND id NOT IN (SELECT file FROM chunks)"
                db.execute(sql, (*params, root))

    def _advance(self, scopes: Sequence[str], progress: FileProgress) -> Advance:
        files = (file.path for file in self._catalog.due(self._database, scopes))
        return Advance(progress, files, self._trace, self._models.embedder().model.spec.layers)

    def _make_way(self, work: Callable[[], Result]) -> Result:
        return self._models.make_way(lambda: with_more_memory(self._extractor, work))

    def _check_room(self) -> None:
        """Without room for worker and embedder, one would evict the other until a batch fails."""
        working = WORKER_NBYTES + self._models.working() + BATCH_NBYTES
        room = self._budget.make_room(self._budget.limit)  # evicts everything that can be evicted
        if working > room:
            needed = self._budget.limit - room + working + SLACK  # the memory of a new process varies slightly
            raise BudgetExceeded(
                f"reading files and embedding them need {format_size(working)} beside what is held already, but "
                f"{format_size(max(0, room))} of the {format_size(self._budget.limit)} memory limit can be had; "
                f"a limit of {format_size(needed, up=True)} is the smallest that works",
                owner="indexing",
                asked=working,
                free=room,
                needed=needed,
            )

    def _index(self) -> VectorIndex:
        index = self._claimed()
        self._rebuilding.finish(index)
        return index

    def _claimed(self) -> VectorIndex:
        self._models.claim()
        index = self._vectors()
        assert index is not None
        return index

    def _prepared(self, name: str, text: str, title: str) -> Prepared:
        chunks = tuple(chunks_of(text_blocks(normalised(text)), title))
        data = text.encode()
        with self._database.write() as db:
            row = self._catalog.find(db, name)
            if row is None:
                self._catalog.insert(db, name, TEXT_ROOT, due=False)
                row = self._catalog.find(db, name)
        assert row is not None
        lease = self._budget.reserve("texts to embed", 2 * len(data))
        extracted = Extracted("text", title, chunks)
        digest = blake2b(data, digest_size=16).digest()
        return Prepared(row, NO_STAMP._replace(size=len(data)), False, digest, extracted, "indexed", "", lease)


def _added_nbytes(texts: Mapping[str, tuple[str, str]]) -> int:
    sizes = [sys.getsizeof(text) for text, _ in texts.values()]
    return sum(sizes) + _COPIES * max(sizes, default=0) + _PER_TEXT * len(sizes)


def separated(
    items: Item | Sequence[Item], ids: Sequence[str] | None, title: str | Sequence[str]
) -> tuple[list[str], dict[str, tuple[str, str]], list[str]]:
    """The arguments of `Collection.add`: the name of each item in order; text and title by name; files and folders,
    resolved. A call adds all its items or none."""
    given = listed(items)
    if ids is not None and len(ids) != len(given):
        raise InputError(f"{len(given)} items came with {len(ids)} ids")
    titles = [title] * len(given) if isinstance(title, str) else list(title)
    if len(titles) != len(given):
        raise InputError(f"{len(given)} items came with {len(titles)} titles")
    texts: dict[str, tuple[str, str]] = {}
    files: list[str] = []
    names: list[str] = []
    for i, item in enumerate(given):
        if isinstance(item, str) and not (os.path.isabs(item) and os.path.exists(item)):
            text = checked(item, f"text {i + 1} of {len(given)}")
            made = f"text-{blake2b(text.encode(), digest_size=8).hexdigest()}"
            names.append(made if ids is None else checked(ids[i], f"the id {ids[i]!a}"))
            if not names[-1]:
                raise InputError(f"the id of text {i + 1} of {len(given)} is empty")
            # Checked before anything is written: a call adds all its items or none.
            if not normalised(text).strip():
                raise InputError(f"the text {names[-1]!r} is empty")
            texts[names[-1]] = (text, checked(titles[i], f"the title {titles[i]!a}"))
        else:
            names.append(resolved(item))
            files.append(names[-1])
    return names, texts, files
