"""`search-quality` measures BM25, vectors, both fused, and the reranker on judged sets, with the same collection code
as `edge search`. `search-peers`: txtai and LEANN index and search the same documents with the same embedding model."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click

from bench.figures import Column, Figure, tabulate
from bench.options import ARGUMENT, Count, Folder, NewFolder, Output, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import in_turn, kept, measure, processor, say
from bench.rerank_peers import SCRIPT, score, timings
from edge.apps.collection.collection import Collection
from edge.apps.collection.hits import Hit
from edge.apps.collection.searching import DEPTH
from edge.apps.options import FiniteRange
from edge.apps.verbs.requests import POOL
from edge.config import Config, parse_size
from edge.errors import InputError
from edge.models.manifest import file_sha256
from edge.models.pack import pack
from edge.models.training.corpora import Corpus, Qrels, load

_STAGES: dict[str, Callable[[Hit], int | None]] = {
    "bm25": lambda hit: hit.stages.lexical_rank,
    "vectors": lambda hit: hit.stages.vector_rank,
    "fused": lambda hit: hit.stages.fused_rank,
}


@benchmark
def search_quality(
    *,
    data: Annotated[tuple[Folder, ...], ARGUMENT],
    split: Annotated[str, click.Choice(["test", "train"])] = "test",
    queries: Annotated[int | None, "Of each set, drawn at random; all if not given."] = None,
    pool: Annotated[int, "Fused candidates that are reranked; 0: no reranking."] = 30,
    pools: Annotated[NewFolder | None, "Write the fused pools here, as JSONL."] = None,
    memory: Annotated[str | None, "Limit of the process."] = None,
    output: Output,
) -> None:
    """nDCG@10 of every stage of search on DATA: sets in BEIR's layout. An id such as `a/b` is searched below `a` only.

    The benchmark `rerank-peers` and `edge models calibrate` read the files that --pools writes.
    """
    config = Config.load(flags={"memory": memory})
    table = {}
    for folder in data:
        corpus = load(folder)
        judged: Qrels = getattr(corpus, split)
        asked = sorted(judged)
        if not asked:
            raise InputError(f"{folder} has no {split} judgements")
        random.Random(0).shuffle(asked)
        out = pools / f"{folder.name}.{split}.jsonl" if pools else None
        with tempfile.TemporaryDirectory() as place, Collection(place, config=config) as collection:
            say(f"indexing {corpus.name}: {len(corpus.ids)} documents")
            collection.add(corpus.texts, ids=corpus.ids, title=corpus.titles)
            table[corpus.name] = stages_of(collection, corpus, judged, asked[:queries], pool, out)
    stages = {name: Column(name) for name in (*_STAGES, "reranked")} | {"queries": Column("queries")}
    result = {"split": split, "pool": pool, "ndcg@10": table}
    output.put(result, tabulate(table, stages), "nDCG@10")


def stages_of(
    collection: Collection, corpus: Corpus, judged: Qrels, asked: Sequence[str], pool: int, out: Path | None
) -> dict[str, float]:
    """The mean nDCG@10 over the queries `asked`, by stage. The fused pools are written to `out`, if given."""
    found: dict[str, list[float]] = {}
    records: list[str] = []
    for start in range(0, len(asked), 256):
        group = asked[start : start + 256]
        vectors = collection.embed_queries([corpus.queries[q] for q in group])
        for query, vector in zip(group, vectors, strict=True):
            text, grades, scope = corpus.queries[query], judged[query], corpus.scope(query)
            hits = collection.candidates(text, vector, DEPTH, where=[f"path:{scope}/*"] if scope else None)
            orders = {name: ordered(hits, rank) for name, rank in _STAGES.items()}
            if pool:
                orders["reranked"] = [hit.path for hit in collection.rerank(text, hits[:pool])]
            for name, order in orders.items():
                found.setdefault(name, []).append(score(order, grades))
            if out:
                records.append(_record(text, hits[:POOL], grades, corpus.name))
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text("".join(f"{line}\n" for line in records), encoding="utf-8")
    return {"queries": float(len(asked)), **{name: statistics.mean(values) for name, values in found.items()}}


def ordered(hits: Iterable[Hit], rank: Callable[[Hit], int | None]) -> list[str]:
    """The documents in one stage's order."""
    ranked = [(place, hit.path) for hit in hits if (place := rank(hit)) is not None]
    return [path for _, path in sorted(ranked)]


def _record(query: str, hits: Sequence[Hit], grades: dict[str, int], domain: str) -> str:
    pool = {"query": query, "docs": [hit.passage for hit in hits], "grades": [grades.get(h.path, 0) for h in hits]}
    pool |= {"scores": [hit.stages.fused_score for hit in hits], "documents": [hit.path for hit in hits]}
    return json.dumps(pool | {"ideal": sorted(grades.values(), reverse=True), "domain": domain})


_OWN = ("edge", "edge, no reranking")
_PEERS = ("txtai", "leann", "leann, vectors stored, hybrid")


@dataclass(frozen=True, slots=True)
class Sample:
    """Some documents and questions of a judged set. The documents include all that are relevant to a question."""

    documents: list[tuple[str, str, str]]
    queries: list[str]
    grades: list[dict[str, int]]

    @classmethod
    def of(cls, corpus: Corpus, documents: int, queries: int) -> Sample:
        """A sample, which is the same for the same numbers."""
        if not corpus.test:
            raise InputError(f"{corpus.name} has no test questions")
        asked = random.Random(0).sample(sorted(corpus.test), min(queries, len(corpus.test)))
        wanted = {document for query in asked for document in corpus.test[query]}
        others = [number for number in corpus.ids if number not in wanted]
        count = max(0, min(documents - len(wanted), len(others)))
        wanted.update(random.Random(0).sample(others, count))
        rows = zip(corpus.ids, corpus.titles, corpus.texts, strict=True)
        chosen = [row for row in rows if row[0] in wanted]
        return cls(chosen, [corpus.queries[query] for query in asked], [corpus.test[query] for query in asked])


@benchmark
def search_peers(
    *,
    data: Annotated[Folder, ARGUMENT],
    model: Annotated[Folder, "An embedding model of the sentence-transformers format. This program packs it in int8."],
    documents: Annotated[Count, "Documents to search."] = 2000,
    queries: Annotated[Count, "Questions to ask."] = 50,
    memory: Annotated[str, "Limit of this program."] = "300MB",
    threads: Threads = 2,
    rounds: Rounds = 2,
    longest: Annotated[
        float,
        FiniteRange(min=0, min_open=True),
        "Seconds after which a program is asked no further question. Its quality is then left out.",
    ] = 60.0,
    txtai_python: Annotated[str | None, "A Python in which txtai is installed; this one if not given."] = None,
    leann_python: Annotated[str | None, "A Python in which LEANN is installed; this one if not given."] = None,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Index documents of DATA, a set in BEIR's layout, and search them, in this program and in its peers.

    The index of a peer is made once and kept with its figures in the folder. This program makes its own in each round.
    LEANN runs twice: as it is by default, where vectors are computed again in each search, and with stored vectors,
    fused with BM25.
    """
    sample = Sample.of(load(data), documents, queries)
    packed = _packed(model, work_dir)
    place = work_dir / f"search-peers-{data.resolve().name}-{len(sample.documents)}-{packed.name}"
    limit = parse_size(memory)
    indexes: dict[str, list[dict[str, Any]]] = {}

    def run(name: str) -> dict[str, Any]:
        system, _, variant = name.partition(", ")
        used, kept = (packed, system) if name in _OWN else (model, name.replace(",", "").replace(" ", "-"))
        task = {
            "name": name, "system": system, "variant": variant, "model": str(used.resolve()), "threads": threads,
            "folder": str(place.resolve() / kept), "memory": limit, "longest": longest,
        }  # fmt: skip
        python = {"txtai": txtai_python, "leann": leann_python}.get(system) or sys.executable
        if name != _OWN[1]:
            indexes.setdefault(name, []).append(_indexed(task, sample, python, again=name in _OWN))
        task |= {"action": "search", "queries": sample.queries}
        return measure(SCRIPT, task, threads=threads, python=python)

    searches, left_out = in_turn(rounds, (*_OWN, *_PEERS), run)
    rows = {name: row(found, indexes.get(name), sample) for name, found in searches.items()}
    conditions = {
        "set": data.resolve().name, "model": model.resolve().name, "documents": len(sample.documents),
        "queries": len(sample.queries), "threads": threads, "limit": limit, "rounds": rounds, "processor": processor(),
    }  # fmt: skip
    own = [rows[name] for name in _OWN if name in rows]
    held = max((peak for found in own for key in ("peak", "index_peak") for peak in found.get(key, [])), default=0)
    result = {"conditions": conditions, "systems": rows}
    output.put(result, figures(rows), stated(conditions), left_out.values(), held=held, limit=limit)


def _packed(model: Path, folder: Path) -> Path:
    """The model packed in int8, which is made unless it is there."""
    if not (model / "model.safetensors").is_file():
        raise InputError(f"{model} holds no model.safetensors")
    place = folder / f"{model.resolve().name}-{file_sha256(model / 'model.safetensors')[:8]}"
    if not place.exists():
        say(f"making {place}")
        pack(model, place, "int8").close()
    return place


def _indexed(task: Mapping[str, Any], sample: Sample, python: str, *, again: bool) -> dict[str, Any]:
    """The figures of indexing. An index that is there is kept, unless it shall be made `again`."""
    folder = Path(task["folder"])
    file = folder.with_name(f"{folder.name}.json")
    if again or not file.exists():
        file.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    task = {**task, "action": "index", "documents": sample.documents}
    return kept(file, lambda: measure(SCRIPT, task, threads=task["threads"], python=python))


def row(
    searches: Sequence[Mapping[str, Any]], indexes: Sequence[Mapping[str, Any]] | None, sample: Sample
) -> dict[str, Any]:
    """The figures of one program: values of each round, and the quality, if all questions were asked."""
    found = timings(searches) | {"asked": len(searches[-1]["answers"])}
    if indexes:
        found |= {
            "index_seconds": [report["seconds"] for report in indexes],
            "index_peak": [report["peak_resident"] for report in indexes],
            "nbytes": indexes[-1]["nbytes"],
        }
    orders = searches[-1]["answers"]
    if len(orders) == len(sample.queries):
        found["ndcg"] = statistics.mean(map(score, orders, sample.grades))
    return found


def figures(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    columns = {
        "ndcg": Column("nDCG@10"), "seconds": Column("a query", "s"),
        "first": Column("first query from the start", "s"),
        "peak": Column("peak of searching", "B"), "index_seconds": Column("indexing", "s"),
        "index_peak": Column("peak of indexing", "B"), "nbytes": Column("index files", "B"), "asked": Column("queries"),
    }  # fmt: skip
    yield from tabulate(rows, columns)
