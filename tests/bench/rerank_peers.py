"""`rerank-peers`: FlashRank, fastembed and transformers rerank the same candidates with one checkpoint."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import numpy as np

from bench import onnx_export
from bench.figures import Column, Figure, tabulate
from bench.options import ARGUMENT, Count, File, Folder, Names, Output, Rounds, Threads, WorkDir, benchmark, stated
from bench.process import in_turn, measure, processor, say
from edge.config import parse_size
from edge.errors import InputError
from edge.models.pack import pack
from edge.models.training.measures import ndcg

SCRIPT = Path(__file__).with_name("peers_script.py")
_SYSTEMS = ("edge", "flashrank", "fastembed", "transformers")
_PRECISIONS = ("int8", "fp32")
_REFERENCE = "transformers, fp32"
_K = 10
_BATCH = 32


@dataclass(frozen=True, slots=True)
class JudgedPool:
    """A query with its candidates in retrieval order, the grade of each, and all judged grades of the query (`ideal`),
    including documents that retrieval missed. A document (`documents`: of each candidate) counts once, at its first
    passage."""

    query: str
    docs: list[str]
    grades: list[float]
    ideal: list[float]
    documents: Sequence[Any]

    def cut(self, count: int) -> JudgedPool:
        """The pool with only its first `count` candidates."""
        return JudgedPool(self.query, self.docs[:count], self.grades[:count], self.ideal, self.documents[:count])

    def ndcg(self, scores: Any) -> float:
        """nDCG@10 of the documents in the order of `scores`, one for each candidate."""
        grades = dict(zip(self.documents, self.grades, strict=True))
        return score([self.documents[i] for i in best(scores, len(self.docs))], grades, self.ideal)


def score(order: Iterable[Any], grades: Mapping[Any, float], ideal: Sequence[float] = ()) -> float:
    """The nDCG@10 of documents. A repeated document counts only at its first place. `ideal`: all judged grades, where
    there are more."""
    first = list(dict.fromkeys(order))[:_K]
    gains = np.array([grades.get(path, 0) for path in first] + [0] * (_K - len(first)), np.float64)
    every = np.array(sorted(ideal or grades.values()), np.float64)
    return float(ndcg(-np.arange(_K, dtype=np.float64), gains, every))


@benchmark
def rerank_peers(
    *,
    pools: Annotated[tuple[File, ...], ARGUMENT],
    checkpoint: Annotated[
        Folder, "A cross-encoder in Hugging Face's format. It is packed, and exported to ONNX by torch."
    ],
    queries: Annotated[Count, "Of each file, the first ones."] = 20,
    candidates: Annotated[int, click.IntRange(2), "First ones of a pool."] = 60,
    max_tokens: Annotated[int, click.IntRange(16), "Of query + candidate."] = 256,
    memory: Annotated[str, "Limit of this program."] = "300MB",
    threads: Threads = 2,
    rounds: Rounds = 2,
    systems: Annotated[Sequence[str], Names(_SYSTEMS)] = _SYSTEMS,
    precisions: Annotated[Sequence[str], Names(_PRECISIONS), "transformers runs in fp32 only."] = _PRECISIONS,
    flashrank_python: Annotated[str | None, "A Python in which FlashRank is installed; this one if not given."] = None,
    fastembed_python: Annotated[str | None, "A Python in which fastembed is installed; this one if not given."] = None,
    work_dir: WorkDir,
    output: Output,
) -> None:
    """Rerank the candidates of POOLS with one checkpoint, in this program and in its peers, at full depth.

    `search-quality DATA --pools DIR` writes such files. The peers run with their own defaults: FlashRank puts all
    candidates into one batch, fastembed 64; transformers gets 32. The int8 model of all but this program is
    onnxruntime's dynamic quantization.
    """
    judged = {path.stem: [pool.cut(candidates) for pool in read_pools(path, queries)] for path in pools}
    if len(judged) < len(pools):
        raise InputError("two of the files have the same name")
    tasks = _tasks(checkpoint, work_dir, _rows(systems, precisions), max_tokens)
    limit = parse_size(memory)
    common: dict[str, Any] = {
        "action": "rerank", "queries": [(pool.query, pool.docs) for found in judged.values() for pool in found],
        "max_tokens": max_tokens, "threads": threads, "memory": limit, "batch": _BATCH, "longest": float("inf"),
    }  # fmt: skip
    pythons = {"flashrank": flashrank_python, "fastembed": fastembed_python}

    def run(name: str) -> dict[str, Any]:
        task = common | tasks[name] | {"name": name}
        return measure(SCRIPT, task, threads=threads, python=pythons.get(task["system"]) or sys.executable)

    reports, left_out = in_turn(rounds, tasks, run)
    report = {name: row(found, judged, reports.get(_REFERENCE)) for name, found in reports.items()}
    conditions = {
        "checkpoint": checkpoint.name, "candidates": candidates, "max_tokens": max_tokens, "threads": threads,
        "queries": len(common["queries"]), "limit": limit, "rounds": rounds, "processor": processor(),
    }  # fmt: skip
    retrieved = {set_name: retrieved_quality(found) for set_name, found in judged.items()}
    result = {"conditions": conditions, "retrieved": retrieved, "systems": report}
    held = max((max(found["peak"]) for name, found in report.items() if name.startswith("edge")), default=0)
    output.put(result, figures(result), stated(conditions), left_out.values(), held=held, limit=limit)


def _rows(systems: Sequence[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of a system and a precision that run, in their order."""
    own = [(system, precision) for system in systems if system != "transformers" for precision in precisions]
    return own + ([("transformers", "fp32")] if "transformers" in systems else [])


def _tasks(
    checkpoint: Path, folder: Path, rows: Sequence[tuple[str, str]], max_tokens: int
) -> dict[str, dict[str, Any]]:
    """The task of each row, with its model, which is made unless it is there."""
    own = folder / f"{checkpoint.resolve().name}-{onnx_export.fingerprint(checkpoint)}"
    tasks: dict[str, dict[str, Any]] = {}
    for system, precision in rows:
        place = (
            checkpoint if system == "transformers" else own / f"{precision}-{'pack' if system == 'edge' else 'onnx'}"
        )
        if not place.exists():
            say(f"making {place}")
        task: dict[str, Any] = {"system": system, "model": str(place.resolve())}
        if system == "edge":
            if not place.exists():
                pack(checkpoint, place, precision).close()  # type: ignore[arg-type]
        elif system == "transformers":
            task["pad_token"] = onnx_export.pad_token(checkpoint)
        else:
            onnx_export.export(checkpoint, place, precision, max_tokens)
            task |= {"name_there": onnx_export.MODEL_NAME, "file_there": onnx_export.MODEL_FILE}
        tasks[f"{system}, {precision}"] = task
    return tasks


def row(
    reports: Sequence[Mapping[str, Any]],
    judged: Mapping[str, Sequence[JudgedPool]],
    reference: Sequence[Mapping[str, Any]] | None,
) -> dict[str, Any]:
    """The figures of one system: values of each round, and the quality, which is the same in all rounds.

    `same` is the share of the first 10 candidates that are also among the first 10 of `reference`.
    """
    scores = reports[-1]["answers"]
    found = timings(reports) | {"ndcg": {}}
    rest = iter(scores)
    for name, pools in judged.items():
        found["ndcg"][name] = statistics.mean(pool.ndcg(next(rest)) for pool in pools)
    if reference:
        pairs = list(zip(map(best, scores), map(best, reference[-1]["answers"]), strict=True))
        found["same"] = statistics.mean(len(set(own) & set(its)) / len(its) for own, its in pairs)
    return found


def timings(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What each round of the script took."""
    return {
        "seconds": [statistics.median(report["seconds"]) for report in reports],
        "first": [report["first"] for report in reports], "peak": [report["peak_resident"] for report in reports],
    }  # fmt: skip


def retrieved_quality(pools: Sequence[JudgedPool]) -> float:
    """The mean nDCG@10 of the candidates in the order in which they were retrieved."""
    return statistics.mean(pool.ndcg(-np.arange(len(pool.docs))) for pool in pools)


def best(scores: Sequence[float], k: int = _K) -> list[int]:
    """The places of the `k` best candidates."""
    return [int(place) for place in np.argsort(-np.asarray(scores), kind="stable")[:k]]


def figures(result: Mapping[str, Any]) -> Iterator[Figure]:
    sets = list(result["retrieved"])
    columns = {
        "seconds": Column("a query", "s"), "first": Column("first query from the start", "s"),
        "peak": Column("peak", "B"),
        **{f"ndcg {number}": Column(f"nDCG@10, {name}") for number, name in enumerate(sets)},
        "same": Column("same first 10 as transformers", "%"),
    }  # fmt: skip
    found = {**result["systems"], "order of retrieval": {"ndcg": result["retrieved"]}}
    # The names of files hold dots, which would lead into nested values.
    rows = {
        name: {**values, **{f"ndcg {number}": values["ndcg"][each] for number, each in enumerate(sets)}}
        for name, values in found.items()
    }
    yield from tabulate(rows, columns)


def read_pools(path: Path, limit: int) -> list[JudgedPool]:
    """The first `limit` pools of a file."""
    pools: list[JudgedPool] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines()[:limit], 1):
        try:
            value = json.loads(line)
            grades = [float(grade) for grade in value["grades"]]
            docs, ideal = list(map(str, value["docs"])), value.get("ideal") or grades
            documents = value.get("documents") or range(len(docs))
            pool = JudgedPool(str(value["query"]), docs, grades, ideal, documents)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f'{path}, line {number}: needs "query", "docs" and "grades" ({error})') from None
        if len(pool.docs) != len(grades):
            raise InputError(f"{path}, line {number}: {len(pool.docs)} docs but {len(grades)} grades")
        pools.append(pool)
    if not pools:
        raise InputError(f"{path} holds no pools")
    return pools
