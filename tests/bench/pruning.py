"""`pruning`: measures the work that pruning saves in each application by default, and the results it loses.

Every call that an application makes to its reranker is repeated at full depth. Calls that judge all their texts, such
as the assistant's judgements of units, are not rankings and do not count.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bench.figures import higher, lower, neither, tabulate
from bench.memory import turns_of
from bench.options import ARGUMENT, Folder, Output, benchmark
from bench.process import say
from bench.texts import tasks
from edge.apps.assistant.assistant import Assistant
from edge.apps.collection.collection import Collection
from edge.apps.memory.memory import Memory
from edge.apps.options import configure
from edge.budget import MemoryBudget
from edge.errors import InputError
from edge.models.training.corpora import Corpus, load
from edge.runtimes.reranker import Ranking, Reranker

_SELECTED_FROM = 40
_SELECTED_TOKENS = 400


@dataclass(frozen=True, slots=True)
class Call:
    """One ranking.

    Attributes:
        wanted: the number of results requested.
        candidates: the number of candidates.
        work: the share of layers times candidates that was computed.
        overlap: the share of full depth's results that are among the results.
    """

    wanted: int
    candidates: int
    work: float
    overlap: float


class WatchedReranker(Reranker):
    """Repeats every ranking at full depth and records the comparison.

    Attributes:
        calls: the recorded rankings.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[Call] = []

    def explain(self, query: str, docs: Sequence[str], top_k: int | None = None, **options: Any) -> Ranking:
        """See `Reranker.explain`."""
        found = super().explain(query, docs, top_k, **options)
        if top_k is not None and top_k < len(docs):
            full = super().explain(query, docs, top_k, **{**options, "threshold": "inf", "enough": None})
            best = {result.index for result in full.results}
            kept = best & {result.index for result in found.results}
            stats = found.stats
            work = stats.evaluations / stats.evaluations_full
            self.calls.append(Call(top_k, len(docs), work, len(kept) / len(best)))
        return found


@benchmark
def pruning(
    *,
    data: Annotated[Folder, ARGUMENT],
    conversations: Annotated[
        Folder | None, "A set of conversations for the memory, laid out as for the benchmark `memory`."
    ] = None,
    queries: Annotated[int, "Of each application."] = 40,
    memory: Annotated[str, "Limit of the process."] = "600MB",
    output: Output,
) -> None:
    """Layers times candidates that search, ask, memory, actions and select compute on DATA, a set in BEIR's layout."""
    corpus = load(data)
    asked = sorted(corpus.test)
    if not asked:
        raise InputError(f"{data} has no test judgements")
    random.Random(0).shuffle(asked)
    texts = [corpus.queries[query] for query in asked[:queries]]
    applications: dict[str, Callable[[WatchedReranker, MemoryBudget, str], None]] = {
        "search": lambda reranker, budget, folder: _search(reranker, budget, folder, corpus, texts),
        "ask": lambda reranker, budget, folder: _ask(reranker, budget, folder, corpus, texts),
        "memory": lambda reranker, budget, folder: _memory(reranker, budget, folder, conversations, queries),
        "actions": lambda reranker, budget, folder: _actions(reranker, budget, folder, queries),
        "select": lambda reranker, budget, folder: _select(reranker, budget, folder, corpus, texts),
    }
    report = {}
    for name, run in applications.items():
        if name == "memory" and conversations is None:
            continue
        with _watched(memory) as (reranker, budget), tempfile.TemporaryDirectory() as folder:
            say(f"asking {name}")
            run(reranker, budget, folder)
            report[name] = summary(reranker.calls)
    columns = {
        "work": lower("computed", "%"), "overlap": higher("found", "%"), "results": neither("results"),
        "candidates": neither("candidates"), "rankings": neither("rankings"),
    }  # fmt: skip
    saved = 1 - statistics.fmean(row["work"] for row in report.values())
    output.put(report, tabulate(report, columns), f"saved on average {saved:.0%}")


def summary(calls: Sequence[Call]) -> dict[str, float]:
    """The means over some rankings; for the numbers of results and candidates, the medians.

    Raises:
        InputError: there are no rankings.
    """
    if not calls:
        raise InputError("nothing was ranked; give more --queries")
    return {
        "rankings": len(calls),
        "results": statistics.median(call.wanted for call in calls),
        "candidates": statistics.median(call.candidates for call in calls),
        "work": statistics.fmean(call.work for call in calls),
        "overlap": statistics.fmean(call.overlap for call in calls),
    }


@contextmanager
def _watched(memory: str) -> Iterator[tuple[WatchedReranker, MemoryBudget]]:
    config = configure(memory=memory)
    budget = MemoryBudget(config.memory)
    reranker = WatchedReranker(config=config, budget=budget)
    with reranker:
        yield reranker, budget


@contextmanager
def _filled(reranker: Reranker, budget: MemoryBudget, folder: str, corpus: Corpus) -> Iterator[Collection]:
    with Collection(folder, reranker=reranker, budget=budget) as collection:
        collection.add(corpus.texts, ids=corpus.ids, title=corpus.titles)
        yield collection


def _search(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, texts: Sequence[str]) -> None:
    with _filled(reranker, budget, folder, corpus) as collection:
        for text in texts:
            collection.search(text)


def _ask(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, texts: Sequence[str]) -> None:
    with _filled(reranker, budget, folder, corpus) as collection, Assistant(collection) as assistant:
        for text in texts:
            assistant.ask(text)


def _memory(
    reranker: WatchedReranker, budget: MemoryBudget, folder: str, conversations: Path | None, queries: int
) -> None:
    assert conversations is not None
    corpus = load(conversations)
    asked = [query for query in corpus.queries if query in corpus.test]
    with Memory(folder, reranker=reranker, budget=budget) as memory:
        for (conversation, _), said in turns_of(corpus).items():
            memory.add([{"role": "user", "content": text} for _, text in said], run_id=conversation)
        for query in asked[:: max(1, len(asked) // queries)]:
            memory.search(corpus.queries[query], run_id=corpus.scope(query))


def _actions(reranker: WatchedReranker, budget: MemoryBudget, folder: str, queries: int) -> None:
    with Memory(folder, user_id="bench", reranker=reranker, budget=budget) as memory:
        groups = tasks(queries, seed=0)
        for group in groups:
            memory.actions.add(group[0].text, group[0].intent, state=group[0].state)
        for group in groups:
            memory.actions.lookup(group[-1].text, state=group[-1].state)


def _select(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, texts: Sequence[str]) -> None:
    numbers = random.Random(0)
    with Memory(folder, reranker=reranker, budget=budget) as memory:
        for text in texts:
            memory.select("\n\n".join(numbers.sample(corpus.texts, _SELECTED_FROM)), text, _SELECTED_TOKENS)
