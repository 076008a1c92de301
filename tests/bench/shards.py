"""`shards`: the order and scores of a judged set in shards beside those of one collection, question by question."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.figures import lower, neither, tabulate
from bench.options import ARGUMENT, Count, Folder, Output, WorkDir, benchmark, numbers, stated
from bench.process import say
from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.command import HERE, connected
from edge.apps.cluster.messages import ShardDocument, put
from edge.apps.collection.catalog import Catalog
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, reranked
from edge.apps.collection.query import Query
from edge.apps.collection.schema import passage
from edge.apps.collection.searching import Within
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.plain import text_blocks
from edge.apps.store.lexical import Statistics
from edge.apps.verbs.requests import SearchOptions
from edge.config import Config, parse_size
from edge.errors import EdgeError
from edge.ivf.base import IndexOptions, Quantizer
from edge.models.training.corpora import load

_ANY_MEMORY = 10**11
_BATCH = 500
_PATIENCE_S = 600.0
_PENDING = 0.01
"""Share of the documents that come last, so that their vectors are not in a segment."""

Vectors = npt.NDArray[np.float32]


@benchmark
def shards(
    *,
    data: Annotated[Folder, ARGUMENT],
    counts: Annotated[Sequence[int], numbers(), "Numbers of shards."] = (1, 2, 4, 8),
    lists: Annotated[int, click.IntRange(0), "Vectors above which an index has lists; 0 for the default."] = 500,
    first: Annotated[int, click.IntRange(0), "Questions that are left out at the beginning."] = 0,
    questions: Annotated[int, click.IntRange(0), "Questions; 0 for all."] = 0,
    judged: Annotated[int, click.IntRange(0), "Sampled questions that are also reranked, by 4 shards or the most."] = 0,
    batch: Annotated[Count, "Texts that are embedded at a time."] = 64,
    cluster: Annotated[str, "Address of Ray; local starts one; here: all shards in this process."] = HERE,
    memory: Annotated[str, "Limit of each shard."] = "100GB",
    grown: Annotated[bool, "Add one more shard at the end, and search meanwhile."] = False,
    output: Output,
    work_dir: WorkDir,
) -> None:
    """Compare a collection in shards with one collection, for each question of a judged set in BEIR layout.

    All share the quantizer that the first number of shards trains. The one collection answers beside it, in turn.
    """
    options = IndexOptions(flat_limit=lists) if lists else IndexOptions()
    corpus = load(data)
    asked = list(corpus.queries.values())[first:][: questions or None]
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_made(work_dir))))
        config = Config.load(flags={"memory": str(_ANY_MEMORY)})
        whole = stack.enter_context(Collection(folder / "whole", config=config))
        whole.models.claim()
        texts = [joined_chunks(title, text) for title, text in zip(corpus.titles, corpus.texts, strict=True)]
        documents = _documents(corpus.ids, texts, _embedded(work_dir, corpus.name, texts, whole, batch))
        vectors = _cached(work_dir, f"{corpus.name}-questions", asked, lambda some: whole.embed_queries(some), batch)
        _fill(whole, documents)
        sampled = random.Random(0).sample(range(len(asked)), min(judged, len(asked)))
        places = stack.enter_context(connected(cluster, config))
        compared = _Compared(whole, documents, asked, vectors)
        for count in counts:
            again = sampled if count == (4 if 4 in counts else max(counts)) else []
            say(f"{count} shards")
            one = Cluster(folder / str(count), places, config=config, options=options, patience=_PATIENCE_S)
            with one:
                names = [f"s{number}" for number in range(count)]
                one.create(
                    [Replica(name, 0, "", str(folder / f"{count}-{name}"), parse_size(memory)) for name in names]
                )
                rows[f"{count} shards"] = compared(one, again)
                if grown and count == counts[-1]:
                    further = Replica(f"s{count}", 0, "", str(folder / f"{count}-s{count}"), parse_size(memory))
                    rows[f"{count} shards and one more"] = compared.grown(one, further)
    conditions = {
        "data": corpus.name, "documents": len(corpus.ids), "passages": sum(len(one.chunks) for one in documents),
        "first": first, "questions": len(asked), "reranked": len(sampled), "flat_limit": options.flat_limit,
        "lists": compared.lists, "cluster": cluster,
    }  # fmt: skip
    columns = {
        "orders": neither("equal orders", "%"), "scores": neither("equal orders and scores", "%"),
        "reranked": neither("equal after reranking", "%"), "trips": neither("requests to a shard"),
        "more": neither("questions with a further request", "%"), "median": lower("median", "s"),
        "p95": lower("p95", "s"), "whole_median": lower("one collection, median", "s"),
        "whole_p95": lower("one collection, p95", "s"), "full_text": neither("full text over FTS5's own"),
        "moved": neither("documents moved", "%"), "meanwhile": neither("questions asked meanwhile"),
        "held": neither("most that a shard held", "B"),
    }  # fmt: skip
    held = max((row["held"] for row in rows.values()), default=0) if cluster != HERE else 0
    output.put(
        {"conditions": conditions, "rows": rows}, tabulate(rows, columns), stated(conditions), held=held,
        limit=parse_size(memory),
    )  # fmt: skip
    if any(row["scores"] < 1 or row["reranked"] not in (1, None) for row in rows.values()):
        raise EdgeError("shards changed what was found")


def joined_chunks(title: str, text: str) -> list[Any]:
    return list(chunks_of(text_blocks(text or title), title))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _embedded(work_dir: Path, name: str, texts: Sequence[list[Any]], whole: Collection, batch: int) -> Vectors:
    passages = [passage(chunk.context, chunk.text) for chunks in texts for chunk in chunks]
    return _cached(work_dir, name, passages, whole.models.embed, batch)


def _cached(work_dir: Path, name: str, texts: Sequence[str], embed: Any, batch: int) -> Vectors:
    """Vectors [n, dim] of texts, kept in a file for later runs with the same texts."""
    key = blake2b("\0".join(texts).encode(), digest_size=8).hexdigest()
    file = _made(work_dir) / f"shards-{name}-{key}.npy"
    if not file.exists():
        say(f"embedding {len(texts):,} texts")
        rows = [embed(texts[start : start + batch]) for start in range(0, len(texts), batch)]
        np.save(file, np.concatenate(rows))
    found: Vectors = np.load(file)
    return found


def _documents(ids: Sequence[str], texts: Sequence[list[Any]], vectors: Vectors) -> list[ShardDocument]:
    found, at = [], 0
    for name, chunks in zip(ids, texts, strict=True):
        own = vectors[at : at + len(chunks)]
        at += len(chunks)
        found.append(ShardDocument(name, "", "text", "", name.encode(), tuple(chunks), own))
    return found


def _fill(whole: Collection, documents: Sequence[ShardDocument]) -> None:
    catalog, index = Catalog(), whole.vectors
    assert index is not None
    for start in range(0, len(documents), _BATCH):
        with whole.database.write() as db:
            put(db, catalog, index, documents[start : start + _BATCH])


class _Compared:
    """The questions, and what one collection answers with the quantizer that all share."""

    def __init__(
        self, whole: Collection, documents: Sequence[ShardDocument], asked: Sequence[str], vectors: Vectors
    ) -> None:
        self._whole, self._documents, self._asked, self._vectors = whole, documents, asked, vectors
        self._quantizer: Quantizer | None = None
        self._expected: list[tuple[bytes, bytes]] = []
        """Digests of the order, and of the order with its scores, of each question."""

    @property
    def lists(self) -> int:
        """Lists of the quantizer."""
        return 0 if self._quantizer is None else len(self._quantizer.centroids)

    def __call__(self, cluster: Cluster, sampled: Sequence[int]) -> dict[str, Any]:
        """One number of shards beside the whole collection; the first one trains the quantizer."""
        late = len(self._documents) - int(_PENDING * len(self._documents))
        for start in range(0, late, _BATCH):
            cluster.put(self._documents[start : min(late, start + _BATCH)])
        if self._quantizer is None:
            cluster.finish()
            self._quantizer = cluster.catalogue.quantizer()
            index = self._whole.vectors
            assert index is not None
            assert self._quantizer is not None
            index.install_quantizer(self._whole.database.write, self._quantizer)
        else:
            cluster.catalogue.set_quantizer(self._quantizer)
            body = self._quantizer.to_bytes()
            for verb, raw in (("maintain", b""), ("install", body)):
                cluster._all(cluster.catalogue.replicas(), verb, lambda _, raw=raw: (raw, {}))  # type: ignore[misc]
        cluster.put(self._documents[late:])
        cluster.publish()
        orders = scores = more = trips = 0
        took: list[float] = []
        alone: list[float] = []
        kept: dict[int, tuple[list[Hit], list[Hit]]] = {}
        for number, question in enumerate(self._asked):
            began = time.perf_counter()
            found, own = self._found(cluster, number)
            between = time.perf_counter()
            took.append(between - began)
            if len(self._expected) == number or number in sampled:
                expected = self._whole.candidates(question, self._vectors[number], SearchOptions().candidates)
                alone.append(time.perf_counter() - between)
                self._expected[number:] = self._expected[number:] or [_digests(expected)]
                kept |= {number: (found, expected)} if number in sampled else {}
            order, score = _digests(found)
            orders += order == self._expected[number][0]
            scores += score == self._expected[number][1]
            trips += own
            more += own > 2
        same = sum(
            [(*_place(hit), hit.score, hit.relevance) for hit in reranked(cluster.models, asked, found, 10)]
            == [(*_place(hit), hit.score, hit.relevance) for hit in reranked(self._whole.models, asked, expected, 10)]
            for asked, (found, expected) in ((self._asked[number], pair) for number, pair in kept.items())
        )
        return {
            "orders": orders / len(self._asked), "scores": scores / len(self._asked),
            "trips": trips / len(self._asked), "more": more / len(self._asked),
            "reranked": same / len(kept) if kept else None, "held": _held(cluster), **_times("", took),
            **(_times("whole_", alone) if len(alone) == len(took) else {}),
            "full_text": self._full_text(cluster),
        }  # fmt: skip

    def grown(self, cluster: Cluster, further: Replica) -> dict[str, Any]:
        """Adds a shard; questions are asked until it is there."""
        numbers = random.Random(1).sample(range(len(self._asked)), min(200, len(self._asked)))
        equal: list[bool] = []
        with ThreadPoolExecutor(1) as beside:
            growing = beside.submit(cluster.grow, [further])
            while not growing.done() or len(equal) < len(numbers):
                number = numbers[len(equal) % len(numbers)]
                equal.append(_digests(self._found(cluster, number)[0])[1] == self._expected[number][1])
        share = sum(equal) / len(equal)
        return {
            "orders": share, "scores": share, "reranked": None, "moved": growing.result() / len(self._documents),
            "meanwhile": len(equal), "held": _held(cluster),
        }  # fmt: skip

    def _found(self, cluster: Cluster, number: int) -> tuple[list[Hit], int]:
        """The candidates of a question, and the most requests that a shard got."""
        question, chosen = self._asked[number], SearchOptions()
        within, words = Within(embedder=cluster.models.embedder_name()), Query.parse(question).words
        answer = cluster.asked(
            lambda version, sources: cluster.candidates(
                version, sources, [words], [self._vectors[number]], chosen.candidates, chosen.filters, within
            ), question, chosen.candidates,
        )  # fmt: skip
        return answer[0][0], answer[3]

    def _full_text(self, cluster: Cluster) -> float:
        """The time of a ranking in one collection by the statistics of twice as many rows, over that by its own, which
        FTS5 ranks by: the median of each question's ratio."""
        lexical, ratios = Catalog().lexical, []
        for question in self._asked[:_RANKED]:
            with self._whole.database.read() as db:
                own = lexical.statistics(db, lexical.terms(question))
                other = Statistics(2 * own.rows, int(2.1 * own.words), {t: 2 * n + 1 for t, n in own.counts.items()})
                seconds: list[float] = []
                for statistics in (own, other, own, other):
                    began = time.perf_counter()
                    lexical.search(db, question, 100, whole=statistics)
                    seconds.append(time.perf_counter() - began)
            ratios.append((seconds[1] + seconds[3]) / (seconds[0] + seconds[2]))
        return float(np.median(ratios))


_RANKED = 100


def _times(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return {f"{name}median": float(np.median(seconds)), f"{name}p95": float(np.quantile(seconds, 0.95))}


def _held(cluster: Cluster) -> int:
    """Anonymous and shared resident bytes of the shard that holds most, as the system tells others."""
    return max(_resident(state["pid"]) for state in cluster.states().values())


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))


def _digests(hits: Sequence[Hit]) -> tuple[bytes, bytes]:
    order = [_place(hit) for hit in hits]
    both = [(*place, hit.score) for place, hit in zip(order, hits, strict=True)]
    first, second = (blake2b(repr(each).encode(), digest_size=16).digest() for each in (order, both))
    return first, second


def _place(hit: Hit) -> tuple[Any, ...]:
    return hit.path, hit.ordinals
