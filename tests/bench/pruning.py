"""`pruning`: measures the work and time that pruning saves in each application by default, and the results it loses.

Every call that an application makes to its reranker is repeated at full depth, every other one before it. Calls that
judge all their texts, such as the assistant's judgements of units, are not rankings and do not count.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
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
from edge.apps.memory.records import action_text
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
        work: the share of layers times candidates that was computed.
        overlap: the share of full depth's results that are among the results.
        seconds, full_seconds: processor time of the ranking, and of full depth.
        precision, full_precision: the share of the relevant candidates that are among the results, and among those of
        full depth; with more of them than results, the share of relevant results. None without relevant candidates.
    """

    wanted: int
    candidates: int
    work: float
    overlap: float
    seconds: float = 0.0
    full_seconds: float = 0.0
    precision: float | None = None
    full_precision: float | None = None


class WatchedReranker(Reranker):
    """Repeats every ranking at full depth and records the comparison. `relevant` are the texts that answer what is
    asked now."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[Call] = []
        self.relevant: Sequence[str] = ()

    def explain(self, query: str, docs: Sequence[str], top_k: int | None = None, **options: Any) -> Ranking:
        """See `Reranker.explain`."""
        if top_k is None or top_k >= len(docs):
            return super().explain(query, docs, top_k, **options)
        whole = {**options, "threshold": "inf", "enough": None}
        passes: dict[bool, tuple[Ranking, float]] = {}
        for pruned in (True, False) if len(self.calls) % 2 else (False, True):
            started = time.process_time()
            ranking = super().explain(query, docs, top_k, **(options if pruned else whole))
            passes[pruned] = ranking, time.process_time() - started
        (found, seconds), (full, full_seconds) = passes[True], passes[False]
        kept, best = ({result.index for result in ranking.results[:top_k]} for ranking in (found, full))
        right = {place for place, doc in enumerate(docs) if self._answers(doc)}
        self.calls.append(
            Call(
                top_k, len(docs), found.stats.evaluations / found.stats.evaluations_full, len(kept & best) / len(best),
                seconds, full_seconds,
                *(len(right & those) / min(top_k, len(right)) if right else None for those in (kept, best)),
            )
        )  # fmt: skip
        return found

    def _answers(self, doc: str) -> bool:
        """Whether a candidate ends with a relevant text, or is a part of one."""
        doc = " ".join(doc.split())
        return any(doc.endswith(text) or doc in text for text in (" ".join(each.split()) for each in self.relevant))


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
    """What search, ask, memory, actions and select compute on DATA, a set in BEIR's layout, beside full depth."""
    corpus = load(data)
    asked = sorted(corpus.test)
    if not asked:
        raise InputError(f"{data} has no test judgements")
    random.Random(0).shuffle(asked)
    asked = asked[:queries]
    applications: dict[str, Callable[[WatchedReranker, MemoryBudget, str], None]] = {
        "search": lambda reranker, budget, folder: _search(reranker, budget, folder, corpus, asked),
        "ask": lambda reranker, budget, folder: _ask(reranker, budget, folder, corpus, asked),
        "memory": lambda reranker, budget, folder: _memory(reranker, budget, folder, conversations, queries),
        "actions": lambda reranker, budget, folder: _actions(reranker, budget, folder, queries),
        "select": lambda reranker, budget, folder: _select(reranker, budget, folder, corpus, asked),
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
        "work": lower("computed", "%"), "time": lower("processor time", "%"), "overlap": higher("found", "%"),
        "precision": higher("precision"), "full_precision": neither("precision at full depth"),
        "seconds": lower("a pass", "s"), "full_seconds": neither("a pass at full depth", "s"),
        "results": neither("results"),
        "candidates": neither("candidates"), "rankings": neither("rankings"),
    }  # fmt: skip
    saved = [1 - statistics.fmean(row[name] for row in report.values()) for name in ("work", "time")]
    output.put(
        report, tabulate(report, columns), "saved on average {:.0%} of the work, {:.0%} of the time".format(*saved)
    )


def summary(calls: Sequence[Call]) -> dict[str, float]:
    """The means over some rankings; for the numbers of results and candidates, the medians."""
    if not calls:
        raise InputError("nothing was ranked; give more --queries")
    judged = [call for call in calls if call.precision is not None]
    seconds, full = (statistics.fmean(each) for each in zip(*((c.seconds, c.full_seconds) for c in calls), strict=True))
    row = {
        "rankings": len(calls),
        "results": statistics.median(call.wanted for call in calls),
        "candidates": statistics.median(call.candidates for call in calls),
        "work": statistics.fmean(call.work for call in calls),
        "overlap": statistics.fmean(call.overlap for call in calls),
        "seconds": seconds,
        "full_seconds": full,
        "time": seconds / full if full else 1.0,
    }
    for name in ("precision", "full_precision") if judged else ():
        row[name] = statistics.fmean(getattr(call, name) for call in judged)
    return row


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


def _questions(reranker: WatchedReranker, corpus: Corpus, asked: Sequence[str]) -> Iterator[str]:
    """The questions, each once the reranker knows what answers it."""
    numbers = {identifier: number for number, identifier in enumerate(corpus.ids)}
    for query in asked:
        reranker.relevant = [corpus.texts[numbers[document]] for document in corpus.test[query]]
        yield corpus.queries[query]


def _search(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, asked: Sequence[str]) -> None:
    with _filled(reranker, budget, folder, corpus) as collection:
        for text in _questions(reranker, corpus, asked):
            collection.search(text)


def _ask(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, asked: Sequence[str]) -> None:
    with _filled(reranker, budget, folder, corpus) as collection, Assistant(collection) as assistant:
        for text in _questions(reranker, corpus, asked):
            assistant.ask(text)


def _memory(
    reranker: WatchedReranker, budget: MemoryBudget, folder: str, conversations: Path | None, queries: int
) -> None:
    assert conversations is not None
    corpus = load(conversations)
    asked = [query for query in corpus.queries if query in corpus.test]
    with Memory(folder, reranker=reranker, budget=budget) as memory:
        for (conversation, _), said in turns_of(corpus).items():
            memory.add([{"role": "user", "content": text} for _, text in said], run_id=conversation, supersede=False)
        asked = asked[:: max(1, len(asked) // queries)]
        for query, text in zip(asked, _questions(reranker, corpus, asked), strict=True):
            memory.search(text, run_id=corpus.scope(query))


def _actions(reranker: WatchedReranker, budget: MemoryBudget, folder: str, queries: int) -> None:
    with Memory(folder, user_id="bench", reranker=reranker, budget=budget) as memory:
        groups = tasks(queries, seed=0)
        for group in groups:
            memory.actions.add(group[0].text, group[0].intent, state=group[0].state)
        for group in groups:
            reranker.relevant = [action_text(group[0].text, group[0].state)]
            memory.actions.lookup(group[-1].text, state=group[-1].state)


def _select(reranker: WatchedReranker, budget: MemoryBudget, folder: str, corpus: Corpus, asked: Sequence[str]) -> None:
    numbers = random.Random(0)
    with Memory(folder, reranker=reranker, budget=budget) as memory:
        for text in _questions(reranker, corpus, asked):
            others = numbers.sample([one for one in corpus.texts if one not in reranker.relevant], _SELECTED_FROM)
            parts = [*reranker.relevant, *others][:_SELECTED_FROM]
            numbers.shuffle(parts)
            memory.select("\n\n".join(parts), text, _SELECTED_TOKENS)
