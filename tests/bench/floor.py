"""`floor`: measures the error rates of a relevance floor, with and without the document of a question.

For each test question of a judged set the reranker reads the nearest passages. The best relevance among all of them is
the value that the assistant compares with its floor. The best relevance among the passages of other documents (for sets
of articles in paragraphs: of other articles) is the value it would see without the question's document. Questions of
another set, which this set does not answer, are asked, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from bench.figures import Figure, lower, neither, tabulate
from bench.options import Output, output_options
from edge.apps.assistant.base import MIN_RELEVANCE
from edge.apps.assistant.question import judged_question
from edge.budget import MemoryBudget
from edge.config import parse_size
from edge.errors import InputError
from edge.models.training.corpora import Corpus, load
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker

_FLOORS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Measured:
    """The best relevance of each question.

    Attributes:
        there: of questions whose document is there, [questions].
        gone: of the same questions without their documents, [questions].
        foreign: of questions of another set, [questions].
    """

    there: npt.NDArray[np.float64]
    gone: npt.NDArray[np.float64]
    foreign: npt.NDArray[np.float64]

    def at(self, floor: float) -> dict[str, float]:
        """The error rates at a floor: the shares of answerable questions that are refused, and of unanswerable ones
        that are answered."""
        return {
            "floor": floor,
            "refused": float((self.there < floor).mean()),
            "answered_without_document": float((self.gone >= floor).mean()),
            "answered_foreign": float((self.foreign >= floor).mean()),
        }


@click.command("floor")
@click.option(
    "--data", "folders", multiple=True, required=True, type=click.Path(file_okay=False, exists=True, path_type=Path),
    help="Judged sets in BEIR layout, two or more: each is asked the next one's questions, too.",
)  # fmt: skip
@click.option("--questions", default=150, show_default=True, help="Questions of each kind and set.")
@click.option("--pool", default=30, show_default=True, help="Nearest passages that the reranker reads.")
@click.option("--memory", default="1GB", show_default=True)
@output_options
def floor(folders: Sequence[Path], questions: int, pool: int, memory: str, output: Output) -> None:
    """Measure how often a relevance floor refuses questions that have an answer, and lets others pass."""
    if len(folders) < 2:
        raise InputError("two judged sets are needed: each is asked questions about the other")
    corpora = [load(folder) for folder in folders]
    budget = MemoryBudget(parse_size(memory))
    results = {}
    for corpus, other in zip(corpora, [*corpora[1:], corpora[0]], strict=True):
        click.echo(f"asking {corpus.name}", err=True)
        measured = _measure(corpus, other, questions, pool, budget)
        results[corpus.name] = [measured.at(value) for value in sorted({*_FLOORS, MIN_RELEVANCE})]
    result = {"questions": questions, "pool": pool, "default": MIN_RELEVANCE, "sets": results}
    output.put(
        result,
        figures(results),
        f"{questions} questions of each kind, best of {pool} passages; the default is {MIN_RELEVANCE}",
    )


def figures(results: dict[str, list[dict[str, float]]]) -> Iterator[Figure]:
    """The figures of a stored run, by set and floor. A higher floor trades one error for the other, so only those of
    the default floor have a direction."""
    for name, rows in results.items():
        for row in rows:
            column = lower if row["floor"] == MIN_RELEVANCE else neither
            columns = {
                "refused": column("refused though there", "%"),
                "answered_without_document": column("answered though gone", "%"),
                "answered_foreign": column("foreign", "%"),
            }
            yield from tabulate({f"{row['floor']:.2f}": row}, columns, name)


def _measure(corpus: Corpus, other: Corpus, questions: int, pool: int, budget: MemoryBudget) -> Measured:
    rng = np.random.default_rng(0)
    asked = sorted(corpus.test)
    asked = [asked[i] for i in rng.permutation(len(asked))[:questions]]
    foreign = [other.queries[q] for q in sorted(other.test)]
    foreign = [foreign[i] for i in rng.permutation(len(foreign))[:questions]]
    passages = [f"{title}\n{text}".strip() for title, text in zip(corpus.titles, corpus.texts, strict=True)]
    texts = [corpus.queries[q] for q in asked] + foreign
    with Embedder(budget=budget) as embedder:
        vectors, queries = embedder.embed(passages), embedder.embed(texts, query=True)
    numbers = {identifier: number for number, identifier in enumerate(corpus.ids)}
    in_articles = len(set(corpus.titles)) * 4 < len(corpus.titles)
    there, gone, strange = [], [], []
    with Reranker(budget=budget, threshold="inf") as reranker:
        for number, (text, query) in enumerate(zip(texts, queries, strict=True)):
            nearest = np.argsort(-(vectors @ query), kind="stable")[:pool]
            ranked = reranker.rank(judged_question(text), [passages[i] for i in nearest])
            relevance = {int(nearest[result.index]): result.relevance for result in ranked}
            if number >= len(asked):
                strange.append(max(relevance.values()))
                continue
            own = {numbers[identifier] for identifier in corpus.test[asked[number]]}
            titles = {corpus.titles[i] for i in own} if in_articles else set()
            others = [v for i, v in relevance.items() if i not in own and corpus.titles[i] not in titles]
            there.append(max(relevance.values()))
            gone.append(max(others, default=0.0))
    return Measured(np.array(there), np.array(gone), np.array(strange))
