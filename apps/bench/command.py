"""`edge bench`: measures reranking, search and indexing on this machine, with models, limits and data of its user."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edge.apps.bench.worker import run_worker
from edge.apps.collection.paths import check_there, resolved
from edge.apps.collection.registry import locate
from edge.apps.options import CommandGroup, Setup, collection_option, json_option, setup_options
from edge.config import format_size
from edge.errors import EdgeError, InputError
from edge.files.named_file import read_input

_WORKER = "edge.apps.bench.worker"
_rounds = click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions, in a process each."
)
_input = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure time and memory on this machine, with your own data.

    Every measurement runs in a process of its own. The peak is the high-water mark of all anonymous memory of that
    process. Comparisons with other programs are in the source tree: `python -m tests.bench`.
    """


@bench.command()
@click.argument("questions", type=_input, required=False)
@click.option("-k", "--top-k", type=click.IntRange(1), default=10, show_default=True, help="How many results.")
@click.option("--model", help="Reranker: a known name or the path of a packed model.")
@_rounds
@setup_options(device=True)
@json_option
def rerank(questions: Path | None, top_k: int, model: str | None, rounds: int, setup: Setup, as_json: bool) -> None:
    """Rank the texts of each question, with pruning and at full depth.

    Each line of QUESTIONS is {"query": ..., "docs": [...]}, and optionally "relevant": positions of the relevant
    texts. Without a file, the questions and passages of `edge demo` are ranked.
    """
    asked = _demo() if questions is None else _lines(questions)
    for number, line in enumerate(asked, 1):
        docs = line.get("docs")
        if not (_is_text(line.get("query")) and isinstance(docs, list) and docs and all(map(_is_text, docs))):
            raise InputError(f"line {number} needs a query and docs: the texts to rank")
    arms = {name: {"threshold": threshold} for name, threshold in (("pruned", None), ("full depth", "inf"))}
    task = {"action": "rerank", "questions": asked, "top_k": top_k}
    _measure(task, arms, setup, rounds, as_json, reranker=model)


@bench.command()
@click.argument("questions", type=_input)
@click.option("-n", "--top-k", type=click.IntRange(1), default=10, show_default=True, help="How many results.")
@_rounds
@collection_option
@setup_options(device=True)
@json_option
def search(questions: Path, top_k: int, rounds: int, collection: Path | None, setup: Setup, as_json: bool) -> None:
    """Search a collection with each of QUESTIONS, with and without reranking.

    QUESTIONS has one question a line, or {"query": ..., "path": ...} with the file that answers it. Then the share of
    questions is printed whose file is among the results.
    """
    asked = _lines(questions)
    for number, line in enumerate(asked, 1):
        if not (_is_text(line.get("query")) and _is_text(line.get("path", " "))):
            raise InputError(f"line {number} needs a query, and may have a path")
    place = locate(collection)
    arms = {"reranked": {"rerank": True}, "not reranked": {"rerank": False}}
    asked = [line | ({"path": str(resolved(line["path"]))} if "path" in line else {}) for line in asked]
    task = {"action": "search", "collection": str(place), "questions": asked, "top_k": top_k}
    _measure(task, arms, setup, rounds, as_json)


@bench.command()
@click.argument("paths", nargs=-1, required=True, metavar="DIR...")
@click.option("--embedder", help="Embedding model: a known name or the path of a packed model.")
@_rounds
@setup_options()
@json_option
def index(paths: tuple[str, ...], embedder: str | None, rounds: int, setup: Setup, as_json: bool) -> None:
    """Index the files in DIR ... into a collection that is removed afterwards, and compare them once more."""
    folders = [resolved(path) for path in paths]
    check_there(folders)
    with tempfile.TemporaryDirectory() as place:
        task = {"action": "index", "paths": [str(path) for path in folders], "place": place}
        _measure(task, {"index": {}}, setup, rounds, as_json, embedder=embedder)


def _measure(
    task: Mapping[str, Any],
    arms: Mapping[str, Mapping[str, Any]],
    setup: Setup,
    rounds: int,
    as_json: bool,
    **flags: Any,
) -> None:
    config = setup.config(**flags)
    settings = {name: value for name, value in asdict(setup).items() if name != "no_server"} | flags
    reports: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for number in range(rounds):
        for name, arm in arms.items():
            click.echo(f"round {number + 1} of {rounds}: {name}", err=True)
            whole = {**task, **arm, "name": name, "settings": {**settings, "threshold": arm.get("threshold")}}
            reports[name].append(run_worker(_WORKER, whole, threads=config.threads or 1))
    rows = {name: _typical(found) for name, found in reports.items()}
    if as_json:
        click.echo(json.dumps({"limit": config.memory, "rounds": reports, "medians": rows}, ensure_ascii=False))
    else:
        _print(rows)
    held = max(report["peak_resident"] for found in reports.values() for report in found)
    if held > config.memory:
        raise EdgeError(f"the limit was broken: {format_size(held)} held of {format_size(config.memory)}")


def _typical(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Over the rounds, and the largest peak."""
    from statistics import median

    names = [name for name in reports[0] if name not in ("peak_resident", "peak_with_files")]
    found = {name: median(report[name] for report in reports) for name in names if reports[0][name] is not None}
    return {**found, "peak_resident": max(report["peak_resident"] for report in reports)}


_SIZES = ("peak_resident", "nbytes")
_SHARES = ("computed", "found")


def _print(rows: Mapping[str, Mapping[str, float]]) -> None:
    click.echo("".join([" " * 26, *(f"{name:>14}" for name in rows)]))
    for figure in dict.fromkeys(figure for row in rows.values() for figure in row):
        cells = [_cell(figure, row[figure]) if figure in row else "-" for row in rows.values()]
        label = {"peak_resident": "peak", "nbytes": "on disk"}.get(figure, figure.replace("_", " "))
        click.echo("".join([f"{label:26}", *(f"{cell:>14}" for cell in cells)]))


def _cell(figure: str, value: float) -> str:
    if figure in _SIZES:
        return format_size(round(value))
    if figure in _SHARES:
        return f"{value:.1%}"
    return f"{value:.3f} s" if figure.endswith("seconds") else f"{value:,.3g}" if value % 1 else f"{value:,.0f}"


def _demo() -> list[dict[str, Any]]:
    from edge.apps.demo import Passage, rows

    passages = [Passage(**row) for row in rows("passages.jsonl")]
    docs, places = [passage.document for passage in passages], {p.id: place for place, p in enumerate(passages)}
    return [
        {"query": q["question"], "docs": docs, "relevant": [places[name] for name in q["relevant"]]}
        for q in rows("questions.jsonl")
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number, line in enumerate(read_input(path).decode("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise InputError(f"{path}, line {number} is no JSON object: {error}") from None
        elif line.strip():
            found.append({"query": line.strip()})
    if not found:
        raise InputError(f"{path} has no questions")
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)
