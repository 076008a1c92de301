"""`evidence`: fits the model that decides whether passages answer a question, and measures it.

The model is fitted on the halves `choose` of the benchmarks `answers` and `household`, and on train questions of judged
sets. It is measured on the half `judge` and on the test questions of these sets. Each question of a judged set is asked
with its document and without it (for sets of articles in paragraphs: without its article). Questions of another set,
which this set does not answer, are asked, too.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np

from bench.answers import copy_documents, holds, questions
from bench.figures import Figure, lower, neither, tabulate
from bench.household import SOURCE, read, write_files
from bench.options import Folder, Output, benchmark
from bench.process import say
from edge.apps.assistant.calibrating import JudgedUnit, example_of, fitted_on
from edge.apps.assistant.evidence import SIGNALS, UnitJudge, pair_name
from edge.apps.collection.collection import Collection
from edge.apps.verbs.requests import AskOptions
from edge.budget import MemoryBudget
from edge.config import Config, parse_size
from edge.models.evidence import Evidence, result_signals, results_name, save
from edge.models.training.corpora import Corpus, load

_DOCUMENTS = 600
_EDGES = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 0.85, 1.01)
"""Bounds of the numbers that are counted together."""


@benchmark
def evidence(
    *,
    folders: Annotated[tuple[Folder, ...], "--data", "Judged sets in BEIR layout."] = (),
    count: Annotated[int, "--questions", "Of each judged set and split."] = 60,
    embedder: Annotated[str | None, "The embedder; the default one if not given."] = None,
    memory: str = "900MB",
    threads: Annotated[int | None, "Compute threads."] = None,
    saved: Annotated[bool, "--save", "Store the fitted values beside the reranker."] = False,
    output: Output,
) -> None:
    """Fit when passages count as an answer; refusals and false answers of questions it was not fitted on."""
    config = Config.load(flags={"memory": memory, "threads": threads, "embedder": embedder})
    budget = MemoryBudget(parse_size(memory))
    examples: dict[str, list[JudgedUnit]] = {"choose": [], "judge": []}
    with tempfile.TemporaryDirectory() as folder:
        for half, example in _own(Path(folder), config, budget):
            examples[half].append(example)
        corpora = [load(path) for path in folders]
        for number, corpus in enumerate(corpora):
            foreign = corpora[number - 1] if len(corpora) > 1 else None
            for half, example in _judged(corpus, foreign, Path(folder), config, budget, count):
                examples[half].append(example)
        with Collection(Path(folder) / "own", config=config, budget=budget) as collection:
            reranker, name = collection.reranker.model, collection.embedder.model.name
    models = fitted_on(examples["choose"], name)
    fitted = models[pair_name(name)]
    if saved:
        save(reranker, models)
    report = {half: errors(fitted, found) for half, found in examples.items()}
    report |= {f"results, {half}": reliability(models[results_name(name)], found) for half, found in examples.items()}
    result = {"signals": SIGNALS, **fitted.model.to_json(), "threshold": fitted.threshold, **report}
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in zip(SIGNALS, fitted.model.weights, strict=False))
    shown = f"weights {weights}\nthreshold {fitted.threshold:.3f}, fitted on {fitted.examples} questions"
    output.put(result, figures(report), shown)


def figures(report: dict[str, dict[str, dict[str, float]]]) -> Iterator[Figure]:
    """The figures of a stored run, by half and kind of question."""
    columns = {
        "questions": neither("questions"), "wrong": lower("wrong", "%"), "certain": lower("wrong, unmarked", "%"),
        "results": neither("results"), "shown": neither("number shown, mean"), "answer": neither("of these answer"),
    }  # fmt: skip
    for half, rows in report.items():
        yield from tabulate(rows, columns, half)


def errors(fitted: Evidence, examples: Sequence[JudgedUnit]) -> dict[str, dict[str, float]]:
    """The error rates by kind: answerable questions that are refused, or unanswerable ones that are answered; and the
    wrong quotations that are shown without a warning."""
    rows: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for example in examples:
        chance = example.reading.probability(fitted)
        found = chance >= fitted.threshold
        rows[example.kind].append((found != example.there, chance >= fitted.certain and not example.right))
    return {
        kind: {
            "questions": len(wrong),
            "wrong": sum(now for now, _ in wrong) / len(wrong),
            "certain": sum(certain for _, certain in wrong) / len(wrong),
        }
        for kind, wrong in rows.items()
    }


def reliability(fitted: Evidence, examples: Sequence[JudgedUnit]) -> dict[str, dict[str, float]]:
    """The mean number that results have, by its size, and the share of these that answer."""
    found = [example.results for example in examples]
    blended = [values for results in found for values in result_signals([score for score, _ in results])]
    shown, right = fitted.model.probability(blended), np.array([right for results in found for _, right in results])
    rows: dict[str, dict[str, float]] = {}
    for least, most in pairwise(_EDGES):
        within = (shown >= least) & (shown < most)
        if within.any():
            rows[f"{least:.2f} to {min(most, 1.0):.2f}"] = {
                "results": float(within.sum()), "shown": float(shown[within].mean()),
                "answer": float(right[within].mean()),
            }  # fmt: skip
    return rows


def _own(folder: Path, config: Config, budget: MemoryBudget) -> Iterator[tuple[str, JudgedUnit]]:
    documents = copy_documents(folder)
    with Collection(folder / "own", config=config, budget=budget) as collection:
        collection.index([documents])
        judge = UnitJudge(collection)
        for question in questions():
            if question.after:
                continue
            hits = collection.candidates(question.question, k=2 * AskOptions().pool)
            answers = (question.answers,) if question.answers else ()
            right = _shows(answers, [documents / question.file])
            yield question.half, example_of(collection, judge, question.question, hits, question.kind, right)
    files, everyday = read(SOURCE.read_text("utf-8"))
    write_files(files, folder / "household")
    with Collection(folder / "everyday", config=config, budget=budget) as collection:
        collection.index([folder / "household"])
        judge = UnitJudge(collection)
        for asked in everyday:
            hits = collection.candidates(asked.question, k=2 * AskOptions().pool)
            kind = f"household {'there' if asked.answers else 'gone'}"
            right = _shows(asked.answers, [folder / "household" / file for file in asked.files])
            yield asked.half, example_of(collection, judge, asked.question, hits, kind, right)


def _shows(answers: Sequence[Sequence[str]], files: Sequence[Path]) -> Callable[[str, str], bool] | None:
    """Whether a quotation shows all answers and begins with one of the files; None if there is no answer."""
    if not answers:
        return None
    paths = {str(file) for file in files}
    return lambda text, path: path in paths and all(any(holds(text, words) for words in each) for each in answers)


def _judged(
    corpus: Corpus, other: Corpus | None, folder: Path, config: Config, budget: MemoryBudget, count: int
) -> Iterator[tuple[str, JudgedUnit]]:
    """The examples of a judged set. Its train questions are for fitting, its test questions for measuring."""
    say(f"asking {corpus.name}")
    rng = np.random.default_rng(0)
    numbers = {identifier: number for number, identifier in enumerate(corpus.ids)}
    in_articles = len(set(corpus.titles)) * 4 < len(corpus.titles)
    with Collection(folder / corpus.name, config=config, budget=budget) as collection:
        asked = {}
        wanted: set[int] = set()
        for half, judged in (("choose", corpus.train), ("judge", corpus.test)):
            names = sorted(judged)
            asked[half] = [names[i] for i in rng.permutation(len(names))[:count]]
            wanted |= {numbers[document] for name in asked[half] for document in judged[name]}
        rest = [int(i) for i in rng.permutation(len(corpus.ids)) if i not in wanted]
        held = sorted([*wanted, *rest[: max(0, _DOCUMENTS - len(wanted))]])
        titles_held = [corpus.titles[number] for number in held]
        collection.add(
            [corpus.texts[number] for number in held], ids=[str(number) for number in held], title=titles_held
        )
        judge = UnitJudge(collection)
        for half, judged in (("choose", corpus.train), ("judge", corpus.test)):
            for name in asked[half]:
                own = {numbers[document] for document in judged[name]}
                titles = {corpus.titles[number] for number in own} if in_articles else set()
                hits = collection.candidates(corpus.queries[name], k=2 * AskOptions().pool)
                gone = [h for h in hits if int(h.path) not in own and corpus.titles[int(h.path)] not in titles]
                right = frozenset(map(str, own)).__contains__
                for found, kind in ((hits, "there"), (gone, "gone")):
                    answers = (lambda text, path, right=right: right(path)) if kind == "there" else None
                    text = corpus.queries[name]
                    yield half, example_of(collection, judge, text, found, f"{corpus.name} {kind}", answers)
            if other is not None:
                names = sorted(other.train if half == "choose" else other.test)
                for name in [names[i] for i in rng.permutation(len(names))[: count // 2]]:
                    hits = collection.candidates(other.queries[name], k=2 * AskOptions().pool)
                    text = other.queries[name]
                    yield half, example_of(collection, judge, text, hits, f"{corpus.name} foreign", None)
