"""`Collection`: files and texts, searched by meaning and by words within one memory limit. `Together`: several of them,
searched as one."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edge.apps.collection.catalog import Catalog, ChunkRebuild, describe, open_database, read_descriptions, read_roots
from edge.apps.collection.filters import Conditions, Filters
from edge.apps.collection.hits import Hit, kept, results_of
from edge.apps.collection.models import CollectionModels, Searchable
from edge.apps.collection.paths import Item, absolute, check_there, listed, resolved
from edge.apps.collection.query import Query, checked_query, mostly_code
from edge.apps.collection.registry import existing_collection, holds_collection, is_project, located
from edge.apps.collection.report import CollectionStatus, FileProgress, IndexedFile, IndexReport, contents, unfinished
from edge.apps.collection.searching import PassageSource, Seen, Within, candidates, is_nonsense, misspelled
from edge.apps.pool import Held
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.erasure import Erasure, end_erasure
from edge.apps.store.failures import Health, Trouble, gathered, is_noted
from edge.apps.store.folder import COLLECTION, SEGMENTS
from edge.apps.store.lexical import respelled
from edge.apps.store.models import INDEXING, opened_budget
from edge.apps.store.rebuilding import Progress, Rebuilding
from edge.apps.store.rows import held
from edge.apps.verbs.requests import POOL, SearchOptions, search_options
from edge.budget import MemoryBudget
from edge.config import Config, counted, parse_size
from edge.errors import InputError
from edge.ivf.index import VectorIndex
from edge.models.tokenizer import query_nbytes
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker
from edge.trace import Trace

if TYPE_CHECKING:
    from edge.apps.collection.excerpts import Excerpt
    from edge.apps.collection.writing import CollectionWriter
    from edge.cache.lookahead import Lookahead

DATABASE = COLLECTION

Floats = npt.NDArray[np.float32]


@checked_arguments
class Collection(Searchable):
    """Files and texts, searched by meaning and by words within one memory limit.

    Threads and other processes may read while one thread writes. Models are opened when they are first needed.

    Examples:
        >>> with Collection("notes.edge", memory="400MB") as collection:
        ...     collection.index(["~/Documents"])
        ...     for hit in collection.search("when does the river flood", 5):
        ...         print(hit.citation, hit.snippet)
    """

    def __init__(
        self,
        path: Item,
        *,
        memory: str | int | None = None,
        config: Config | None = None,
        budget: MemoryBudget | None = None,
        embedder: str | Embedder | Held[Embedder] | None = None,
        reranker: str | Reranker | Held[Reranker] | None = None,
        trace: Trace | None = None,
        read_only: bool = False,
    ) -> None:
        """Opens the collection in the directory `path`, or makes one there.

        Args:
            memory: limit of the whole process, such as `400MB`; default from the configuration.
            budget: a budget shared with other parts of the program, instead of `memory`.
            embedder: a name or path, or an open model, or one that a pool lends, which the caller must close. It
                defaults to the configured one, then to the collection's own, and cannot change once there are vectors.
            reranker: likewise; it defaults to the configured one.
            read_only: makes and changes nothing.

        Raises:
            StorageError: there is no collection to read, it cannot be opened, or a newer version wrote it.
            BudgetExceeded: the limit is too small; the error names the smallest limit that works.
        """
        self.path = Path(os.path.expanduser(path)).absolute()
        self.config = config or Config.load()
        self.trace = trace or Trace()
        if read_only:
            existing_collection(self.path)
        self.budget = budget or opened_budget(
            "the collection", self.config.memory if memory is None else parse_size(memory), self.config,
            embedder=embedder, reranker=reranker, candidates=2 * POOL, writes=not read_only,
            extra=() if read_only else INDEXING,
        )  # fmt: skip
        self.database = open_database(self.path / DATABASE, self.budget, read_only=read_only)
        self._opening = threading.Lock()
        self._vectors: VectorIndex | None = None
        self._catalog = Catalog()
        self.models = CollectionModels(
            self.database, self.config, self.budget, self.trace, embedder=embedder, reranker=reranker
        )
        self._lock = WriterLock(self.path / LOCK)
        self._opened_writer: CollectionWriter | None = None
        if not read_only:
            end_erasure(self.database, self._lock, lambda: self._writer.end_erasure())

    @staticmethod
    def exists(path: Item) -> bool:
        """Whether there is a collection in a directory."""
        return holds_collection(Path(path))

    @property
    def vectors(self) -> VectorIndex | None:
        """The vector index; None if nothing was embedded yet."""
        with self._opening:
            identity = self.models.identity()
            if identity is None or (self._vectors is not None and self._vectors.dim == identity.dim):
                return self._vectors
            if self._vectors is not None:  # another model was chosen while the collection was empty
                self._vectors.close()
            self._vectors = VectorIndex(
                self.path / SEGMENTS, identity.dim, budget=self.budget, trace=self.trace, threads=self.config.threads,
                search_on=self.config.opened_device, within=self.config.search_within)  # fmt: skip
            return self._vectors

    def picture(self) -> dict[str, Any] | None:
        """See `IndexSearcher.picture`; None if the lists are not open."""
        return None if self._vectors is None else self._vectors.picture()

    @cached_property
    def source(self) -> PassageSource:
        return PassageSource(self.database, self._catalog.lexical, lambda: self.vectors, self.budget, self.trace)

    @property
    def embedder_name(self) -> str:
        """The name or path that opens the embedder; empty for the default embedder. Raises as `embedder` does."""
        chosen = self.models.named_embedder()
        return chosen if isinstance(chosen, str) else ""

    @property
    def passages(self) -> ChunkRebuild:
        return ChunkRebuild(self.models.embed)

    @property
    def roots(self) -> list[str]:
        """Folders and files that the collection is kept up to date with, the targets of `index`."""
        with self.database.read() as db:
            return read_roots(db)

    # Writing

    @property
    def _writer(self) -> CollectionWriter:
        """Imported here, because a search does without its modules."""
        from edge.apps.collection.writing import CollectionWriter

        with self._opening:
            if self._opened_writer is None:
                self._opened_writer = CollectionWriter(
                    self.path, self.database, self._lock, self._catalog, self.models, lambda: self.vectors,
                    self.budget, self.trace, self.config.scratch_path)  # fmt: skip
            return self._opened_writer

    def index(
        self, roots: Item | Sequence[Item] = (), *, retry: bool = False, progress: FileProgress | None = None
    ) -> IndexReport:
        """Brings the collection up to date with folders and files. Reads only files that changed since the last run,
        and embeds only new passages. The next call continues an interrupted run.

        Args:
            roots: folders or files; if empty, all roots of the collection.
            retry: tries unchanged files again that failed or were skipped before.
            progress: called with the number of finished passages, the total, which is an estimate until all files are
                read, and the place, such as `4 of 9 files read: notes.md`.

        Raises:
            InputError: a root does not exist, or the collection has no root.
            ModelError: the embedder is missing, or not the one the collection was made with.
            StorageError: another process keeps writing, or the disk refuses.
            BudgetExceeded: the limit is too small.
        """
        given = [resolved(root) for root in listed(roots)]
        check_there(given)
        return self._writer.index(given, retry=retry, progress=progress)

    def update(self, paths: Iterable[Item], *, progress: FileProgress | None = None) -> IndexReport:
        """Brings single files and folders up to date after they appeared, changed or disappeared. Ignores paths that
        lie below no root of the collection, and paths that its ignore files exclude. Raises as `index` does."""
        return self._writer.update([absolute(path) for path in paths], progress=progress)

    def refresh(self, root: Item, query: str = "") -> None:
        """Takes in by their words a megabyte of new and changed files below a folder, those with most of the query's
        words first. Raises as `index` does, `StoreBusy` after 5 s."""
        self._writer.refresh(resolved(root), query)

    def complete(self) -> None:
        """Reads what `refresh` has left and makes the vectors. Others may write meanwhile. Raises as `index` does."""
        self._writer.complete()

    def add(
        self, items: Item | Sequence[Item], *, ids: Sequence[str] | None = None, title: str | Sequence[str] = ""
    ) -> list[str]:
        """Adds texts, files and folders. An item that exists already is replaced. Raises as `index` does, too.

        Args:
            items: `Path` objects are files or folders. A string is a text, unless it is the absolute path of an
                existing file or folder.
            ids: names of the texts, one for each item; default names are made from the content.
            title: one title for all texts, or one for each item. It is embedded with every passage of its text.

        Returns:
            The `path` under which each item is found.

        Raises:
            InputError: a path does not exist, or a text or an id is empty or not valid Unicode; nothing was added.
        """
        return self._writer.add(items, ids, title)

    def delete(self, items: Item | Sequence[Item]) -> int:
        """Removes files, folders with everything below them, and texts (by name) from the collection. Files on disk
        stay untouched. A deleted root is no longer indexed or watched. A file below a remaining root is indexed again
        by the next `index`, unless an ignore file excludes it. A string that names an added text is not treated as a
        path.

        Returns how many files and texts were removed.

        Raises:
            InputError: a path is empty, or not valid Unicode; nothing was removed.
        """
        return self._writer.delete(_meant(items))

    def purge(self, items: Item | Sequence[Item]) -> Erasure:
        """Removes what `delete` removes, and erases it, and what earlier removals have left: from the rows, the words,
        the vectors and the log, and from the KV states of documents. Afterwards no file of the collection holds a byte
        of the texts. After a kill the next opening for writing ends it.

        Returns what was erased, and what could not be reached.

        Raises:
            InputError: a path is empty, or not valid Unicode; nothing was removed.
            StorageError: another process is reading an older state, which keeps the log; all is deleted.
        """
        return self._writer.purge(_meant(items))

    def rebuild(self, *, progress: Progress | None = None) -> int:
        """Embeds all stored passages again, for example after vectors were damaged; returns how many. The next call of
        `rebuild`, `index` or `add` continues an interrupted rebuild. `progress` is called with the number of finished
        passages and their total. Raises as `index` does."""
        return self._writer.rebuild(progress)

    def compact(self, *, progress: Callable[[str, int, int], None] | None = None) -> bool:
        """Frees the space of deleted data, and optimizes the vector lists and the full-text index. Returns False if
        another process is reading: then a later write removes the old vector lists."""
        return self._writer.compact(progress)

    # Reading

    def search(
        self, query: str, top_k: int | None = None, *, options: SearchOptions | None = None, **named: Any
    ) -> list[Hit]:
        """The best passages for a query, best first. BM25 and vector scores are fused, and the cross-encoder reranks
        the best candidates (GRATING). A hit that continues another hit is merged into it.

        Args:
            top_k: the most results.
            options: how passages are searched for.
            **named: fields of `SearchOptions` one by one, such as `rerank=False`; they replace those of `options`.

        Raises:
            InputError: the query is empty or not valid Unicode, or an option is unknown or makes no sense.
            ModelError: a model is missing, or the embedder is not the one the collection was made with.
            BudgetExceeded: the limit is too small.
        """
        return Together({"": self}).search(query, top_k, options=options, **named)

    def candidates(
        self, query: str, vector: Floats | None = None, k: int = POOL, *, where: Conditions = None
    ) -> list[Hit]:
        """The best `k` passages before reranking, without snippets. Neighbouring passages stay separate; of several
        passages with the same wording, only one is returned. Raises as `search` does.

        Args:
            query: words, or parts that begin with `lex:`, `vec:` and `hyde:` (see `Query.parse`).
            vector: of the query [dim], or of its parts [n, dim]; embedded here if not given.
        """
        parts = Query.parse(checked_query(query))
        if vector is None and self.identity is not None and (parts.questions or parts.passages):
            with self.trace.timed("search.embed_s", "embed", "search"):
                vector = self.models.embed_parts(parts.questions, parts.passages)
        with self.trace.timed("search.search_s", "search", "search"):
            within = Within(embedder=self.models.embedder_name())
            chosen = parts.among(Filters.of(where))
            return candidates({"": self.source}, [parts.words], [[vector]], k, where=chosen, within=within)[0]

    def lookahead(
        self, queries: Floats, *, seconds: float | None = None, lost: Callable[[float], object] | None = None
    ) -> Lookahead | None:
        """Starts to prefetch the vector lists for searches near `queries` [n, dim]; None if there are no vectors."""
        index = self.vectors
        if index is None:
            return None
        with self.database.read() as db:
            return index.lookahead(db, queries, seconds=seconds, lost=lost)

    def health(self) -> Health:
        """Unfinished work and known damage. Does not read all data, as `check` does."""
        return self._health(None)

    def _health(self, vectors: int | None) -> Health:
        """Args:
        vectors: number of vectors in the index, to compare with the passages; None skips the comparison.
        """
        busy = self._lock.is_held()
        where = f" -c {shlex.quote(str(self.path))}" if is_project(self.path) else ""
        remedy = "" if busy else f"edge index{where}"
        with self.database.read() as db:
            due = db.execute("SELECT count(*) FROM files WHERE due").fetchone()[0]
            rebuilding = Rebuilding(self.database, self.passages).trouble(db, "passages", remedy)
            found = [rebuilding]
            if due or is_noted(db, "indexing"):
                found.append(Trouble("indexing", unfinished(due, busy, embedding=rebuilding is not None), remedy))
            if busy and is_noted(db, "compacting"):
                found.append(Trouble("compacting", "the collection is being compacted", ""))
            if vectors is not None and rebuilding is None:
                passages = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
                if passages != vectors:
                    what = f"the index has {counted(vectors, 'vector')} for {counted(passages, 'passage')}"
                    found.append(Trouble("missing vectors", what, "edge repair"))
            return gathered(db, self.database.verbs, *found)

    def status(self) -> CollectionStatus:
        """The content of the collection, the skipped files with their reasons, and the state of its index."""
        index, counters = self.vectors, self.trace.snapshot()
        with self.database.read() as db:
            vectors = None if index is None else index.status(db)
            return CollectionStatus(
                path=self.path, **contents(db),
                database_nbytes=sum(file.stat().st_size for file in self.path.glob("edge.db*")),
                embedder=self.identity, vectors=vectors, resident_nbytes=self.budget.holders().get("lists", 0),
                list_hits=int(counters.get("lists.hits", 0)), list_misses=int(counters.get("lists.misses", 0)),
                health=self._health(0 if vectors is None else vectors.rows),
            )  # fmt: skip

    def files(self, where: Conditions = None) -> list[IndexedFile]:
        """The indexed files that pass the conditions, in the order of their paths.

        Raises:
            InputError: a condition is none, or one on passages.
        """
        chosen = Filters.of(where)
        if chosen.without:
            raise InputError(f"without:{chosen.without[0]} is a condition on passages, and files are listed")
        with self.database.read() as db:
            clause, params = chosen.where(db)
            rows = db.execute(
                "SELECT path, kind, title, size, mtime_ns, (SELECT count(*) FROM chunks WHERE chunks.file = files.id) "
                "FROM files LEFT JOIN mails ON mails.file = files.id "
                f"WHERE status = 'indexed' AND {clause} GROUP BY path ORDER BY path",
                params,
            )
            return held(db, rows, lambda row: IndexedFile(*row))

    def describe(self, path: Item, text: str) -> None:
        """Sets the description of a folder or file, which is returned with every hit below it; an empty text removes
        it. Raises `InputError` if the text is too long or not valid Unicode."""
        with self._lock(), self.database.write() as db:
            describe(db, resolved(path), text)

    def descriptions(self) -> dict[str, str]:
        """The descriptions of folders and files, by path."""
        with self.database.read() as db:
            return read_descriptions(db)

    def close(self) -> None:
        if self._opened_writer is not None:
            self._opened_writer.close()
        # First, so that searches in other threads have ended and no new one opens a model or the index again.
        self.database.close()
        self.models.close()
        with self._opening:
            if self._vectors is not None:
                self._vectors.close()
                self._vectors = None


def _meant(items: Item | Sequence[Item]) -> list[tuple[str | None, tuple[str, ...]]]:
    """For each item, its name if it may name a text, and the paths that it may mean. No path can have some names."""
    given = [(item, isinstance(item, str) and "\0" in item) for item in listed(items)]
    return [
        (item if isinstance(item, str) else None, () if no_path else (absolute(item), resolved(item)))
        for item, no_path in given
    ]


class Together(Closing):
    """Open collections that share one budget, by the names they were chosen by (the default one's is empty). The first
    collection's reranker ranks all candidates. A hit's `id` and `file` are numbers within its `collection`."""

    def __init__(self, collections: Mapping[str, Collection]) -> None:
        self.collections = dict(collections)
        self.budget = self.first.budget

    @property
    def sources(self) -> dict[str, PassageSource]:
        return {name: collection.source for name, collection in self.collections.items()}

    @classmethod
    def opened(
        cls,
        chosen: Sequence[str] | Mapping[str, str],
        config: Config,
        trace: Trace | None = None,
        *,
        candidates: int = POOL,
    ) -> Together:
        """Opens collections for reading, by names or directories, or by names with their directories; if none is given,
        the default collection.
        `candidates` are the passages that a search will rank, so that a refusal can name a sufficient limit."""
        budget = opened_budget(
            "the collection", config.memory, config, candidates=candidates, databases=max(1, len(set(chosen)))
        )
        found: dict[str, Collection] = {}
        places: dict[Path, str] = {}
        with ExitStack() as stack:
            for name, place in (chosen if isinstance(chosen, Mapping) else located(chosen)).items():
                path = Path(place)
                if path in places:
                    continue
                places[path] = name
                found[name] = stack.enter_context(
                    Collection(path, config=config, budget=budget, trace=trace, read_only=True)
                )
            stack.pop_all()
        return cls(found)

    def health(self) -> Health:
        if len(self.collections) == 1:
            return self.first.health()
        return Health(
            tuple(
                replace(trouble, text=f"{name or collection.path}: {trouble.text}")
                for name, collection in self.collections.items()
                for trouble in collection.health()
            )
        )

    def check_search(self, query: str, options: SearchOptions) -> None:
        self.first.models.check_room(
            "searching", rerank=options.rerank, candidates=options.candidates, query=query_nbytes(checked_query(query))
        )

    def search(
        self,
        query: str,
        top_k: int | None = None,
        *,
        options: SearchOptions | None = None,
        seen: Seen | None = None,
        spelled: Mapping[str, str] | None = None,
        **named: Any,
    ) -> list[Hit]:
        """Searches like `Collection.search`, over all collections. Their candidates compete by their fused scores.
        `seen` receives the results of each stage, and does not change them; `spelled` is what `spelled` has found."""
        chosen = search_options(top_k, options, named)
        self.check_search(query, chosen)
        parts = Query.parse(respelled(query, self.spelled(query) if spelled is None else spelled))
        first, collections = self.first, self.collections.values()
        vectors: dict[str, Floats] = {}  # by fingerprint of the embedder
        own: list[list[Floats | None]] = []
        for collection in collections:
            identity = collection.identity if parts.questions or parts.passages else None
            if identity is not None and identity.fingerprint not in vectors:
                with collection.trace.timed("search.embed_s", "embed", "search"):
                    vectors[identity.fingerprint] = collection.models.embed_parts(parts.questions, parts.passages)
            own.append([None if identity is None else vectors[identity.fingerprint]])
        with first.trace.timed("search.search_s", "search", "search"):
            (hits,) = self.candidates(
                [parts.words], own, chosen.candidates, where=parts.among(chosen.filters),
                within=Within(embedder=first.models.embedder_name()),
            )  # fmt: skip
        if seen is not None:
            seen.fused(self._shown(parts, results_of(hits, chosen)))
        if chosen.rerank and not mostly_code(hits):
            watch = None if seen is None else partial(seen.judged, hits)
            hits = first.rerank(parts.asked, hits, chosen.top_k, watch=watch, judged=chosen.judged, files=chosen.files)
        return self._shown(parts, kept(hits, chosen))

    def candidates(
        self, words: Sequence[str], vectors: Sequence[Sequence[Floats | None]], k: int, *, where: Filters,
        within: Within,
    ) -> list[list[Hit]]:  # fmt: skip
        return candidates(self.sources, words, vectors, k, where=where, within=within)

    def spelled(self, query: str) -> dict[str, str]:
        """The words of a query that no passage holds and that are probably misspelled, each with the most similar word
        of the passages, which is searched for in its place."""
        return misspelled(query, list(self.sources.values()), self.first.models)

    def is_nonsense(self, query: str) -> bool:
        """Whether no word of a query is known: no passage holds one, and the embedder's vocabulary has none as one
        token. The vector of such a query is near to passages by chance."""
        return is_nonsense(query, list(self.sources.values()), self.first.models)

    def _shown(self, query: Query, hits: Sequence[Hit]) -> list[Hit]:
        shown = {
            (name, hit.id): hit
            for name, source in self.sources.items()
            for hit in source.show(query.shown, [hit for hit in hits if hit.collection == name])
        }
        return [shown[hit.collection, hit.id] for hit in hits]

    def read(
        self,
        targets: Sequence[str],
        *,
        lines: int | None = None,
        max_bytes: int | None = None,
        missing: list[str] | None = None,
    ) -> list[Excerpt]:
        """Reads targets (see `read_excerpts`), each from the first collection that has it. `missing` is told a sentence
        about each that cannot be read; without it, that is an `InputError`."""
        from edge.apps.collection.excerpts import MOST_BYTES  # a search does without

        most = MOST_BYTES if max_bytes is None else max_bytes
        found: list[Excerpt] = []
        for target in targets:
            left = most - sum(len(excerpt.text.encode()) for excerpt in found)
            if found and left <= 0:
                break
            try:
                found += self._excerpts(target, lines, left)
            except InputError as error:
                if missing is None:
                    raise
                missing.append(str(error))
        return found

    def _excerpts(self, target: str, lines: int | None, left: int) -> list[Excerpt]:
        from edge.apps.collection.excerpts import NotIndexed, read_excerpts

        *others, last = self.collections.values()
        for collection in others:
            with contextlib.suppress(NotIndexed):
                return read_excerpts(collection.database, [target], lines=lines, max_bytes=left)
        return read_excerpts(last.database, [target], lines=lines, max_bytes=left)

    def close(self) -> None:
        for collection in self.collections.values():
            collection.close()

    @property
    def first(self) -> Collection:
        """The collection whose models work for all: the first one that has vectors, or else the first one."""
        found = list(self.collections.values())
        return next((one for one in found if len(found) == 1 or one.identity is not None), found[0])
