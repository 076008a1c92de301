"""`Collection`: files and texts that are searched by meaning and by words, within one memory limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edge.apps.collection.additions import Additions, Item, listed
from edge.apps.collection.advance import Progress
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.descriptions import describe, read_descriptions
from edge.apps.collection.filters import Conditions, Filters
from edge.apps.collection.hits import Hit, merge
from edge.apps.collection.models import Models
from edge.apps.collection.passages import Passages
from edge.apps.collection.query import Query
from edge.apps.collection.report import CollectionStatus, IndexedFile, IndexReport, read_files, read_status
from edge.apps.collection.reranking import reranked
from edge.apps.collection.roots import absolute, check_there, read_roots, resolved
from edge.apps.collection.schema import open_database
from edge.apps.collection.searching import POOL, Searcher, checked_counts
from edge.apps.collection.storable import checked
from edge.apps.collection.writing import INDEXING, Writer
from edge.apps.planning import opened_budget
from edge.apps.store.health import Health
from edge.apps.store.models import EmbedderIdentity
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError, StorageError
from edge.ivf.index import VectorIndex
from edge.lookahead import Lookahead
from edge.public_calls import checked_arguments
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker
from edge.trace import Trace

DATABASE = "edge.db"
SEGMENTS = "segments"

Floats = npt.NDArray[np.float32]


@checked_arguments
class Collection:
    """Files and texts, searched by meaning and by words within one memory limit.

    Thread-safe: any number of readers beside one writer, in this process and in others. Models are opened when they are
    first needed.

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
        embedder: str | Embedder | None = None,
        reranker: str | Reranker | None = None,
        trace: Trace | None = None,
        read_only: bool = False,
    ) -> None:
        """Opens the collection in the directory `path`, or makes one there.

        Args:
            memory: limit of the whole process, such as `400MB`; the configuration's if not given.
            budget: a ledger shared with other parts of the program, instead of `memory`.
            embedder, reranker: names or paths, or open models that stay the caller's to close. The embedder is the
                collection's own if not given; it cannot change once there are vectors.
            read_only: nothing is made or changed.

        Raises:
            StorageError: there is no collection to read, it cannot be opened, or a newer version wrote it.
            BudgetExceeded: the limit is too small; the error names the smallest that works.
        """
        self.path = Path(path).expanduser().absolute()
        self.config = config or Config.load()
        self.trace = trace or Trace()
        if read_only and not self.exists(self.path):
            raise StorageError(f"there is no collection in {self.path}; `edge index DIR` makes one")
        self.budget = budget or opened_budget(
            "the collection", self.config.memory if memory is None else parse_size(memory), self.config,
            embedder=embedder, reranker=reranker, candidates=2 * POOL, extra=() if read_only else INDEXING,
        )  # fmt: skip
        self.database = open_database(self.path / DATABASE, self.budget, read_only=read_only)
        self._opening = threading.Lock()
        self._vectors: VectorIndex | None = None
        catalog = Catalog()
        self._models = Models(self.database, self.config, self.budget, self.trace, embedder=embedder, reranker=reranker)
        self._searcher = Searcher(self.database, catalog, self.budget, self.trace)
        self._writer = Writer(
            self.path, self.database, catalog, self._models, lambda: self.vectors, self.budget, self.trace
        )

    @staticmethod
    def exists(path: Item) -> bool:
        """Whether there is a collection in a directory."""
        return (Path(path).expanduser() / DATABASE).is_file()

    @property
    def embedder(self) -> Embedder:
        """The embedder, opened now if it was not. Raises as `search` does."""
        return self._models.embedder()

    @property
    def reranker(self) -> Reranker:
        """The reranker, opened now if it was not. Raises as `search` does."""
        return self._models.reranker()

    @property
    def vectors(self) -> VectorIndex | None:
        """The vector index; None as long as nothing was embedded."""
        with self._opening:
            identity = self._models.identity()
            if identity is None or (self._vectors is not None and self._vectors.dim == identity.dim):
                return self._vectors
            if self._vectors is not None:  # another model was chosen while the collection was empty
                self._vectors.close()
            self._vectors = VectorIndex(
                self.path / SEGMENTS, identity.dim, budget=self.budget, trace=self.trace, threads=self.config.threads,
                search_on=self.config.device)  # fmt: skip
            return self._vectors

    @property
    def identity(self) -> EmbedderIdentity | None:
        """The model that makes the collection's vectors; None as long as there is none."""
        return self._models.identity()

    @property
    def passages(self) -> Passages:
        """What the vectors are made from."""
        return Passages(self._models)

    @property
    def roots(self) -> list[str]:
        """Folders and files that the collection is kept up to date with."""
        with self.database.read() as db:
            return read_roots(db)

    # Writing

    def index(
        self, roots: Item | Sequence[Item] = (), *, retry: bool = False, progress: Progress | None = None
    ) -> IndexReport:
        """Brings the collection up to date with folders and files: only what changed since the last time is read, and
        only new passages are embedded. Interrupted, it goes on where it stopped when it is called again.

        Args:
            roots: folders or files; all that were ever given if empty.
            retry: tries files again that failed or were skipped before and have not changed since.
            progress: called with the passages that are done and the passages there will be, which is an estimate
                until all files are read.

        Raises:
            InputError: a root does not exist, or there is none.
            ModelError: the embedder is missing, or not the one the collection was made with.
            StorageError: another process keeps writing, or the disk refuses.
            BudgetExceeded: the limit is too small.
        """
        given = [resolved(root) for root in listed(roots)]
        check_there(given)
        return self._writer.index(given, retry=retry, progress=progress)

    def update(self, paths: Iterable[Item], *, progress: Progress | None = None) -> IndexReport:
        """Brings single files and folders up to date, whether they appeared, changed or went; what lies below no root
        of the collection, or is left out there, is ignored. Raises as `index` does."""
        return self._writer.update([absolute(path) for path in paths], progress=progress)

    def add(
        self, items: Item | Sequence[Item], *, ids: Sequence[str] | None = None, title: str | Sequence[str] = ""
    ) -> list[str]:
        """Adds texts, and files or folders; what is there already is replaced.

        Args:
            items: strings are texts, `Path` objects are files or folders; so is a string that is the absolute path of
                something that exists.
            ids: names of the texts, one for each item; made from the content if not given.
            title: of all texts, or one for each item: embedded with every passage of them.

        Returns:
            The `path` under which each item is found.

        Raises:
            InputError: a path does not exist, or a text or an id is empty or not valid Unicode; then nothing was added.
            Others as for `index`.
        """
        additions = Additions.of(items, ids, title)
        check_there(additions.files)
        with self._writer.lock():
            if additions.files:  # first, because one may not exist
                self._writer.index(additions.files, retry=False, progress=None)
            if additions.texts:
                self._writer.add_texts(additions.texts)
        return additions.names

    def delete(self, items: Item | Sequence[Item]) -> int:
        """Takes files, folders with all below them, and texts (by the name they were added under) out of the
        collection. Nothing on disk is touched; a root that is deleted is not indexed or watched any more, but what
        lies below a root that stays is taken in again by the next `index`, unless an ignore file names it. A string is
        no path where there is a text of that name.

        Returns:
            How many files and texts were taken out.

        Raises:
            InputError: a path is empty, or not valid Unicode; then nothing was taken out.
        """
        means = [(item, {absolute(item), resolved(item)}) for item in listed(items)]
        return self._writer.delete([(item if isinstance(item, str) else None, paths) for item, paths in means])

    def rebuild(self, *, progress: Progress | None = None) -> int:
        """Embeds every passage again, from the texts that are stored here: what to do where vectors are damaged.
        Interrupted, it goes on when it, `index` or `add` is called. Raises as `index` does.

        Args:
            progress: called with the passages that are done and the passages there are.

        Returns:
            How many passages there are.
        """
        return self._writer.rebuild(progress)

    def compact(self, *, progress: Callable[[str, int, int], None] | None = None) -> bool:
        """Gives the space of what was deleted back, and brings vector lists and full text into their best shape.

        Returns:
            False if another process reads: then the old vector lists go with a later run that writes.
        """
        return self._writer.compact(progress)

    # Reading

    def search(
        self,
        query: str,
        top_k: int = 10,
        *,
        rerank: bool = True,
        pool: int = POOL,
        where: Conditions = None,
        min_score: float = 0.0,
        min_blended: float = 0.0,
    ) -> list[Hit]:
        """The passages that answer a query best, best first: BM25 and vectors fused, and the best of them reranked by
        the cross-encoder (GRATING). A hit that continues another one is merged into it.

        Args:
            rerank: False leaves the fused order, and the reranker unopened.
            pool: candidates that are reranked, if not more are needed for `top_k` results.
            where: conditions on the files, such as `["type:pdf", "after:2024-01-01"]` (see `Filters`).
            min_score: hits whose relevance, the reranker's own judgement, is lower are left out.
            min_blended: hits whose `score`, by which they are ordered, is lower are left out.

        Raises:
            InputError: the query is empty or not valid Unicode, `top_k` or `pool` is not in 1 ... 10,000, a filter
                makes no sense, or `min_score` is asked for without the reranker.
            ModelError: a model is missing, or the embedder is not the one the collection was made with.
            BudgetExceeded: the limit is too small.
        """
        checked_counts(top_k, pool)
        if min_score > 0 and not rerank:
            raise InputError("only the reranker tells how relevant a passage is: rerank, or use --min-blended")
        # Twice as many, because neighbours become one hit.
        most = 2 * top_k
        count = max(pool, most) if rerank else most
        if checked(query, "the query").strip():
            self.check_room("searching", rerank=rerank, candidates=count)
        hits = self.candidates(query, k=count, where=where)
        if rerank:
            hits = self.rerank(Query.parse(query).asked, hits, top_k)
        kept = [hit for hit in merge(hits, top_k) if hit.score >= min_blended and hit.relevance >= min_score]
        return self.show(query, kept)

    def check_room(self, operation: str, *, rerank: bool = True, candidates: int = POOL) -> None:
        """Sees to it that an operation has room for all it will open; see `Models.check_room`."""
        self._models.check_room(operation, rerank=rerank, candidates=candidates)

    def candidates(
        self, query: str, vector: Floats | None = None, k: int = POOL, *, where: Conditions = None
    ) -> list[Hit]:
        """The best `k` passages before reranking, without snippets; neighbours stay apart, and of passages that read
        alike there is one.

        Args:
            query: words, or parts that begin with `lex:`, `vec:` and `hyde:` (see `Query.parse`).
            vector: of the query [dim], or of its parts [n, dim]; made here if not given.

        Raises:
            As for `search`.
        """
        parts = Query.parse(checked(query, "the query"))
        index = self.vectors
        if vector is None and index is not None and (parts.questions or parts.passages):
            vector = self.embed_query(parts)
        with self._timed("search"):
            return self._searcher.candidates(parts.words, vector, index, k, where=Filters.of(where))

    def show(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        """Hits with their snippets, the lines that match best, and what is said of their folders."""
        return self._searcher.show(Query.parse(query).shown, hits)

    def rerank(self, query: str, hits: Sequence[Hit], top_k: int | None = None) -> list[Hit]:
        """`hits`, given in retrieval order, by the reranker's judgement blended with their scores (with the order alone
        if a hit has none): as many as `merge` needs for the best `top_k` results, all of them if None. Raises as
        `search` does."""
        with self._timed("rerank"):
            return reranked(self._models, query, hits, top_k)

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        """The reranker's probability for each of some texts, of the collection or not, that it answers a query. Raises
        as `search` does."""
        found = [0.0] * len(texts)
        for ranked in self._models.rank(query, texts, len(texts), False) if texts else ():
            found[ranked.index] = ranked.relevance
        return found

    def embed_queries(self, queries: Sequence[str]) -> Floats:
        """Vectors of queries [n, dim]. Raises as `search` does."""
        with self._timed("embed"):
            return self._models.embed([checked(query, "the query") for query in queries], query=True)

    def embed_query(self, query: Query) -> Floats:
        """Vectors of a query's questions and imagined passages [n, dim]. Raises as `search` does."""
        with self._timed("embed"):
            return self._models.embed_parts(query.questions, query.passages)

    def lookahead(
        self, queries: Floats, *, seconds: float | None = None, nbytes: int | None = None
    ) -> Lookahead | None:
        """Starts fetching what searches near `queries` [n, dim] will need; None if the collection has no vectors."""
        index = self.vectors
        if index is None:
            return None
        with self.database.read() as db:
            return index.lookahead(db, queries, nbytes=nbytes, seconds=seconds)

    def health(self) -> Health:
        """What is unfinished or damaged, as far as it is known without reading everything (see `check`)."""
        return self._writer.health()

    def status(self) -> CollectionStatus:
        """What the collection holds, what was left out and why, and the state of its index."""
        index = self.vectors
        with self.database.read() as db:
            state = index.status(db) if index is not None else None
            rows = 0 if state is None else state.rows
            health = self._writer.health(rows)
            return read_status(db, self.path, self._models.identity(), state, self.budget, self.trace, health)

    def files(self, where: Conditions = None) -> list[IndexedFile]:
        """The indexed files that pass the conditions, in the order of their paths."""
        with self.database.read() as db:
            return read_files(db, Filters.of(where))

    def describe(self, path: Item, text: str) -> None:
        """Says what a folder or file is about, which is returned with every hit below it; an empty text takes it away.
        Raises `InputError` where the text is too long or not valid Unicode."""
        with self._writer.lock(), self.database.write() as db:
            describe(db, resolved(path), text)

    def descriptions(self) -> dict[str, str]:
        """What is said of folders and files, by path."""
        with self.database.read() as db:
            return read_descriptions(db)

    def close(self) -> None:
        """Closes everything that was opened here. Closing twice is harmless."""
        self._writer.close()
        # First, so that searches of other threads have ended, and none begins that would open what is closed here.
        self.database.close()
        self._models.close()
        with self._opening:
            if self._vectors is not None:
                self._vectors.close()
                self._vectors = None

    def __enter__(self) -> Collection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Counts the seconds of a stage of a search, and shows it in the trace."""
        started = time.perf_counter()
        with self.trace.span(stage, "search"):
            yield
        self.trace.count(f"search.{stage}_s", time.perf_counter() - started)
