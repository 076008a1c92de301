"""`Cluster`: a collection that is spread over shards. Its results, order and scores are those of one collection that
holds everything: the shards are sources of the same search (`edge.apps.collection.searching`). `index` brings it up to
date with folders: files go to readers in groups. A group that was lost with its reader is read again, and a run that
was killed skips the files that the shards have."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edge.apps.cluster.calling import Assignments, Latencies, Places, Reading, assignments, first, received, send
from edge.apps.cluster.catalogue import Catalogue, HeldState, Replica, averaged, has_version, home, merged
from edge.apps.cluster.messages import (
    Figures,
    NoSuchVersion,
    ShardDocument,
    ShardLost,
    ShardSource,
    asked,
    packed,
    unpacked_documents,
)
from edge.apps.cluster.shard import Send
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit, kept, reranked, results_of
from edge.apps.collection.models import CollectionModels
from edge.apps.collection.paths import absence, check_there, listed, nearest, resolved
from edge.apps.collection.query import Query, checked_query, mostly_code
from edge.apps.collection.searching import Floats, Seen, Within, candidates, is_nonsense, misspelled, shown
from edge.apps.documents.base import FoundFile, Reason, SkippedFile
from edge.apps.documents.scanner import scan
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.lexical import Statistics, respelled, shown_weights
from edge.apps.store.planning import opened_budget
from edge.apps.verbs.requests import POOL, SearchOptions, search_options
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.errors import InputError, StorageError, Unreachable
from edge.ivf.base import IndexOptions, Quantizer
from edge.ivf.maintenance.training import outgrown, train
from edge.ivf.storage.manifest import flat
from edge.plugins import load
from edge.resident import Closing
from edge.trace import Trace

Result = TypeVar("Result")

PATIENCE_S = 10.0

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Spread:
    """The results of a search; the numbers of hits are those of this version alone. `missing` shards did not answer.
    `trips`: the most requests that a shard got. Hits of `nonsense` are near by chance."""

    hits: list[Hit]
    missing: tuple[str, ...]
    version: int
    trips: int
    spelled: Mapping[str, str]
    nonsense: bool


@dataclass(frozen=True, slots=True)
class _Version:
    number: int
    shards: Mapping[str, Sequence[Replica]]
    held: Mapping[tuple[str, int], HeldState]
    figures: Mapping[str, Figures]
    assignments: Assignments

    @property
    def mixed(self) -> bool:
        return len({one.quantizer for one in self.held.values()}) > 1


class Cluster(Closing):
    """Threads may search while one writes; several processes may search, and one at a time writes."""

    def __init__(
        self,
        folder: Path,
        places: Places,
        *,
        config: Config,
        memory: str | int | None = None,
        budget: MemoryBudget | None = None,
        embedder: Any = None,
        reranker: Any = None,
        trace: Trace | None = None,
        patience: float = PATIENCE_S,
        options: IndexOptions | None = None,
    ) -> None:
        """Opens the collection whose catalogue is in `folder`, or makes an empty catalogue. A shard counts as lost
        after `patience` seconds. `options` are of the vector index, for training."""
        self.config = config
        self.trace = trace or Trace()
        self.budget = budget or opened_budget(
            "the collection", config.memory if memory is None else parse_size(memory), config, embedder=embedder,
            reranker=reranker, candidates=2 * POOL,
        )  # fmt: skip
        self.catalogue = Catalogue(folder, budget=self.budget)
        self.models = CollectionModels(
            self.catalogue.database, config, self.budget, self.trace, embedder=embedder, reranker=reranker,
            holds_passages=has_version,
        )  # fmt: skip
        self.places = places
        self._patience = patience
        self._options = options or IndexOptions()
        self._lock = WriterLock(folder / LOCK)
        self._latencies: dict[str, Latencies] = {}
        self._version: _Version | None = None
        self._turn = itertools.count()
        self._checked = False
        self._threads = ThreadPoolExecutor(64, "edge-cluster")

    # Searching

    def search(
        self, query: str, top_k: int | None = None, *, options: SearchOptions | None = None, partial: bool = False,
        seen: Seen | None = None, **named: Any,
    ) -> Spread:  # fmt: skip
        """Searches like `Collection.search`. With `partial`, gives the results of the others if a shard is lost, and
        names it."""
        chosen = search_options(top_k, options, named)
        self.models.check_room("searching", rerank=chosen.rerank, candidates=chosen.candidates)

        def gathered(version: _Version, sources: Mapping[str, ShardSource], asked: str) -> tuple[Query, list[Hit]]:
            parts, within = Query.parse(asked), Within(embedder=self.models.embedder_name())
            vectors = [self._embedded(parts)]
            with self.trace.timed("search.search_s", "search", "search"):
                (hits,) = self.candidates(
                    version, sources, [parts.words], vectors, chosen.candidates, parts.among(chosen.filters), within
                )
            return parts, hits

        def work(version: _Version, sources: Mapping[str, ShardSource]) -> Any:
            parts, hits = gathered(version, sources, query)  # first: what else is needed comes with it
            if spelled := misspelled(query, list(sources.values()), self.models, self.fan):
                parts, hits = gathered(version, sources, respelled(query, spelled))
            nonsense = is_nonsense(respelled(query, spelled), list(sources.values()), self.models)
            terms = [functools.partial(source.shown, parts.shown) for source in sources.values()]
            return spelled, parts, nonsense, hits, shown_weights(parts.shown, sum(self.fan(terms), Statistics()))

        result, missing, number, trips = self.asked(work, query, chosen.candidates, partial=partial)
        spelled, parts, nonsense, hits, weights = result
        if seen is not None:
            seen.fused([shown(hit, weights) for hit in results_of(hits, chosen)])
        if chosen.rerank and not mostly_code(hits):
            watch = None if seen is None else functools.partial(seen.judged, hits)
            with self.trace.timed("search.rerank_s", "rerank", "search"):
                hits = reranked(self.models, parts.asked, hits, chosen.top_k, watch, chosen.judged, chosen.files)
        found = [shown(hit, weights) for hit in kept(hits, chosen)]
        return Spread(found, missing, number, trips, spelled, nonsense)

    @property
    def count(self) -> int:
        return len(self._current().shards)

    def each(self, verb: str, **arguments: Any) -> list[Any]:
        """The answers of one copy of each shard to a request that names no version; `NotIndexed` where it has nothing
        of that name."""

        def one(copies: Sequence[Replica]) -> Any:
            try:
                return send(self.places, copies[0], verb, self._patience, **arguments)[0]
            except NotIndexed as error:
                return error

        return self.fan([functools.partial(one, copies) for copies in self._current().shards.values()])

    def asked(
        self, work: Callable[[_Version, Mapping[str, ShardSource]], Result], query: str, k: int = 0, *,
        partial: bool = False,
    ) -> tuple[Result, tuple[str, ...], int, int]:  # fmt: skip
        """What `work` returns for the shards of the present version, again if they have changed meanwhile; and
        `missing`, `version` and `trips` of `Spread`."""
        version, missing = self._current(), list[str]()
        checked_query(query)
        while True:
            sources = self._sources(version, missing, query, k)
            try:
                result = work(version, sources)
            except ShardLost as lost:
                if self._current().number != version.number or (lost.changed and self._settled()):
                    version, missing = self._current(), []
                elif not partial or len(missing) + 1 == len(version.shards):
                    raise
                else:
                    missing.append(lost.shard)
            else:
                trips = max(source.trips for source in sources.values())
                return result, tuple(sorted(missing)), version.number, trips

    def _embedded(self, parts: Query) -> Floats | None:
        if not (parts.questions or parts.passages) or self.models.identity() is None:
            return None
        with self.trace.timed("search.embed_s", "embed", "search"):
            return self.models.embed_parts(parts.questions, parts.passages)

    def _sources(self, version: _Version, missing: Sequence[str], query: str, k: int) -> dict[str, ShardSource]:
        """Each with another copy first than in the search before."""
        turn = next(self._turn)
        found = {}
        for name, copies in version.shards.items():
            if name not in missing:
                first = turn % len(copies)
                reading = Reading(
                    self.places, [*copies[first:], *copies[:first]], version.number, version.held,
                    self._latencies.setdefault(name, Latencies()), self._patience, version.assignments.get(name),
                )  # fmt: skip
                found[name] = ShardSource(
                    reading, version.number, version.figures[name], k, query, resident=name in version.assignments
                )
        return found

    def candidates(
        self, version: _Version, sources: Mapping[str, ShardSource], words: Sequence[str],
        vectors: Sequence[Floats | None], k: int, where: Filters, within: Within,
    ) -> list[list[Hit]]:  # fmt: skip
        """Their numbers differ between shards."""
        within.exhaustive = version.mixed
        found = candidates(sources, words, [vectors] * len(sources), k, where=where, within=within, fan=self.fan)
        at = {name: number for number, name in enumerate(version.shards)}
        return [
            [replace(hit, collection="", id=hit.id * len(at) + at[hit.collection]) for hit in hits] for hits in found
        ]

    def fan(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        return list(self._threads.map(lambda call: call(), calls))

    def _current(self) -> _Version:
        number, held = self.catalogue.version()
        known = self._version
        if known is None or known.number != number:
            if not number:
                raise StorageError(f"nothing was indexed into {self.catalogue.database.path.parent} yet")
            shards: dict[str, list[Replica]] = {}
            for replica in self.catalogue.replicas():
                if (replica.shard, replica.number) in held:
                    shards.setdefault(replica.shard, []).append(replica)
            figures = {name: Figures() for name in shards}
            known = self._version = _Version(
                number, shards, held, figures, assignments(self.catalogue, shards, self.budget)
            )
        return known

    # Writing

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Excludes other writers while the block runs, after unfinished changes were finished."""
        with self._lock():
            self._finish_growth()
            if not self._checked:
                self._publish_changes()
                self._checked = True
            yield

    def create(self, replicas: Sequence[Replica]) -> None:
        with self._lock():
            if self.catalogue.shards() or not replicas:
                raise InputError("the first shards are named once; further ones join with `grow`")
            self.models.claim()
            identity = self.models.identity()
            assert identity is not None
            self.catalogue.set_quantizer(Quantizer(1, flat(identity.dim), np.zeros((1, identity.dim), np.float32)))
            self._prepare(replicas)
            self.catalogue.add(replicas, "serving")
            self.publish()

    def put(self, documents: Sequence[ShardDocument]) -> int:
        """Adds documents, and replaces those of the same path; returns how many passages were added. When this returns
        they are durable in every copy; they are found from the next version on. After `ShardLost`, documents of the
        others may have been added, and adding all again does no harm."""
        own, replicas = self._homes(documents, lambda one: one.path)
        bodies = {shard: packed(group) for shard, group in own.items()}
        answers = self._all(
            replicas, "put", lambda to: (bodies[to.shard][1], {"documents": bodies[to.shard][0]})
        )  # fmt: skip
        return sum(answer for to, answer in zip(replicas, answers, strict=True) if to.number == 0)

    def remove(self, paths: Iterable[str]) -> int:
        """Removes documents, durably in every copy; returns how many there were. Raises as `put` does."""
        own, replicas = self._homes(paths, str)
        answers = self._all(replicas, "remove", lambda to: (b"", {"paths": own[to.shard]}))
        return sum(answer for to, answer in zip(replicas, answers, strict=True) if to.number == 0)

    def known(self, paths: Sequence[str]) -> dict[str, list[Any]]:
        """Size, times and content hash of those of `paths` that are indexed completely in every copy."""
        own, replicas = self._homes(paths, str)
        answers = self._all(replicas, "known", lambda to: (b"", {"paths": own[to.shard]}))
        held = dict(zip(replicas, answers, strict=True))
        missing = {path for to, answer in held.items() for path in own[to.shard] if path not in answer}
        return {path: stamp for answer in answers for path, stamp in answer.items() if path not in missing}

    def _homes(
        self, some: Iterable[Result], path: Callable[[Result], str]
    ) -> tuple[dict[str, list[Result]], list[Replica]]:
        """Documents or paths by their shards, and all copies of these."""
        own: dict[str, list[Result]] = {}
        shards = list(self.catalogue.shards())
        for one in some:
            own.setdefault(home(path(one), shards), []).append(one)
        return own, [replica for replica in self.catalogue.replicas() if replica.shard in own]

    def below(self, root: str) -> Iterator[list[str]]:
        for one in self.catalogue.replicas():
            after = ""
            while one.number == 0:
                paths, _ = send(self.places, one, "below", None, root=root, after=after, limit=_BATCH)
                if not paths:
                    break
                yield paths
                after = paths[-1]

    def finish(self) -> int:
        """Keeps the vector indexes in order, trains them together if they have outgrown their lists, and publishes what
        was written; returns the version."""
        replicas = self.catalogue.replicas()
        self._all(replicas, "maintain", lambda _: (b"", {}))
        states = self.states()
        whole = merged([states[one.name]["index"] for one in replicas if one.number == 0])
        if outgrown(whole, self._options):
            self.train()
        return self.publish()

    def train(self) -> Quantizer:
        """Trains one quantizer for all shards, on a sample of all their vectors, and installs it. Until the next
        version, searches use the lists of the version before. Raises as `VectorIndex.install_quantizer` does."""
        identity, last = self.models.identity(), self.catalogue.quantizer()
        assert identity is not None
        assert last is not None
        replicas = self.catalogue.replicas()
        first = [one for one in replicas if one.number == 0]
        self._all(replicas, "maintain", lambda _: (b"", {"full": True}))
        rows = {one.shard: self.states()[one.name]["index"]["rows"] for one in first}
        total = sum(rows.values())

        def drawn(count: int) -> Iterator[tuple[Any, Floats]]:
            for at, one in enumerate(first):
                share = count * rows[one.shard] // max(1, total)
                found, raw = send(self.places, one, "sample", None, count=share, seed=at)
                yield np.arange(found), np.frombuffer(raw, np.float32).reshape(-1, identity.dim)

        codecs = load("edge.codecs", "faiss")(threads=self.config.threads)
        self.budget.hold_libraries(codecs.libraries)
        spec, centroids, _ = train(
            total, drawn, codecs, self._options, identity.dim, None, budget=self.budget, check=lambda _: None
        )
        quantizer = Quantizer(last.version + 1, spec, centroids)
        body = quantizer.to_bytes()
        curves = self._all(replicas, "install", lambda _: (body, {}))
        curve = averaged(
            [(rows[one.shard], answer) for one, answer in zip(replicas, curves, strict=True) if one.number == 0]
        )
        quantizer = Quantizer(quantizer.version, spec, centroids, curve)
        self.catalogue.set_quantizer(quantizer)
        body = quantizer.to_bytes()
        self._all(replicas, "install", lambda _: (body, {}))
        return quantizer

    def publish(self) -> int:
        """Makes the present state of all shards the version that searches see; returns its number."""
        number = self.catalogue.version()[0] + 1
        joined = {name for name, state in self.catalogue.shards().items() if state != "filling"}
        replicas = [one for one in self.catalogue.replicas() if one.shard in joined]
        answers = self._all(replicas, "publish", lambda _: (b"", {"version": number}))
        held = {
            (one.shard, one.number): HeldState(answer["token"], answer["quantizer"])
            for one, answer in zip(replicas, answers, strict=True)
        }
        self.catalogue.set_version(number, held)
        self._all(replicas, "retire", lambda _: (b"", {"version": number - 1}))  # searches may be under way in it
        return number

    def grow(self, replicas: Sequence[Replica]) -> int:
        """Adds a shard, and moves its share of the documents to it; returns how many. Searches see the version before
        until everything is moved."""
        with self.writing():
            self._prepare(replicas)
            self.catalogue.add(replicas, "filling")
            return self._finish_growth()

    def states(self) -> dict[str, Any]:
        replicas = self.catalogue.replicas()
        return dict(zip((one.name for one in replicas), self._all(replicas, "state", lambda _: (b"", {})), strict=True))

    def close(self) -> None:
        """Shards go on as their places decide."""
        self._threads.shutdown()
        self.models.close()
        self.catalogue.close()

    def _prepare(self, replicas: Sequence[Replica]) -> None:
        identity, quantizer = self.models.identity(), self.catalogue.quantizer()
        assert identity is not None
        assert quantizer is not None
        body = quantizer.to_bytes()
        states = self._all(replicas, "state", lambda _: (b"", {}))
        if used := [one.folder for one, state in zip(replicas, states, strict=True) if state["documents"]]:
            raise InputError(f"{used[0]} holds documents already; a shard begins empty")
        self._all(replicas, "configure", lambda _: (b"", {"identity": identity.to_json()}))
        self._all(replicas, "install", lambda _: (body, {}))

    def _finish_growth(self) -> int:
        """Copies documents to shards that are filling, then removes them elsewhere, then publishes."""
        moved = 0
        states = self.catalogue.shards()
        filling = [name for name, state in states.items() if state == "filling"]
        if filling:
            first = [one for one in self.catalogue.replicas() if one.number == 0 and states[one.shard] == "serving"]
            parts = (part for one in first for part in self._leaving(one, list(states), data=True))
            moved = sum(self._copied(*part) for part in parts)
            for name in filling:
                self.catalogue.set_state(name, "joining")
        if any(state == "joining" for state in self.catalogue.shards().values()):
            for one in self.catalogue.replicas():
                if states[one.shard] == "serving":
                    for answer, _ in self._leaving(one, list(states), data=False):
                        paths = [path for own in answer["going"].values() for path in own]
                        send(self.places, one, "remove", None, paths=paths)
            self._all(self.catalogue.replicas(), "maintain", lambda _: (b"", {}))
            self.publish()
        return moved

    def _settled(self) -> bool:
        try:
            with WriterLock(self.catalogue.database.path.parent / LOCK, seconds=0.0)():
                self._finish_growth()
                self._publish_changes()
        except StorageError:
            return False
        return True

    def _publish_changes(self) -> None:
        number, held = self.catalogue.version()
        replicas = [one for one in self.catalogue.replicas() if (one.shard, one.number) in held]
        try:
            self._all(
                replicas, "publish", lambda to: (b"", {"version": number, "token": held[to.shard, to.number].token})
            )
        except NoSuchVersion:
            self.publish()

    def _leaving(self, one: Replica, shards: list[str], *, data: bool) -> Iterator[tuple[dict[str, Any], bytes]]:
        after: str | None = ""
        while after is not None:
            answer, raw = send(
                self.places, one, "leaving", None, after=after, limit=_BATCH, shards=shards, own=one.shard, data=data
            )
            yield answer, raw
            after = answer["after"] or None

    def _copied(self, answer: dict[str, Any], raw: bytes) -> int:
        identity = self.models.identity()
        assert identity is not None
        width, at, bodies = 4 * identity.dim, 0, dict[str, tuple[list[Any], bytearray]]()
        homes = {path: to for to, paths in answer["going"].items() for path in paths}
        for document in answer["documents"]:
            end = at + width * len(document["chunks"])
            about, own = bodies.setdefault(homes[document["path"]], ([], bytearray()))
            about.append(document)
            own += raw[at:end]
            at = end
        to = [replica for replica in self.catalogue.replicas() if replica.shard in bodies]
        self._all(to, "put", lambda to: (bytes(bodies[to.shard][1]), {"documents": bodies[to.shard][0]}))
        return len(answer["documents"])

    def _all(
        self, replicas: Sequence[Replica], verb: str, arguments: Callable[[Replica], tuple[bytes, dict[str, Any]]]
    ) -> list[Any]:
        with ThreadPoolExecutor(max(1, len(replicas))) as threads:
            calls = [(one, *arguments(one)) for one in replicas]
            found = [threads.submit(send, self.places, one, verb, None, raw, **named) for one, raw, named in calls]
        return [each.result()[0] for each in found]


_GROUP = 32

_AHEAD = 2
_PUBLISH_S = 60.0  # Then the files so far become searchable.
_TOLD = 100


@dataclass(slots=True)
class Indexed:
    counts: Counter[str] = field(default_factory=Counter)
    passages: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    missing: tuple[str, ...] = ()
    version: int = 0


def index(
    cluster: Cluster, readers: Sequence[Send], roots: Sequence[str], *, progress: Callable[[Indexed], object]
) -> Indexed:
    given = [resolved(root) for root in listed(roots)]
    check_there(given)
    done, seen = Indexed(), set[str]()
    with cluster.writing():
        identity = cluster.models.identity()
        assert identity is not None
        about = {"source": identity.source or identity.name, "fingerprint": identity.fingerprint}
        present = [root for root in given if absence(root, lambda root: any(cluster.below(root))) is None]
        done.missing = tuple(root for root in given if root not in present)
        groups = _groups(cluster, present, done, seen)
        idle = deque(list(readers) * _AHEAD)
        waiting: dict[Future[tuple[bytes, bytes]], Send] = {}
        published = time.monotonic()
        while True:
            for group in islice(groups, len(idle)):
                send = idle.popleft()
                head = json.dumps({"files": group, **about}).encode()
                waiting[send("read", head, b"")] = send
            if not waiting:
                break
            for future in first(cluster.places, waiting):
                idle.append(waiting.pop(future))
                answer, raw = asked(partial(_answer, cluster.places, future), "read")
                _take(cluster, done, answer, raw, identity.dim)
                progress(done)
            if time.monotonic() - published > _PUBLISH_S:
                cluster.publish()
                published = time.monotonic()
        for root in present:
            for paths in cluster.below(root):
                gone = [path for path in paths if nearest(path, seen) is None]
                done.counts["removed"] += cluster.remove(gone) if gone else 0
        done.version = cluster.finish()
    return done


def _groups(
    cluster: Cluster, roots: Iterable[str], done: Indexed, seen: set[str]
) -> Iterator[list[tuple[str, str]]]:  # fmt: skip
    """Notes as `seen` what is there or cannot be read."""
    if not (roots := list(roots)):
        return
    found = scan(roots, exclude=[cluster.catalogue.database.path.parent], budget=cluster.budget)
    left: list[tuple[str, str]] = []
    while some := list(islice(found, 8 * _GROUP)):
        files = {str(one.path): one for one in some if isinstance(one, FoundFile)}
        done.counts["skipped"] += len(some) - len(files)
        seen.update(str(one.path) for one in some if isinstance(one, SkippedFile) and one.reason is Reason.UNREADABLE)
        known = cluster.known(list(files))
        for path, file in files.items():
            seen.add(path)
            if path in known and (*known[path][:4], 0) == (*file.stamp, known[path][4]):
                done.counts["unchanged"] += 1
            else:
                left.append((path, str(file.root)))
        while len(left) >= _GROUP:
            yield left[:_GROUP]
            del left[:_GROUP]
    if left:
        yield left


def _take(cluster: Cluster, done: Indexed, answer: dict[str, Any], raw: bytes, dim: int) -> None:
    """Files that have no text any more are removed."""
    documents = unpacked_documents(answer["documents"], raw, dim)
    if documents:
        done.passages += cluster.put(documents)
    done.counts["indexed"] += len(documents)
    for path, outcome, reason in answer["others"]:
        done.counts[outcome] += 1
        if outcome in ("failed", "unreadable") and len(done.failed) < _TOLD:
            done.failed.append((path, reason))
    if empty := [path for path, outcome, _ in answer["others"] if outcome in ("skipped", "failed", "gone")]:
        cluster.remove(empty)


def _answer(places: Places, future: Future[tuple[bytes, bytes]], *_: object) -> tuple[bytes, bytes]:
    return received(places, future, lambda why: Unreachable(f"a reader of files does not answer: {why}"))
