"""`search-peers`: txtai and LEANN index and search the same documents with the same embedding model."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.figures import Figure, higher, lower, neither, tabulate
from bench.options import Output, output_options, rounds_option, threads_option, work_dir_option
from bench.process import measure_script, processor
from bench.search_quality import score
from edge.apps.options import FiniteRange
from edge.config import parse_size
from edge.errors import CapabilityError, InputError
from edge.models.manifest import file_sha256
from edge.models.pack import pack
from edge.models.training.corpora import Corpus, load

_WORKER = Path(__file__).with_name("search_peers_worker.py")
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
        """A sample, which is the same for the same numbers.

        Raises:
            InputError: the set has no test questions.
        """
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


@click.command("search-peers")
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--model", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="An embedding model of the sentence-transformers format. This program packs it in int8.",
)  # fmt: skip
@click.option("--documents", type=click.IntRange(1), default=2000, show_default=True, help="Documents to search.")
@click.option("--queries", type=click.IntRange(1), default=50, show_default=True, help="Questions to ask.")
@click.option("--memory", default="300MB", show_default=True, help="Limit of this program.")
@threads_option
@rounds_option(2)
@click.option(
    "--longest", type=FiniteRange(min=0, min_open=True), default=60.0, show_default=True,
    help="Seconds after which a program is asked no further question. Its quality is then left out.",
)  # fmt: skip
@click.option("--txtai-python", help="A Python in which txtai is installed; this one if not given.")
@click.option("--leann-python", help="A Python in which LEANN is installed; this one if not given.")
@work_dir_option
@output_options
def search_peers(
    data: Path,
    model: Path,
    documents: int,
    queries: int,
    memory: str,
    threads: int,
    rounds: int,
    longest: float,
    txtai_python: str | None,
    leann_python: str | None,
    work_dir: Path,
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
    common: dict[str, Any] = {"threads": threads, "memory": parse_size(memory), "longest": longest}
    indexes: dict[str, list[dict[str, Any]]] = {}
    searches: dict[str, list[dict[str, Any]]] = {}
    notes: dict[str, str] = {}
    for turn in range(rounds):
        for name in (*_OWN, *_PEERS):
            system, _, variant = name.partition(", ")
            if name in notes:
                continue
            click.echo(f"round {turn + 1} of {rounds}: {name}", err=True)
            used, kept = (packed, system) if name in _OWN else (model, name.replace(",", "").replace(" ", "-"))
            task = common | {
                "name": name, "system": system, "variant": variant, "model": str(used.resolve()),
                "folder": str(place.resolve() / kept),
            }  # fmt: skip
            python = {"txtai": txtai_python, "leann": leann_python}.get(system) or sys.executable
            try:
                if name != _OWN[1]:
                    made = _indexed(task, sample, python, again=name in _OWN)
                    indexes.setdefault(name, []).append(made)
                task |= {"action": "search", "queries": sample.queries}
                report = measure_script(_WORKER, task, threads=threads, python=python)
            except CapabilityError as error:
                notes[name] = f"{name} was left out: {error}."
                click.echo(f"  {notes[name]}", err=True)
                continue
            searches.setdefault(name, []).append(report)
    rows = {name: row(found, indexes.get(name), sample) for name, found in searches.items()}
    result = {
        "conditions": {
            "set": data.resolve().name, "model": model.resolve().name, "documents": len(sample.documents),
            "queries": len(sample.queries), "threads": threads, "limit": common["memory"], "rounds": rounds,
            "processor": processor(),
        },
        "systems": rows,
    }  # fmt: skip
    shown = (
        f"{len(sample.documents):,} documents of {data.resolve().name}, {len(sample.queries)} queries, "
        f"{model.resolve().name}, {threads} threads, {processor()}; medians of {rounds} alternating runs\n"
        "peak: anonymous resident memory of the process tree"
    )
    own = [rows[name] for name in _OWN if name in rows]
    held = max((peak for found in own for key in ("peak", "index_peak") for peak in found.get(key, [])), default=0)
    output.put(result, figures(rows), shown, notes.values(), held=held, limit=common["memory"])


def _packed(model: Path, folder: Path) -> Path:
    """The model packed in int8, which is made unless it is there."""
    if not (model / "model.safetensors").is_file():
        raise InputError(f"{model} holds no model.safetensors")
    place = folder / f"{model.resolve().name}-{file_sha256(model / 'model.safetensors')[:8]}"
    if not place.exists():
        click.echo(f"making {place}", err=True)
        pack(model, place, "int8").close()
    return place


def _indexed(task: Mapping[str, Any], sample: Sample, python: str, *, again: bool) -> dict[str, Any]:
    """The figures of indexing. An index that is there is kept, unless it shall be made `again`."""
    folder = Path(task["folder"])
    figures_file = folder.with_name(f"{folder.name}.json")
    if figures_file.exists() and not again:
        found: dict[str, Any] = json.loads(figures_file.read_text(encoding="utf-8"))
        return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    report = measure_script(
        _WORKER, {**task, "action": "index", "documents": sample.documents}, threads=task["threads"], python=python
    )
    figures_file.write_text(json.dumps(report), encoding="utf-8")
    return report


def row(
    searches: Sequence[Mapping[str, Any]], indexes: Sequence[Mapping[str, Any]] | None, sample: Sample
) -> dict[str, Any]:
    """The figures of one program: values of each round, and the quality, if all questions were asked."""
    found: dict[str, Any] = {
        "seconds": [statistics.median(report["seconds"]) for report in searches],
        "first": [report["first"] for report in searches],
        "peak": [report["peak_resident"] for report in searches],
        "asked": len(searches[-1]["found"]),
    }
    if indexes:
        found |= {
            "index_seconds": [report["seconds"] for report in indexes],
            "index_peak": [report["peak_resident"] for report in indexes],
            "nbytes": indexes[-1]["nbytes"],
        }
    orders = searches[-1]["found"]
    if len(orders) == len(sample.queries):
        found["ndcg"] = statistics.mean(map(score, orders, sample.grades))
    return found


def figures(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Figure]:
    """The figures of a stored run, by program."""
    columns = {
        "ndcg": higher("nDCG@10"), "seconds": lower("a query", "s"), "first": lower("first query from the start", "s"),
        "peak": lower("peak of searching", "B"), "index_seconds": lower("indexing", "s"),
        "index_peak": lower("peak of indexing", "B"), "nbytes": lower("index files", "B"), "asked": neither("queries"),
    }  # fmt: skip
    yield from tabulate(rows, columns, peers=_PEERS)
