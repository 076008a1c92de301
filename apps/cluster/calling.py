"""How requests reach shards. A request is (verb, JSON, raw bytes), an answer (JSON, raw bytes); JSON keeps every bit of
a float. Errors of the shard are raised again by the caller. `ShardSource`: a shard as a source of a search, which asks
it once as a rule. `Figures`: the statistics of one version that were asked for before. `Reading`: requests of one
search to one shard, which go to another copy if the first is late or gone. `Assignment`: which copy of a shard
searches, by the lists in its memory (TeleRAG, section 4.2, assigns micro-batches that wait together; here each request
goes at once to the copy that will probably finish first)."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.cluster.catalogue import Catalogue, HeldState, Replica
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.excerpts import NotIndexed
from edge.apps.collection.filters import Filters, NoSuchType
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import Floats, Ranking, Within
from edge.apps.documents.base import NO_STAMP, Chunk, Mail, Stamp
from edge.apps.store.lexical import FUNCTION_WORDS, Statistics, shown_terms, unknown_words
from edge.blocks import distinct
from edge.budget import MemoryBudget
from edge.errors import EdgeError, InputError, StorageError, Unreachable
from edge.ivf.base import IndexOptions, Quantizer
from edge.ivf.plan import probe, probed
from edge.ivf.storage.snapshots import SnapshotLease

Send = Callable[[str, bytes, bytes], Future[tuple[bytes, bytes]]]

Call = Callable[[str, bytes, bytes], tuple[bytes, bytes]]
"""Sends a request, and returns its answer."""


class ShardLost(Unreachable):
    """`changed`: it was started again, and has changed since the version that was asked for."""

    def __init__(self, shard: str, why: str, *, changed: bool = False) -> None:
        super().__init__(f"shard {shard} does not answer: {why}")
        self.shard = shard
        self.changed = changed


class NoSuchVersion(StorageError):
    """A shard does not hold the version of the collection that a search asks for."""


_ERRORS: dict[str, type[EdgeError]] = {
    kind.__name__: kind for kind in (NoSuchType, NotIndexed, NoSuchVersion, InputError, StorageError)
}


def asked(call: Call, verb: str, raw: bytes = b"", **arguments: Any) -> tuple[Any, bytes]:
    head, beside = call(verb, json.dumps(arguments, ensure_ascii=False).encode(), raw)
    answer = json.loads(head)
    if "error" in answer:
        kind, text = answer["error"]
        raise _ERRORS.get(kind, StorageError)(text)
    return answer["answer"], beside


def answered(work: Callable[..., tuple[Any, bytes]], head: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """The answer of `work(raw, **arguments)`, or the error that it raises."""
    try:
        answer, beside = work(raw, **json.loads(head))
    except EdgeError as error:
        kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "StorageError")
        return json.dumps({"error": [kind, str(error)]}).encode(), b""
    return json.dumps({"answer": answer}, ensure_ascii=False).encode(), beside


@dataclass(frozen=True, slots=True)
class ShardDocument:
    """A file or text that is indexed completely; `vectors` [n, dim], one for each chunk."""

    path: str
    root: str
    kind: str
    title: str
    hash: bytes
    chunks: tuple[Chunk, ...]
    vectors: Floats
    stamp: Stamp = NO_STAMP
    racy: bool = False
    reason: str = ""
    mails: Mapping[int, Mail] = field(default_factory=dict)


def packed(documents: Sequence[ShardDocument]) -> tuple[list[dict[str, Any]], bytes]:
    """As values of JSON, and their vectors as raw bytes."""
    about = [
        {
            "path": one.path, "root": one.root, "kind": one.kind, "title": one.title, "hash": one.hash.hex(),
            "stamp": list(one.stamp), "racy": one.racy, "reason": one.reason,
            "chunks": [
                [c.text, c.context, c.line_start, c.line_end, c.page, c.lines, c.kinds.hex()] for c in one.chunks
            ],
            "mails": {page: astuple(mail) for page, mail in one.mails.items()},
        }
        for one in documents
    ]  # fmt: skip
    return about, b"".join(one.vectors.astype(np.float32).tobytes() for one in documents)


def unpacked_documents(about: Sequence[dict[str, Any]], raw: bytes, dim: int) -> list[ShardDocument]:
    count = sum(len(one["chunks"]) for one in about)
    if len(raw) != 4 * dim * count:
        raise InputError(f"{count} passages came with {len(raw):,} bytes of vectors of width {dim}")
    vectors = np.frombuffer(raw, np.float32).reshape(-1, dim)
    found, at = [], 0
    for one in about:
        chunks = tuple(
            Chunk(text, context, start, end, page, None if lines is None else tuple(lines), bytes.fromhex(kinds))
            for text, context, start, end, page, lines, kinds in one["chunks"]
        )
        found.append(
            ShardDocument(
                one["path"], one["root"], one["kind"], one["title"], bytes.fromhex(one["hash"]), chunks,
                vectors[at : at + len(chunks)], Stamp(*one["stamp"]), one["racy"], one["reason"],
                {int(page): Mail(*mail) for page, mail in one["mails"].items()},
            )
        )  # fmt: skip
        at += len(chunks)
    return found


_REMEMBERED = 50_000


class Figures:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Statistics | None = None

    def of(self, terms: Sequence[str]) -> Statistics | None:
        """None if one of the terms is not known."""
        known = self._known
        if known is None or any(term not in known.counts for term in terms):
            return None
        return Statistics(known.rows, known.words, {term: known.counts[term] for term in terms})

    def add(self, found: Statistics) -> None:
        with self._lock:
            kept = {} if self._known is None or len(self._known.counts) > _REMEMBERED else self._known.counts
            self._known = Statistics(found.rows, found.words, {**kept, **found.counts})


class ShardSource:
    """For one search."""

    def __init__(
        self, call: Call, version: int, figures: Figures, k: int, query: str = "", *, resident: bool = False
    ) -> None:
        """`query`: the text that the search will need statistics of. `resident`: let the shard tell which lists it has
        in memory."""
        self._call = call
        self._version = version
        self._figures = figures
        self._k = k
        self._resident = resident
        self._lexical = Catalog().lexical
        words = [term for word in unknown_words(query, FUNCTION_WORDS) for term in self._lexical.terms(word)]
        self._ahead = [*shown_terms(query).values(), *self._lexical.terms(query), *words]
        self._places: dict[int, tuple[str, int]] = {}
        self._hits: dict[int, Hit] = {}

    def view(self) -> AbstractContextManager[object]:
        """All requests name one version."""
        return nullcontext()

    def statistics(self, queries: Sequence[str]) -> Statistics:
        return self._statistics([term for query in queries for term in self._lexical.terms(query)])

    def shown(self, query: str) -> Statistics:
        return self._statistics(list(shown_terms(query).values()))

    def resembling(self, word: str) -> dict[str, int]:
        return dict(asked(self._call, "resembling", version=self._version, word=word)[0])

    def gather(
        self, queries: Sequence[tuple[str, Floats | None]], depth: int, whole: Statistics | None, where: Filters,
        within: Within,
    ) -> list[tuple[Ranking, Ranking]]:  # fmt: skip
        """The figures of a lone shard come with it."""
        began = time.monotonic()
        terms = self._ahead if whole is None and self._figures.of(self._ahead) is None else []
        rows = [np.empty((0, 0), np.float32) if own is None else np.atleast_2d(own) for _, own in queries]
        answer, _ = asked(
            self._call, "gather", b"".join(own.astype(np.float32).tobytes() for own in rows), version=self._version,
            queries=[(words, len(own)) for (words, _), own in zip(queries, rows, strict=True)], depth=depth,
            whole=None if whole is None else figures(whole), terms=terms, where=where.texts,
            within={"seconds": within.share, "exhaustive": within.exhaustive, "embedder": within.embedder}, k=self._k,
            resident=self._resident,
        )  # fmt: skip
        within.took = max(within.took, time.monotonic() - began)
        if terms:
            self._figures.add(Statistics(**answer["statistics"]))
        self._places.update((i, (path, ordinal)) for i, path, ordinal in answer["places"])
        self._take(answer["hits"])
        return [
            ([(i, score) for i, score in words], [(i, score) for i, score in near])
            for words, near in answer["rankings"]
        ]

    def places(self, ids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Of passages that `gather` found."""
        return {i: self._places[i] for i in ids}

    def hits(self, ids: Sequence[int]) -> dict[int, Hit]:
        """They have their descriptions."""
        if missing := [i for i in ids if i not in self._hits]:
            answer, _ = asked(self._call, "hits", version=self._version, ids=missing)
            self._take(answer)
        return {i: self._hits[i] for i in ids}

    def _take(self, hits: Sequence[list[Any]]) -> None:
        self._hits.update((values[0], _hit(values)) for values in hits)

    def _statistics(self, terms: Sequence[str]) -> Statistics:
        found = self._figures.of(terms)
        if found is None:
            wanted = list(dict.fromkeys([*terms, *self._ahead]))
            answer, _ = asked(self._call, "statistics", version=self._version, terms=wanted)
            found = Statistics(**answer)
            self._figures.add(found)
        return found


def figures(statistics: Statistics) -> dict[str, Any]:
    return {"rows": statistics.rows, "words": statistics.words, "counts": dict(statistics.counts)}


_FIELDS = [name for name in Hit.__dataclass_fields__ if name not in ("marks", "stages", "line", "collection")]
_VALUES = attrgetter(*_FIELDS)
_PAIRS, _MAIL = _FIELDS.index("kinds"), _FIELDS.index("mail")
"""The fields of a passage, but those that a search adds; `dataclasses.asdict` takes fifty times as long."""


def hit_values(hit: Hit) -> list[Any]:
    values = list(_VALUES(hit))
    values[_MAIL] = None if hit.mail is None else astuple(hit.mail)
    return values


def _hit(values: list[Any]) -> Hit:
    values[_PAIRS] = tuple((kind, end) for kind, end in values[_PAIRS])
    values[_MAIL] = values[_MAIL] and Mail(*values[_MAIL])
    named: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in zip(_FIELDS, values, strict=True)
    }
    return Hit(**named)


class Places(Protocol):
    """Sends requests to copies of shards, and starts the processes that answer them."""

    def send(self, replica: Replica, verb: str, head: bytes, raw: bytes) -> Future[tuple[bytes, bytes]]:
        """Sends a request."""

    def readers(self, count: int) -> list[Send]:
        """Starts readers of files; 0 for as many as there are processors. They end with this connection."""

    def trouble(self) -> str:
        """A sentence if no process can be started or found any more; empty otherwise."""

    def close(self) -> None:
        """Ends the connection. Shards that others may use go on."""


Answer = Future[tuple[bytes, bytes]]
Assignments = Mapping[str, "Assignment"]

_SCAN = 0.2  # Of scanning a list, beside that of reading it.


def assignments(catalogue: Catalogue, shards: Mapping[str, Sequence[Replica]], budget: MemoryBudget) -> Assignments:
    """For each shard with several copies, if all shards have the newest lists."""
    several = [name for name, copies in shards.items() if len(copies) > 1]
    quantizer = catalogue.quantizer() if several else None
    versions = {one.quantizer for one in catalogue.version()[1].values()}
    if quantizer is None or len(quantizer.centroids) == 1 or versions != {quantizer.version}:
        return {}
    lease = SnapshotLease(budget, quantizer.centroids.nbytes)
    return {name: Assignment(quantizer, lease) for name in several}


class Assignment:
    """The copies of one shard in one version: the lists that they hold, and their work. Thread-safe."""

    def __init__(self, quantizer: Quantizer, lease: object = None) -> None:
        self._centroids, self._lease = quantizer.centroids, lease
        self._count = count = len(quantizer.centroids)
        self._nprobe = probed(quantizer.recall, IndexOptions().recall_target)[0] if quantizer.recall else count
        self._held = defaultdict[Replica, npt.NDArray[np.bool_]](lambda: np.zeros(count, np.bool_))
        self._coming = defaultdict[Replica, npt.NDArray[np.int64]](lambda: np.zeros(count, np.int64))
        self._work = defaultdict[Replica, float](float)
        self._lock = threading.Lock()

    def take(self, copies: Sequence[Replica], vectors: bytes) -> tuple[Replica, Callable[[Answer], None]]:
        """For queries with these vectors; the first one among equals."""
        queries = np.frombuffer(vectors, np.float32).reshape(-1, self._centroids.shape[1])
        lists = distinct(probe(queries, self._centroids, self._nprobe))

        def work(copy: Replica) -> float:
            unread = ~self._held[copy][lists] & (self._coming[copy][lists] == 0)
            return 1 + _SCAN * len(lists) + float(np.count_nonzero(unread))

        def ended(answer: Answer) -> None:
            """The copy holds none if it has failed."""
            told = b"" if answer.cancelled() or answer.exception() else answer.result()[1]
            bits = np.frombuffer(told or bytes(-(-self._count // 8)), np.uint8)
            with self._lock:
                self._work[chosen] -= own
                self._coming[chosen][lists] -= 1
                self._held[chosen] = np.unpackbits(bits, count=self._count) > 0

        with self._lock:
            chosen = min(copies, key=lambda copy: self._work[copy] + work(copy))
            own = work(chosen)
            self._work[chosen] += own
            self._coming[chosen][lists] += 1
        return chosen, ended


Result = TypeVar("Result")

_FIRST_HEDGE_S = 0.05
_SHARE = 0.95
_LATENCIES = 200
"""A second copy is asked when the first takes longer than this share of the latest (Dean and Barroso, "The tail at
scale", 2013)."""

_GATHER = "gather"

_LOOK_S = 5.0


class Latencies:
    """Thread-safe."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_LATENCIES)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    @property
    def hedge_s(self) -> float:
        found = sorted(self._seconds)
        return found[int(_SHARE * len(found))] if len(found) >= 20 else _FIRST_HEDGE_S


class Reading:
    """All requests after `gather` go to the copy that answered it, because ids are its own."""

    def __init__(
        self, places: Places, replicas: Sequence[Replica], version: int, held: Mapping[tuple[str, int], HeldState],
        latencies: Latencies, patience: float, assignment: Assignment | None = None,
    ) -> None:  # fmt: skip
        """`replicas`: the preferred one first. `held`: the states of all copies. `patience`: seconds. `assignment`
        chooses the copy that gathers."""
        self._places = places
        self._replicas = list(replicas)
        self._version = version
        self._held = held
        self._latencies = latencies
        self._patience = patience
        self._assignment = assignment

    def __call__(self, verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        shard, began, why, changed = self._replicas[0].shard, time.monotonic(), "it was not asked", False
        end = began + self._patience
        waiting: dict[Future[tuple[bytes, bytes]], Replica] = {}
        left = list(self._replicas)
        while left or waiting:
            if left and (not waiting or time.monotonic() - began >= self._latencies.hedge_s):
                future, replica = self._sent(left, verb, head, raw)
                left.remove(replica)
                waiting[future] = replica
            limit = end if not left else min(end, began + self._latencies.hedge_s)
            done, _ = wait(waiting, max(0.0, limit - time.monotonic()), FIRST_COMPLETED)
            if not done and time.monotonic() >= end:
                why = f"there is no answer after {self._patience:g} s"
                break
            for future in done:
                replica = waiting.pop(future)
                try:
                    answer = self._checked(replica, future.result(), verb, head, raw, end)
                except Exception as error:  # whatever the transport raises for a process that is gone
                    why = _first_line(error)
                    changed = isinstance(error, NoSuchVersion)
                    continue
                others = [] if verb == _GATHER else [one for one in self._replicas if one is not replica]
                self._replicas = [replica, *others]
                self._latencies.add(time.monotonic() - began)
                return answer
        raise ShardLost(shard, why if changed else self._places.trouble() or why, changed=changed)

    def _sent(self, left: Sequence[Replica], verb: str, head: bytes, raw: bytes) -> tuple[Answer, Replica]:
        if verb != _GATHER or self._assignment is None or len(self._replicas) == 1:
            return self._places.send(left[0], verb, head, raw), left[0]
        replica, ended = self._assignment.take(left, raw)
        future = self._places.send(replica, verb, head, raw)
        future.add_done_callback(ended)
        return future, replica

    def _checked(
        self, replica: Replica, answer: tuple[bytes, bytes], verb: str, head: bytes, raw: bytes, end: float
    ) -> tuple[bytes, bytes]:
        """Asked for again if the copy has been restarted and is still in the state of this version."""
        if not answer[0].startswith(b'{"error"') or json.loads(answer[0])["error"][0] != NoSuchVersion.__name__:
            return answer
        token = self._held[replica.shard, replica.number].token
        send(self._places, replica, "publish", end - time.monotonic(), version=self._version, token=token)
        again = self._places.send(replica, verb, head, raw)
        return again.result(max(0.0, end - time.monotonic()))


def send(
    places: Places, replica: Replica, verb: str, seconds: float | None, raw: bytes = b"", **arguments: Any
) -> tuple[Any, bytes]:
    def call(verb: str, head: bytes, raw: bytes) -> tuple[bytes, bytes]:
        return received(places, places.send(replica, verb, head, raw), partial(ShardLost, replica.name), seconds)

    return asked(call, verb, raw, **arguments)


def received(
    places: Places, future: Future[Result], lost: Callable[[str], Unreachable], seconds: float | None = None
) -> Result:
    try:
        return first(places, [future]).pop().result() if seconds is None else future.result(seconds)
    except EdgeError:
        raise
    except Exception as error:  # whatever the transport raises for a process that is gone
        raise lost(places.trouble() or _first_line(error)) from error


def first(places: Places, waiting: Iterable[Future[Result]]) -> set[Future[Result]]:
    """Without a bound to the time."""
    while not (done := wait(waiting, _LOOK_S, FIRST_COMPLETED).done):
        if why := places.trouble():
            raise Unreachable(why)
    return done


def _first_line(error: Exception) -> str:
    error = getattr(error, "cause", None) or error  # of Ray, which puts a trace before it
    return str(error).strip().split("\n")[0] or type(error).__name__
