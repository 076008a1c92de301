"""The measurements of `edge bench`, each in a process of its own, which warms up nothing for the next. `run_worker` and
`serve` are for other measurements, too."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, TypeVar

from edge.config import Config
from edge.errors import CapabilityError, EdgeError
from edge.interpreter import python
from edge.resident import ResidentWatch, reported_nbytes

_MODULE = "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"


def run_worker(worker: str, task: Mapping[str, Any], *, threads: int) -> dict[str, Any]:
    """Runs the module `worker`, which calls `serve`, on a task for JSON, and returns its report. `CapabilityError` if
    it lacks a library, `EdgeError` with the last line of its output if it failed."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OPENBLAS_NUM_THREADS=str(threads))
    done = subprocess.run(
        python(_MODULE, worker), input=json.dumps(task), capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    return report_of(f"{worker} failed on {task.get('name', 'its task')}", done.returncode, done.stdout, done.stderr)


def report_of(failure: str, code: int, out: str, errors: str) -> dict[str, Any]:
    """In the last line of a worker's output."""
    lines = out.strip().splitlines()
    if code != 0 or not lines:
        reason = re.sub(r"^edge\.errors\.\w+: ", "", (errors.strip().splitlines() or ["no output"])[-1])
        kind = CapabilityError if "No module named" in reason else EdgeError
        raise kind(f"{failure}: {reason}")
    report: dict[str, Any] = json.loads(lines[-1])
    return report


def serve(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side. A task's `watch` is the seconds between memory samples, each of which takes the interpreter a
    tenth of a millisecond."""
    task = json.load(sys.stdin)
    with ResidentWatch(interval=task.get("watch", 0.002)) as watch:
        report = work(task)
        watch.sample()
        report["peak_resident"] = watch.high_water
        report["peak_with_files"] = reported_nbytes("VmHWM")  # because a peer may map its weights
    print(json.dumps(report))


Result = TypeVar("Result")
_BEGUN = time.perf_counter()


def work(task: dict[str, Any]) -> dict[str, Any]:
    actions = {"rerank": _rerank, "search": _search, "index": _index}
    return actions[task["action"]](task, Config.load(flags=task["settings"]))


def _rerank(task: dict[str, Any], config: Config) -> dict[str, Any]:
    from edge.runtimes.reranker import Reranker

    questions, k = task["questions"], task["top_k"]
    with Reranker(config=config) as reranker:
        rankings, figures = _timed(lambda asked: reranker.explain(asked["query"], asked["docs"], k), questions)
    judged = [
        _ndcg([result.index for result in ranking.results], asked["relevant"], k)
        for ranking, asked in zip(rankings, questions, strict=True)
        if asked.get("relevant")
    ]
    computed = sum(ranking.stats.evaluations for ranking in rankings)
    whole = sum(ranking.stats.evaluations_full for ranking in rankings)
    return figures | {"computed": computed / whole, f"nDCG@{k}": mean(judged) if judged else None}


def _search(task: dict[str, Any], config: Config) -> dict[str, Any]:
    from edge.apps.collection.collection import Collection

    questions = task["questions"]
    with Collection(Path(task["collection"]), config=config, read_only=True) as collection:
        found, figures = _timed(
            lambda asked: collection.search(asked["query"], task["top_k"], rerank=task["rerank"]), questions
        )
    judged = [
        any(Path(asked["path"]) in (place := Path(hit.path), *place.parents) for hit in hits)
        for hits, asked in zip(found, questions, strict=True)
        if "path" in asked
    ]
    return figures | {"found": mean(judged) if judged else None}


def _index(task: dict[str, Any], config: Config) -> dict[str, Any]:
    from tempfile import mkdtemp

    from edge.apps.collection.collection import Collection

    place = Path(mkdtemp(dir=task["place"]))
    with Collection(place, config=config) as collection:
        report = collection.index(task["paths"])
        opened = time.perf_counter() - _BEGUN
        again = collection.index(task["paths"])
    return {
        "files": report.indexed, "passages": report.chunks, "seconds": report.seconds, "whole_process_seconds": opened,
        "embedding_seconds": report.embed_s, "passages_a_second": report.chunks / max(report.seconds, 1e-9),
        "comparing_again_seconds": again.seconds,
        "nbytes": sum(file.stat().st_size for file in place.rglob("*") if file.is_file()),
    }  # fmt: skip


def _timed(
    ask: Callable[[dict[str, Any]], Result], questions: Sequence[dict[str, Any]]
) -> tuple[list[Result], dict[str, Any]]:
    """Of the first question from the start of this program, and of the others (of the same once more if there is only
    one)."""
    results = [ask(questions[0])]
    first = time.perf_counter() - _BEGUN
    seconds = []
    for asked in questions[1:] or questions:
        started = time.perf_counter()
        results.append(ask(asked))
        seconds.append(time.perf_counter() - started)
    return results[: len(questions)], {
        "questions": len(questions), "first_question_seconds": first, "median_seconds": median(seconds),
        "p95_seconds": sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1],
    }  # fmt: skip


def _ndcg(order: Sequence[int], relevant: Sequence[int], k: int) -> float:
    gain = sum(1 / math.log2(place + 2) for place, index in enumerate(order[:k]) if index in relevant)
    return gain / sum(1 / math.log2(place + 2) for place in range(min(k, len(relevant))))


if __name__ == "__main__":
    serve(work)
