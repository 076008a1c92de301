"""`edge demo`: ranks sixty passages by meaning for a few questions, and shows the time and memory used."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from shutil import get_terminal_size
from time import perf_counter
from typing import Any

import click

from edge.apps.options import Setup, json_option, setup_options, words_argument
from edge.config import format_size
from edge.errors import EdgeError, InputError
from edge.resident import ResidentWatch
from edge.runtimes.reranker import Ranking, Reranker

_DEMO_MEMORY = "150MB"

_QUESTIONS = 3
_SHOWN = 3
_WIDTH = 112


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    title: str
    text: str

    @property
    def document(self) -> str:
        return f"{self.title}. {self.text}"


@click.command()
@words_argument("question", required=False)
@setup_options()
@json_option
def demo(question: str | None, setup: Setup, as_json: bool) -> None:
    """Rank the passages that come with edge-rag by meaning, for QUESTION or for three prepared ones."""
    if question is not None and not question.strip():
        raise InputError("the query is empty")
    config = replace(setup, memory=setup.memory or _DEMO_MEMORY).config()
    shown = [Passage(**row) for row in rows("passages.jsonl")]
    questions = (
        [question] if question is not None else [row["question"] for row in rows("questions.jsonl")[:_QUESTIONS]]
    )
    with ResidentWatch() as watch:
        started = perf_counter()
        with Reranker(config=config) as reranker:
            opened = perf_counter() - started
            answers: list[tuple[str, Ranking]] = []
            for text in questions:
                ranking = reranker.explain(text, [passage.document for passage in shown], _SHOWN)
                answers.append((text, ranking))
                if not as_json:
                    _print_answer(text, ranking, shown)
            name, size = reranker.model.name, reranker.model.nbytes
        watch.sample()
    if as_json:
        click.echo(json.dumps(_document(answers, shown, watch.high_water, config.memory)))
    else:
        seconds = [ranking.stats.seconds for _, ranking in answers]
        click.echo(
            f"{name} ({format_size(size)} on disk) opened in {opened:.2f} s and read all {len(shown)} passages "
            f"against each question in {min(seconds):.2f} to {max(seconds):.2f} s.\n"
            f"Peak memory of the whole process: {format_size(watch.high_water)}; "
            f"the limit was {format_size(config.memory)}."
        )
    if watch.high_water > config.memory:
        raise EdgeError(
            f"the limit of {format_size(config.memory)} was broken: the process held {format_size(watch.high_water)}"
        )


def shown_texts() -> list[str]:
    return [Passage(**row).document for row in rows("passages.jsonl")]


def _print_answer(question: str, ranking: Ranking, passages: list[Passage]) -> None:
    click.secho(question, bold=True)
    for place, result in enumerate(ranking.results, 1):
        passage = passages[result.index]
        text = " ".join(passage.text.split())
        room = get_terminal_size((_WIDTH, 24)).columns - len(passage.title) - 15
        short = text if len(text) <= room else text[: room - 3].rsplit(" ", 1)[0] + "..."
        click.echo(f"  {place}. {result.score:.3f}  {passage.title}: {short}")
    stats = ranking.stats
    done = stats.evaluations / stats.evaluations_full
    click.echo(f"     {stats.sequences} passages, {stats.seconds:.2f} s, {done:.0%} of the layers' work needed\n")


def _document(answers: list[tuple[str, Ranking]], passages: list[Passage], peak: int, limit: int) -> dict[str, Any]:
    return {
        "questions": [
            {
                "question": text,
                "results": [
                    {"id": passages[r.index].id, "title": passages[r.index].title, "score": r.score}
                    for r in ranking.results
                ],
                "seconds": ranking.stats.seconds,
            }
            for text, ranking in answers
        ],
        "peak_resident": peak,
        "limit": limit,
    }


def rows(name: str) -> list[dict[str, Any]]:
    text = Path(str(files("edge.apps.demo") / name)).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
