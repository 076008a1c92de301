"""`Writer`: everything that changes a collection; one at a time, over all threads and processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from edge.apps.collection.catalog import Catalog, below
from edge.apps.collection.discovery import Discovery, Entry, Scanned
from edge.apps.collection.indexing import Progress, Run
from edge.apps.collection.lock import WriterLock
from edge.apps.collection.models import Models
from edge.apps.collection.narrowing import Narrowed
from edge.apps.collection.preparation import Prepared
from edge.apps.collection.report import IndexReport
from edge.apps.collection.roots import (
    forget_roots,
    outermost,
    read_roots,
    register_roots,
    root_of,
    with_nested,
)
from edge.apps.documents.base import Extracted, Found
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.decoding import normalised
from edge.apps.documents.extraction import WORKER_NBYTES, Extractor
from edge.apps.documents.plain import text_blocks
from edge.apps.documents.scanner import scan
from edge.apps.store.database import Database
from edge.arrangement import SLACK
from edge.budget import MemoryBudget
from edge.config import format_size
from edge.errors import BudgetExceeded, InputError
from edge.ivf.index import VectorIndex
from edge.trace import Trace

_BATCH_NBYTES = 6 << 20
"""What a batch of passages takes on its way: text, tokens, vectors, and SQLite's pages."""

TEXT_ROOT = ""
"""The root of texts that were added by themselves: below no folder, so no scan ever misses them."""


class Writer:
    """The writing half of a collection. Every method waits for other writers, and raises `StorageError` if they do not
    end; the same thread may hold `lock` over several calls."""

    def __init__(
        self,
        path: Path,
        database: Database,
        catalog: Catalog,
        models: Models,
        vectors: Callable[[], VectorIndex | None],
        budget: MemoryBudget,
        trace: Trace,
    ) -> None:
        """`vectors` gives the vector index, or None as long as nobody knows the width of a vector."""
        self.lock = WriterLock(path / "writer.lock")
        self._path = path
        self._database = database
        self._catalog = catalog
        self._models = models
        self._vectors = vectors
        self._budget = budget
        self._trace = trace
        self._extractor: Extractor | None = None

    def index(self, given: Sequence[str], *, retry: bool, progress: Progress | None) -> IndexReport:
        """Brings folders and files up to date; all roots if none is given."""
        with self.lock():
            with self._database.write() as db:
                register_roots(db, given)
                roots = read_roots(db)
            if not roots:
                raise InputError("the collection has no folder to index yet; name one")
            chosen = with_nested(given, roots) if given else roots
            # A root that is not there now (a disk that is not connected) keeps what it has.
            present = [root for root in chosen if os.path.exists(root)]
            missing = tuple(root for root in chosen if root not in present)

            def scanned(known: Callable[[Found], bool]) -> Iterable[Entry]:
                return scan(present, exclude=[self._path], unchanged=known)

            return self._run(scanned, roots, present, retry=retry, progress=progress, missing=missing)

    def update(self, paths: Iterable[str], *, progress: Progress | None) -> IndexReport:
        """Brings single files and folders below the roots up to date."""
        with self.lock():
            with self._database.read() as db:
                roots = read_roots(db)
            changed: dict[str, list[str]] = {}
            for path in outermost(paths):
                if (root := root_of(path, roots)) is not None and os.path.exists(root):
                    changed.setdefault(root, []).append(path)

            def scanned(known: Callable[[Found], bool]) -> Iterator[Entry]:
                for root, below_it in changed.items():
                    narrowed = Narrowed(root, below_it)
                    entries = scan([root], exclude=[self._path, *narrowed.siblings()], unchanged=known)
                    yield from (entry for entry in entries if narrowed.concerns(str(entry.path)))

            scopes = [path for below_it in changed.values() for path in below_it]
            return self._run(scanned, roots, scopes, retry=False, progress=progress)

    def add_texts(self, texts: dict[str, tuple[str, str]]) -> IndexReport:
        """Adds texts, each with its title, by name."""
        with self.lock():
            run = Run(self._database, self._catalog, self._budget, self._trace)
            index = self._index()
            prepared = (self._prepared(name, text, title) for name, (text, title) in texts.items())
            run.take_in(prepared, index, self._models.embed)
            run.maintain(index)
            return run.report()

    def delete(self, paths: Sequence[str]) -> int:
        """Takes files and folders out of the collection, as roots too; returns how many files went."""
        condition, params = below(paths)
        with self.lock():
            run = Run(self._database, self._catalog, self._budget, self._trace)
            with self._database.write() as db:
                forget_roots(db, list(paths))
                files = [row[0] for row in db.execute(f"SELECT id FROM files WHERE {condition}", params)]
            discovery = Discovery(self._database, self._catalog, self._vectors())
            discovery.remove(files)
            run.count(discovery)
            run.maintain(self._vectors())
            return run.report().removed

    def compact(self, progress: Callable[[str, int, int], None] | None) -> None:
        """Gives the space of what was deleted back."""
        with self.lock():
            index = self._vectors()
            if index is not None:
                index.maintain(self._database.write, full=True, progress=progress)
            with self._database.write() as db:
                self._catalog.lexical.optimize(db)
            self._database.vacuum()

    def close(self) -> None:
        """Stops the worker that reads files."""
        if self._extractor is not None:
            self._extractor.close()
            self._extractor = None

    def _run(
        self,
        scanned: Scanned,
        roots: Sequence[str],
        scopes: Sequence[str],
        *,
        retry: bool,
        progress: Progress | None,
        missing: tuple[str, ...] = (),
    ) -> IndexReport:
        """Compares, takes in, removes below `scopes`, tidies up."""
        run = Run(self._database, self._catalog, self._budget, self._trace)
        discovery = Discovery(self._database, self._catalog, self._vectors(), retry=retry)
        run.discover(discovery, scanned, roots)
        if run.due(scopes):
            index = self._index()
            if self._extractor is None:
                self._check_room()
                self._extractor = Extractor(budget=self._budget, trace=self._trace)
            run.take_in_due(scopes, index, self._models.embed, self._extractor, progress)
        run.remove(discovery, scopes)
        run.count(discovery)
        run.maintain(self._vectors())
        return run.report(missing)

    def _check_room(self) -> None:
        """Files are read and embedded at the same time. Without this, one gives way to the other until a batch fails.

        Raises:
            BudgetExceeded: they do not fit.
        """
        working = WORKER_NBYTES + self._models.working() + _BATCH_NBYTES
        room = self._budget.make_room(self._budget.limit)  # everything that can gives way
        if working > room:
            needed = self._budget.limit - room + working + SLACK  # a process never starts with the same bytes twice
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
        """The vector index of a collection that gets one now, if it had none."""
        self._models.claim()
        index = self._vectors()
        assert index is not None
        return index

    def _prepared(self, name: str, text: str, title: str) -> Prepared:
        chunks = tuple(chunks_of(text_blocks(normalised(text)), title))
        if not chunks:
            raise InputError(f"the text {name!r} is empty")
        data = text.encode()
        with self._database.write() as db:
            row = self._catalog.find(db, name)
            if row is None:
                self._catalog.insert(db, name, TEXT_ROOT, due=False)
                row = self._catalog.find(db, name)
        assert row is not None
        lease = self._budget.reserve("texts to embed", 2 * len(data))
        extracted = Extracted("text", title, chunks, None)
        return Prepared(row, len(data), 0, blake2b(data, digest_size=16).digest(), extracted, "indexed", "", lease)


def text_name(text: str) -> str:
    """A name for a text that has none, made from its content."""
    return "text-" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
