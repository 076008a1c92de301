"""`shards`: the order and scores of a judged set in shards beside those of one collection, question by question."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np
import numpy.typing as npt

from bench.figures import neither, tabulate
from bench.options import ARGUMENT, Count, Folder, Output, WorkDir, benchmark, numbers, stated
from bench.process import say
from edge.apps.cluster.calling import LocalPlaces
from edge.apps.cluster.catalogue import Replica
from edge.apps.cluster.cluster import Cluster
from edge.apps.cluster.documents import ShardDocument, put
from edge.apps.collection.catalog import Catalog, passage
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit, reranked
from edge.apps.collection.searching import Query
from edge.apps.documents.chunking import chunks_of
from edge.apps.documents.plain import text_blocks
from edge.apps.requests import SearchOptions
from edge.config import Config
from edge.errors import EdgeError
from edge.ivf.base import IndexOptions
from edge.models.training.corpora import load

_ANY_MEMORY = 10**11
_BATCH = 500
_PENDING = 0.01
"""Share of the documents that come last, so that their vectors are not in a segment."""

Vectors = npt.NDArray[np.float32]


@benchmark
def shards(
    *,
    data: Annotated[Folder, ARGUMENT],
    counts: Annotated[Sequence[int], numbers(), "Numbers of shards."] = (1, 2, 4, 8),
    lists: Annotated[int, click.IntRange(0), "Vectors above which an index has lists; 0 for the default."] = 500,
    questions: Annotated[int, click.IntRange(0), "Questions; 0 for all."] = 0,
    judged: Annotated[int, click.IntRange(0), "Sampled questions that are also reranked, by 4 shards or the most."] = 0,
    batch: Annotated[Count, "Texts that are embedded at a time."] = 64,
    output: Output,
    work_dir: WorkDir,
) -> None:
    """Compare a collection in shards with one collection, for each question of a judged set in BEIR layout."""
    options = IndexOptions(flat_limit=lists) if lists else IndexOptions()
    corpus = load(data)
    asked = list(corpus.queries.values())[: questions or None]
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=_made(work_dir)) as temporary:
        folder, config = Path(temporary), Config.load(flags={"memory": str(_ANY_MEMORY)})
        with Collection(folder / "whole", config=config) as whole:
            whole.models.claim()
            texts = [joined_chunks(title, text) for title, text in zip(corpus.titles, corpus.texts, strict=True)]
            documents = _documents(corpus.ids, texts, _embedded(work_dir, corpus.name, texts, whole, batch))
            vectors = _cached(
                work_dir, f"{corpus.name}-questions", asked, lambda some: whole.embed_queries(some), batch
            )
            _fill(whole, documents)
            sampled = random.Random(0).sample(range(len(asked)), min(judged, len(asked)))
            for count in counts:
                again = sampled if count == (4 if 4 in counts else max(counts)) else []
                name = f"{count} shards"
                say(name)
                rows[name] = _compared(
                    folder / str(count), config, options, count, whole, documents, asked, vectors, again
                )
    conditions = {
        "data": corpus.name, "documents": len(corpus.ids), "passages": sum(len(one.chunks) for one in documents),
        "questions": len(asked), "reranked": len(sampled), "flat_limit": options.flat_limit,
        "lists": next(iter(rows.values()))["lists"],
    }  # fmt: skip
    columns = {
        "orders": neither("equal orders", "%"), "scores": neither("equal orders and scores", "%"),
        "reranked": neither("equal after reranking", "%"), "trips": neither("requests to a shard"),
        "more": neither("questions with a further request", "%"),
    }  # fmt: skip
    output.put({"conditions": conditions, "rows": rows}, tabulate(rows, columns), stated(conditions))
    if any(row["scores"] < 1 for row in rows.values()):
        raise EdgeError("shards changed what was found")


def joined_chunks(title: str, text: str) -> list[Any]:
    """The passages of a document."""
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


def _compared(
    folder: Path, config: Config, options: IndexOptions, count: int, whole: Collection,
    documents: Sequence[ShardDocument], asked: Sequence[str], vectors: Vectors, sampled: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """One number of shards beside the whole collection."""
    places = LocalPlaces(config=config)
    with places, Cluster(folder / "catalogue", places, config=config, options=options) as cluster:
        names = [f"s{number}" for number in range(count)]
        cluster.create([Replica(name, 0, "here", str(folder / name), _ANY_MEMORY) for name in names])
        late = len(documents) - int(_PENDING * len(documents))
        for start in range(0, late, _BATCH):
            cluster.put(documents[start : min(late, start + _BATCH)])
        cluster.finish()
        cluster.put(documents[late:])
        cluster.publish()
        quantizer, index = cluster.catalogue.quantizer(), whole.vectors
        assert quantizer is not None
        assert index is not None
        # The quantizers of all numbers of shards have the same version.
        index.install_quantizer(whole.database.write, replace(quantizer, version=1000 * count + quantizer.version))
        chosen = SearchOptions()
        orders = scores = more = trips = 0
        took = [0.0, 0.0]
        kept: dict[int, tuple[list[Hit], list[Hit]]] = {}
        version = cluster._current()
        for number, question in enumerate(asked):
            began = time.perf_counter()
            sources = cluster._sources(version, (), question, chosen.candidates)
            found, _ = cluster._candidates(
                sources, Query.parse(question), vectors[number], chosen, exhaustive=version.mixed
            )
            own = max(source.trips for source in sources.values())
            between = time.perf_counter()
            expected = whole.candidates(question, vectors[number], chosen.candidates)
            took[0] += between - began
            took[1] += time.perf_counter() - between
            orders += [_place(hit) for hit in found] == [_place(hit) for hit in expected]
            scores += [(*_place(hit), hit.score) for hit in found] == [(*_place(hit), hit.score) for hit in expected]
            trips += own
            more += own > 2
            if number in sampled:
                kept[number] = found, expected
        same = sum(
            [(*_place(hit), hit.score, hit.relevance) for hit in reranked(cluster.models, asked[number], found, 10)]
            == [(*_place(hit), hit.score, hit.relevance) for hit in reranked(whole.models, asked[number], expected, 10)]
            for number, (found, expected) in kept.items()
        )
        return {
            "orders": orders / len(asked), "scores": scores / len(asked), "trips": trips / len(asked),
            "more": more / len(asked), "lists": len(quantizer.centroids),
            "reranked": same / len(kept) if kept else None, "seconds": took,
        }  # fmt: skip


def _place(hit: Hit) -> tuple[Any, ...]:
    return hit.path, hit.ordinals
