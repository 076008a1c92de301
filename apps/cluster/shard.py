"""The processes of a cluster. `Shard`: a collection that holds a part of a larger one, and answers requests. `Reader`:
reads, cuts and embeds files. A version is one committed state of every shard, which keeps a read transaction open for
each version that searches may name."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.cluster.calling import (
    NoSuchVersion,
    ShardDocument,
    answered,
    figures,
    hit_values,
    packed,
    unpacked_documents,
)
from edge.apps.cluster.catalogue import home
from edge.apps.collection.catalog import (
    Catalog,
    FileRow,
    chunk_hash,
    description_of,
    files_below,
    passage,
    read_descriptions,
)
from edge.apps.collection.collection import Collection
from edge.apps.collection.excerpts import read_excerpts
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.intake import content_hash, is_racy
from edge.apps.collection.searching import Floats, PassageSource, Ranking, Within
from edge.apps.documents.base import Chunk, Mail, Reason, Skipped, Stamp, unpacked
from edge.apps.documents.extraction import Extractor
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.database import set_setting
from edge.apps.store.lexical import Statistics
from edge.apps.store.rebuilding import EMBEDDER
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import InputError, ModelError, StorageError
from edge.ivf.base import Connection, Quantizer
from edge.ivf.index import VectorIndex
from edge.ivf.storage.manifest import IndexManifest
from edge.models.blending import BM25_WEIGHT, convex_combination
from edge.models.registry import cosine_floor
from edge.resident import Closing, anonymous_resident, reported_nbytes
from edge.runtimes.embedder import Embedder
from edge.trace import Trace


class Reader(Closing):
    def __init__(self, *, memory: int, config: Config) -> None:
        self._budget = MemoryBudget(memory)
        self._config = config
        self._trace = Trace()
        self._extractor = Extractor(budget=self._budget, trace=self._trace)
        self._embedder: Embedder | None = None

    def answer(self, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return answered(self._read, head, raw)

    def _read(self, raw: bytes, *, files: list[tuple[str, str]], source: str, fingerprint: str) -> tuple[Any, bytes]:
        """The documents of files, each with its root, and the others with their outcome and its reason."""
        embedder = self._opened(source, fingerprint)
        documents: list[ShardDocument] = []
        others: list[tuple[str, str, str]] = []
        for path, root in files:
            found = self._outcome(Path(path), root, embedder)
            if isinstance(found, ShardDocument):
                documents.append(found)
            else:
                others.append((path, *found))
        about, beside = packed(documents)
        return {"documents": about, "others": others}, beside

    def _outcome(self, path: Path, root: str, embedder: Embedder) -> ShardDocument | tuple[str, str]:
        try:
            return self._document(path, root, embedder)
        except FileNotFoundError:
            return "gone", ""
        except Skipped as error:
            return "unreadable" if error.reason is Reason.UNREADABLE else "skipped", str(error)
        except OSError as error:
            return "unreadable", f"cannot be read: {error.strerror or error}"
        except InputError as error:
            return "failed", str(error)

    def _document(self, path: Path, root: str, embedder: Embedder) -> ShardDocument:
        stamp = Stamp.of(path.stat())
        racy, digest = is_racy(stamp.mtime_ns, time.time()), content_hash(path)
        found = self._extractor.extract(path)
        vectors = np.empty((0, embedder.dim), np.float32)
        if found.chunks:
            vectors = embedder.embed([passage(chunk.context, chunk.text) for chunk in found.chunks])
        return ShardDocument(
            str(path), root, found.kind, found.title, digest, found.chunks, vectors, stamp, racy, found.warning,
            found.mails,
        )  # fmt: skip

    def _opened(self, source: str, fingerprint: str) -> Embedder:
        if self._embedder is None:
            self._embedder = Embedder(source, budget=self._budget, config=self._config, trace=self._trace)
        if self._embedder.model.fingerprint != fingerprint:
            raise ModelError(f"{source} on this machine is another build of the model that made the vectors")
        return self._embedder

    def close(self) -> None:
        self._extractor.close()
        if self._embedder is not None:
            self._embedder.close()


Result = TypeVar("Result")


class _View(Closing):
    """A read transaction in a thread of its own."""

    def __init__(self, shard: Shard) -> None:
        self._thread = ThreadPoolExecutor(1, "edge-shard-view")
        self._stack = ExitStack()
        self._held: object = None
        try:
            self.run(self._begin, shard)
        except BaseException:
            self.close()
            raise

    def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return self._thread.submit(work, *arguments).result()

    def close(self) -> None:
        self._thread.submit(self._stack.close)
        self._thread.shutdown()
        self._held = None

    def _begin(self, shard: Shard) -> None:
        db = self._stack.enter_context(shard.collection.database.read())
        self.token, self.quantizer = shard.token(db)  # the first read begins the transaction
        index = shard.collection.vectors
        self._held = None if index is None else index.snapshot(db)  # keeps its files


class Shard(Closing):
    """Thread-safe."""

    def __init__(self, path: str | Path, *, memory: str | int, config: Config) -> None:
        self.began = anonymous_resident()
        """Anonymous resident bytes before the collection is opened."""
        self.collection = Collection(path, memory=memory, config=config)
        self._catalog = Catalog()
        self._lock = WriterLock(self.collection.path / LOCK)
        self._views: dict[int, _View] = {}
        self._changing = threading.Lock()
        self._verbs: dict[str, Callable[..., tuple[Any, bytes]]] = {
            "configure": self._configure, "publish": self._publish, "retire": self._retire, "state": self._state,
            "statistics": self._statistics, "gather": self._gather, "hits": self._hits,
            "resembling": self._resembling, "put": self._put,
            "remove": self._remove, "leaving": self._leaving, "known": self._known, "below": self._below,
            "sample": self._sample, "install": self._install, "maintain": self._maintain, "read": self._read,
            "files": lambda raw: ([asdict(one) for one in self.collection.files()], b""),
            "status": lambda raw: (self.collection.status().to_json(), b""),
            "descriptions": lambda raw: (self.collection.descriptions(), b""),
        }  # fmt: skip

    def answer(self, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return answered(self._verbs[verb], head, raw)

    def close(self) -> None:
        with self._changing:
            while self._views:
                self._views.popitem()[1].close()
        self.collection.close()

    def token(self, db: Any) -> tuple[str, int]:
        manifest = IndexManifest(db)
        return "-".join(map(str, manifest.stamp())), manifest.state().quantizer

    # Versions

    def _configure(self, raw: bytes, *, identity: str) -> tuple[Any, bytes]:
        with self._lock(), self.collection.database.write() as db:
            set_setting(db, EMBEDDER, identity)
        return None, b""

    def _publish(self, raw: bytes, *, version: int, token: str | None = None) -> tuple[Any, bytes]:
        """Keeps the present state as a version: a new one, or the one whose state `token` names."""
        with self._changing:
            if version not in self._views:
                view = _View(self)
                if token not in (None, view.token):
                    view.close()
                    raise NoSuchVersion(f"the shard in {self.collection.path} has changed since version {version}")
                self._views[version] = view
            view = self._views[version]
        return {"token": view.token, "quantizer": view.quantizer}, b""

    def _retire(self, raw: bytes, *, version: int) -> tuple[Any, bytes]:
        """Forgets all versions before one, so that the log can be moved into its file."""
        with self._changing:
            for old in [number for number in self._views if number < version]:
                self._views.pop(old).close()
        return None, b""

    def _view(self, version: int) -> _View:
        with self._changing:
            if version not in self._views:
                raise NoSuchVersion(f"the shard in {self.collection.path} does not hold version {version}")
            return self._views[version]

    # Searching

    def _statistics(self, raw: bytes, *, version: int, terms: list[str]) -> tuple[Any, bytes]:
        return self._view(version).run(self._figures, terms), b""

    def _figures(self, terms: list[str]) -> dict[str, Any]:
        with self.collection.database.read() as db:
            return figures(self._catalog.lexical.statistics(db, terms))

    def _gather(
        self, raw: bytes, *, version: int, queries: list[tuple[str, int]], depth: int, whole: dict[str, Any] | None,
        terms: list[str], where: list[str], within: dict[str, Any], k: int, resident: bool,
    ) -> tuple[Any, bytes]:  # fmt: skip
        """The rankings of `PassageSource.gather`, with all places, and the hits that the results will probably need.
        `queries` has the words of each and the number of its vectors in `raw`; `resident` asks which lists are in
        memory."""

        def work() -> tuple[dict[str, Any], bytes]:
            asked, at = [], 0
            dim = 0 if self.collection.identity is None else self.collection.identity.dim
            rows = np.frombuffer(raw, np.float32).reshape(-1, dim) if raw else None
            for words, count in queries:
                asked.append((words, rows[at : at + count] if rows is not None and count else None))
                at += count
            source = self.collection.source
            statistics = None if whole is None else Statistics(**whole)
            found = source.gather(asked, depth, statistics, Filters.parse(where), Within(**within))
            ids = dict.fromkeys(i for pair in found for ranking in pair for i, _ in ranking)
            hits: dict[int, Hit] = {}
            floor = cosine_floor(within.get("embedder", ""))
            for each in found:
                _add_likely(hits, source, each, k, floor, alone=whole is None)
            places = source.places(list(ids))
            answer = {
                "rankings": found,
                "places": [[i, *place] for i, place in places.items()],
                "hits": self._described(hits.values()),
                "statistics": self._figures(terms) if terms else None,
            }
            if not resident:
                return answer, b""
            with self.collection.database.read() as db:
                return answer, np.packbits(self._index.resident(db)).tobytes()

        return self._view(version).run(work)

    def _resembling(self, raw: bytes, *, version: int, word: str) -> tuple[Any, bytes]:
        return self._view(version).run(self.collection.source.resembling, word), b""

    def _hits(self, raw: bytes, *, version: int, ids: list[int]) -> tuple[Any, bytes]:
        return self._view(version).run(lambda: self._described(self.collection.source.hits(ids).values())), b""

    def _described(self, hits: Iterable[Hit]) -> list[list[Any]]:
        with self.collection.database.read() as db:
            described = read_descriptions(db)
        return [hit_values(replace(hit, description=description_of(hit.path, described))) for hit in hits]

    def _read(self, raw: bytes, *, target: str, lines: int | None, max_bytes: int) -> tuple[Any, bytes]:
        """Of the present state."""
        found = read_excerpts(self.collection.database, [target], lines=lines, max_bytes=max_bytes)
        return [asdict(one) for one in found], b""

    # Writing

    @property
    def _index(self) -> VectorIndex:
        index = self.collection.vectors
        if index is None:
            raise StorageError(f"the shard in {self.collection.path} was not told its embedder")
        return index

    def _put(self, raw: bytes, *, documents: list[dict[str, Any]]) -> tuple[Any, bytes]:
        """In one transaction, which is durable when this returns; the number of new passages."""
        index = self._index
        given = unpacked_documents(documents, raw, index.dim)
        with self._lock(), self.collection.database.write() as db:
            return put(db, self._catalog, index, given), b""

    def _remove(self, raw: bytes, *, paths: list[str]) -> tuple[Any, bytes]:
        index = self._index
        with self._lock(), self.collection.database.write() as db:
            return take(db, self._catalog, index, paths), b""

    def _leaving(
        self, raw: bytes, *, after: str, limit: int, shards: list[str], own: str, data: bool
    ) -> tuple[Any, bytes]:
        """Of the next documents, those whose home is another shard: paths by home, and documents if `data`; and the
        path to go on after."""
        index = self._index
        with self.collection.database.read() as db:
            paths = paths_after(db, after, limit)
            going: dict[str, list[str]] = {}
            for path in paths:
                if (to := home(path, shards)) != own:
                    going.setdefault(to, []).append(path)
            wanted = [path for own in going.values() for path in own] if data else []
            documents = stored(db, self._catalog, index, wanted)
        about, beside = packed(documents)
        return {"going": going, "documents": about, "after": paths[-1] if len(paths) == limit else ""}, beside

    def _below(self, raw: bytes, *, root: str, after: str, limit: int) -> tuple[Any, bytes]:
        condition, params = files_below(root)
        with self.collection.database.read() as db:
            sql = f"SELECT path FROM files WHERE {condition} AND path > ? ORDER BY path LIMIT ?"
            return [path for (path,) in db.execute(sql, (*params, after, limit))], b""

    def _known(self, raw: bytes, *, paths: list[str]) -> tuple[Any, bytes]:
        """Of those that are indexed completely."""
        with self.collection.database.read() as db:
            rows = [row for path in paths if (row := self._catalog.find(db, path)) is not None]
        return {
            row.path: [row.size, row.mtime_ns, row.inode, row.ctime_ns, row.racy, row.hash.hex()]
            for row in rows if row.hash is not None and row.status == "indexed"
        }, b""  # fmt: skip

    def _sample(self, raw: bytes, *, count: int, seed: int) -> tuple[Any, bytes]:
        index = self._index
        with self.collection.database.read() as db:
            rows = index.drawn(db, count, seed)
        return len(rows), rows.tobytes()

    def _install(self, raw: bytes) -> tuple[Any, bytes]:
        """Returns its recall curve."""
        with self._lock():
            return self._index.install_quantizer(self.collection.database.write, Quantizer.from_bytes(raw)), b""

    def _maintain(self, raw: bytes, *, full: bool = False) -> tuple[Any, bytes]:
        with self._lock():
            return asdict(self._index.maintain(self.collection.database.write, full=full)), b""

    def _state(self, raw: bytes) -> tuple[Any, bytes]:
        with self.collection.database.read() as db:
            state = asdict(IndexManifest(db).state())
            documents = db.execute("SELECT count(*) FROM files WHERE status = 'indexed'").fetchone()[0]
            passages = db.execute("SELECT count(*) FROM chunks").fetchone()[0]
        return {
            "index": state, "documents": documents, "passages": passages, "versions": sorted(self._views),
            "limit": self.collection.budget.limit, "pid": os.getpid(), "began": self.began,
            "resident": anonymous_resident(),
            "shared": reported_nbytes("RssShmem") or 0,  # such as an object store's
        }, b""  # fmt: skip


def put(db: Connection, catalog: Catalog, index: VectorIndex, documents: Iterable[ShardDocument]) -> int:
    """Adds or replaces documents inside a write transaction; returns how many passages were added."""
    ids: list[npt.NDArray[np.int64]] = []
    vectors: list[Floats] = []
    for one in documents:
        row = catalog.find(db, one.path)
        file = catalog.insert(db, one.path, one.root, due=False) if row is None else row.id
        if not _has(db, catalog, row, one):
            catalog.empty(db, file, index)
            ids.append(catalog.insert_chunks(db, file, enumerate(one.chunks)))
            vectors.append(one.vectors)
            catalog.set_mails(db, file, one.mails)
        catalog.settle(
            db, file, status="indexed", reason=one.reason, stamp=one.stamp, racy=one.racy, hash=one.hash,
            kind=one.kind, title=one.title,
        )  # fmt: skip
    if not ids:
        return 0
    numbers = np.concatenate(ids)
    index.add(db, numbers, np.concatenate(vectors))
    return len(numbers)


def _has(db: Connection, catalog: Catalog, row: FileRow | None, one: ShardDocument) -> bool:
    if row is None or row.hash != one.hash or row.status != "indexed" or row.due:
        return False
    return [chunk.hash for chunk in catalog.chunks(db, row.id)] == [chunk_hash(chunk) for chunk in one.chunks]


def take(db: Connection, catalog: Catalog, index: VectorIndex, paths: Iterable[str]) -> int:
    """Inside a write transaction; returns how many there were."""
    rows = [row for path in paths if (row := catalog.find(db, path)) is not None]
    for row in rows:
        catalog.remove(db, row.id, index)
    return len(rows)


def stored(db: Connection, catalog: Catalog, index: VectorIndex, paths: Iterable[str]) -> list[ShardDocument]:
    """Those that are not there, or not complete, are left out."""
    found = []
    for path in paths:
        row = catalog.find(db, path)
        if row is None or row.hash is None or row.status != "indexed":
            continue
        rows = db.execute(
            "SELECT id, text, context, line_start, line_end, page, lines, kinds FROM chunks WHERE file = ? "
            "ORDER BY ordinal",
            (row.id,),
        ).fetchall()
        chunks = tuple(
            Chunk(
                text, context, start, end, page,
                None if lines is None else unpacked(lines, start, end, text.count("\n") + 1), kinds or b"",
            )
            for _, text, context, start, end, page, lines, kinds in rows
        )  # fmt: skip
        vectors = index.vectors(db, np.array([each[0] for each in rows], np.int64))
        mails = db.execute(
            "SELECT page, sender, recipients, subject, sent, id, thread FROM mails WHERE file = ?", (row.id,)
        )
        stamp = Stamp(row.size, row.mtime_ns, row.inode, row.ctime_ns)
        found.append(
            ShardDocument(
                path, row.root, row.kind, row.title, row.hash, chunks, vectors, stamp, bool(row.racy), row.reason,
                {page: Mail(*mail) for page, *mail in mails.fetchall()},
            )
        )  # fmt: skip
    return found


def paths_after(db: Connection, after: str, limit: int) -> list[str]:
    rows = db.execute("SELECT path FROM files WHERE path > ? ORDER BY path LIMIT ?", (after, limit))
    return [path for (path,) in rows]


def _add_likely(
    hits: dict[int, Hit], source: PassageSource, found: tuple[Ranking, Ranking], k: int, floor: float, *, alone: bool
) -> None:
    """Adds the passages of a shard that may be among the best `k` of all. Unless it is `alone`, others decide the best
    BM25 score."""
    words, near = found
    fused = [i for i, _ in convex_combination(dict(words), dict(near), BM25_WEIGHT, floor=floor)]
    more, end = 0 if alone else k // 2, k
    wanted = [*fused[:k], *(i for i, _ in (*words[:more], *near[:more]))]
    while wanted:
        hits |= source.hits([i for i in dict.fromkeys(wanted) if i not in hits])
        missing = k - len({hits[i].wording for i in fused[:end]})
        wanted = fused[end : end + missing]
        end += missing
