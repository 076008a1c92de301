"""`Cluster`: a collection that is spread over shards, with the calls that a server and its assistants make of
collections. Its results, order and scores are those of one collection that holds everything: the shards are sources of
the same search (`edge.apps.collection.searching`)."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edge.apps.cluster.calling import (
    Assignments,
    Figures,
    Latencies,
    NoSuchVersion,
    Places,
    Reading,
    ShardDocument,
    ShardLost,
    ShardSource,
    assignments,
    packed,
    send,
)
from edge.apps.cluster.catalogue import Catalogue, HeldState, Replica, averaged, has_version, home, merged
from edge.apps.collection.collection import Together
from edge.apps.collection.excerpts import Excerpt, NotIndexed
from edge.apps.collection.filters import Filters
from edge.apps.collection.hits import Hit
from edge.apps.collection.models import CollectionModels, Searchable
from edge.apps.collection.query import Query
from edge.apps.collection.report import CollectionStatus, IndexedFile
from edge.apps.collection.searching import Floats, Within, candidates, is_nonsense, misspelled, shown
from edge.apps.store.connections import LOCK, WriterLock
from edge.apps.store.failures import Health, Trouble
from edge.apps.store.lexical import Statistics, shown_weights
from edge.apps.store.models import opened_budget
from edge.apps.verbs.requests import POOL
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import CapabilityError, InputError, StorageError
from edge.ivf.base import IndexOptions, Quantizer
from edge.ivf.maintenance.training import outgrown, train
from edge.ivf.storage.manifest import flat
from edge.plugins import load
from edge.trace import Trace

Result = TypeVar("Result")

PATIENCE_S = 10.0

_BATCH = 500

_NUMBER = re.compile(r"#([0-9]{1,18})")
_PATTERN = re.compile(r"[*?[]")
_SUMS = ("indexed", "pending", "chunks")


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


class Cluster(Searchable, Together):
    """Threads may search while one writes; several processes may search, and one at a time writes. `missing`: the
    shards that did not answer a `view`."""

    def __init__(
        self,
        folder: Path,
        places: Places,
        *,
        config: Config,
        budget: MemoryBudget | None = None,
        embedder: Any = None,
        reranker: Any = None,
        trace: Trace | None = None,
        options: IndexOptions | None = None,
    ) -> None:
        """Opens the collection whose catalogue is in `folder`, or makes an empty catalogue. `options` are of the vector
        index, for training."""
        self.config = config
        self.trace = trace or Trace()
        self.budget = budget or opened_budget(
            "the collection", config.memory, config, embedder=embedder, reranker=reranker, candidates=2 * POOL,
        )  # fmt: skip
        self.catalogue = Catalogue(folder, budget=self.budget)
        self.models = CollectionModels(
            self.catalogue.database, config, self.budget, self.trace, embedder=embedder, reranker=reranker,
            holds_passages=has_version,
        )  # fmt: skip
        self.places = places
        self._patience = PATIENCE_S
        self._options = options or IndexOptions()
        self._lock = WriterLock(folder / LOCK)
        self._latencies: dict[str, Latencies] = {}
        self._known: dict[int, _Version] = {}  # the present one, which views share
        self._turns = itertools.count(), itertools.count()  # of statistics, and of searches
        self._checked = False
        self._threads = ThreadPoolExecutor(64, "edge-cluster")
        self.path = folder
        self.collections: Any = {"": self}
        self.missing: tuple[str, ...] = ()
        self._name, self._partial = "", False

    # Searching

    def view(self, name: str, *, partial: bool) -> Cluster:
        """For one request, whose hits get a name. With `partial`, if a shard is lost, the others are enough, and
        `health` names it."""
        made = copy(self)
        made._name, made._partial = name, partial
        return made

    @property
    def first(self) -> Any:
        return self.collections[""]

    @property
    def database(self) -> Any:
        """The page and the tool `get` read documents from a database."""
        raise CapabilityError(f"the documents in {self.path} are in shards; /v1/documents and get_documents read them")

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

        return self.fan([partial(one, copies) for copies in self._current().shards.values()])

    def asked(
        self, work: Callable[[_Version, Mapping[str, ShardSource]], Result], query: str = "", k: int = 0
    ) -> Result:
        """What `work` returns for the shards of the present version, again if they have changed meanwhile."""
        version, missing = self._current(), list(self.missing)
        while True:
            sources = self._sources(version, missing, query, k)
            try:
                result = work(version, sources)
            except ShardLost as lost:
                if self._current().number != version.number or (lost.changed and self._settled()):
                    version, missing = self._current(), []
                elif not self._partial or len(missing) + 1 == len(version.shards):
                    raise
                else:
                    missing.append(lost.shard)
            else:
                self.missing = tuple(sorted(missing))
                return result

    def _sources(self, version: _Version, missing: Sequence[str], query: str, k: int) -> dict[str, ShardSource]:
        """Each with another copy first than in the search before."""
        turn = next(self._turns[bool(k)])
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
        self, words: Sequence[str], vectors: Sequence[Sequence[Floats | None]], k: int, *, where: Filters,
        within: Within,
    ) -> list[list[Hit]]:  # fmt: skip
        """Their numbers differ between shards."""

        def work(version: _Version, sources: Mapping[str, ShardSource]) -> list[list[Hit]]:
            within.exhaustive = version.mixed
            own = [vectors[0]] * len(sources)
            found = candidates(sources, words, own, k, where=where, within=within, fan=self.fan)
            at = {name: number for number, name in enumerate(version.shards)}
            return [
                [replace(hit, collection=self._name, id=hit.id * len(at) + at[hit.collection]) for hit in hits]
                for hits in found
            ]

        return self.asked(work, k=k)

    def spelled(self, query: str) -> dict[str, str]:
        return self.asked(lambda _, sources: misspelled(query, [*sources.values()], self.models, self.fan), query)

    def is_nonsense(self, query: str) -> bool:
        return self.asked(lambda _, sources: is_nonsense(query, [*sources.values()], self.models), query)

    def _shown(self, query: Query, hits: Sequence[Hit]) -> list[Hit]:
        def work(_: _Version, sources: Mapping[str, ShardSource]) -> Statistics:
            return sum(self.fan([partial(source.shown, query.shown) for source in sources.values()]), Statistics())

        weights = shown_weights(query.shown, self.asked(work, query.shown))
        return [shown(hit, weights) for hit in hits]

    def lookahead(self, queries: Floats, **named: Any) -> None:
        """The lists are in the shards."""

    def health(self) -> Health:
        lost = ", ".join(self.missing)
        told = f"shard {lost} is missing, and these are the results of the others"
        return Health((Trouble("missing shard", told, ""),) if lost else ())

    def status(self) -> CollectionStatus:
        """`edge cluster status` describes their indexes."""
        found = self.each("status")
        whole: dict[str, Any] = {name: sum(one[name] for one in found) for name in _SUMS}
        kinds = Counter[str]()
        for one in found:
            kinds.update(one["kinds"])
        return CollectionStatus(
            path=self.path, roots=sorted({root for one in found for root in one["roots"]}), kinds=dict(kinds),
            incomplete=(), skipped=(), failed=(), embedder=self.identity, vectors=None, health=self.health(),
            resident_nbytes=0, database_nbytes=sum(one["database_bytes"] for one in found),
            source_nbytes=sum(one["source_bytes"] for one in found), list_hits=0, list_misses=0, **whole,
        )  # fmt: skip

    def descriptions(self) -> Mapping[str, str]:
        return {path: text for one in self.each("descriptions") for path, text in one.items()}

    def files(self) -> list[IndexedFile]:
        found = [IndexedFile(**file) for one in self.each("files") for file in one]
        return sorted(found, key=lambda file: file.path)

    def _excerpts(self, target: str, lines: int | None, left: int) -> list[Excerpt]:
        """A passage's number is that of a search in the same version."""
        number, count = _NUMBER.fullmatch(target), self.count
        asked = f"#{int(number[1]) // count}" if number else target
        answers = self.each("read", target=asked, lines=lines, max_bytes=left)
        if number:
            answers = [answers[int(number[1]) % count]]
        found = [Excerpt(**one) for answer in answers if isinstance(answer, list) for one in answer]
        if not found:
            raise NotIndexed(str(answers[0]).replace(asked, target))  # a shard has numbers of its own
        paths = {one.path for one in found}
        if len(paths) > 1 and not _PATTERN.search(target):
            raise InputError(f"several files match {target}: {', '.join(sorted(paths)[:3])}")
        return sorted(found, key=lambda one: (one.path, one.line_start))

    def fan(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        return list(self._threads.map(lambda call: call(), calls))

    def _current(self) -> _Version:
        number, held = self.catalogue.version()
        known = self._known.get(number)
        if known is None:
            if not number:
                raise StorageError(f"nothing was indexed into {self.catalogue.database.path.parent} yet")
            shards: dict[str, list[Replica]] = {}
            for replica in self.catalogue.replicas():
                if (replica.shard, replica.number) in held:
                    shards.setdefault(replica.shard, []).append(replica)
            figures = {name: Figures() for name in shards}
            known = _Version(number, shards, held, figures, assignments(self.catalogue, shards, self.budget))
            self._known.clear()
            self._known[number] = known
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
            with WriterLock(self.catalogue.database.path.parent / LOCK)(0.0):
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
