"""`Reranker`: ranks texts by their relevance to a query with a cross-encoder, within a memory budget (GRATING)."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.config import Config, parse_threshold
from edge.errors import CapabilityError, CorruptBlock, InputError
from edge.models.blending import Retrieved, share_of
from edge.models.calibration import Calibration
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_RERANKER
from edge.models.tokenizer import check_texts
from edge.public_calls import checked_arguments
from edge.resident import Closing
from edge.runtimes.engine import Tuning, open_engine, opened_model
from edge.runtimes.passes import Job, RunStats
from edge.runtimes.reader import Span, SpanReader, Units
from edge.runtimes.scoring import (
    CandidatePool,
    Known,
    LackingLogits,
    LayerReport,
    Pruning,
    PruningObserver,
    Scorer,
    SeenPairs,
    Watch,
)
from edge.streaming.pruning import BoundedPruning, Mode, ProgressivePruning
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class Ranked:
    """One result.

    Attributes:
        index: the text's position in the input.
        score: score in 0 ... 1 by which results are ordered, higher is better: the model's probability of relevance, or
            its blend with the retrieval score.
        text: the text.
        relevance: the model's own probability of relevance, without retrieval.
    """

    index: int
    score: float
    text: str
    relevance: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Results, best first, with the decisions and figures of the pass.

    Attributes:
        results: the best `top_k`, best first.
        threshold: dispersion above which clusters are trusted, if it was set by hand; otherwise infinity.
        margin: number of standard deviations of the calibrated error by which hopeless candidates are found; None if
            pruning used no calibrated margin.
        exact: number of `results` that have their final score. The others were pruned, but are needed to fill `top_k`.
        layers: a report for each layer after which scores were examined.
        stats: the figures of the pass.
    """

    results: list[Ranked]
    threshold: float
    margin: float | None
    exact: int
    layers: list[LayerReport]
    stats: RunStats


@checked_arguments
class Reranker(Closing):
    """A cross-encoder under a memory budget.

    Examples:
        >>> with Reranker(memory="300MB") as reranker:
        ...     best = reranker.rank("who wrote Hamlet", ["Shakespeare wrote it.", "It rains."], top_k=1)
    """

    def __init__(
        self,
        model: str | Path | PackedModel = "",
        *,
        memory: str | int | None = None,
        budget: MemoryBudget | None = None,
        threshold: str | float | None = None,
        mode: Mode | None = None,
        max_tokens: int | None = None,
        config: Config | None = None,
        trace: Trace | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Opens a model.

        Args:
            model: name, path of a packed model, or an open one (then closed by this object); the default reranker if
                empty.
            memory: limit of the whole process, such as `300MB`; None takes the configuration's.
            budget: a memory budget that is shared with other parts of the program, instead of `memory`.
            threshold: dispersion at which pruning starts. `auto` uses the calibration, and does not prune without one.
                `inf` never prunes.
            mode: `ranked` prunes hopeless candidates only: at least 98 % of full depth's results are found, on average
                over the calibration's queries, with its order and scores. `top-k` also stops early on certain winners,
                and is for callers that need only the set of results.
            max_tokens: longest query + document in tokens; longer documents are truncated.

        Raises:
            ModelError: the model is missing, broken or no reranker.
            BudgetExceeded: the limit is too small; the error names the smallest that works.
        """
        config = config or Config.load()
        self.mode: Mode = _checked(cast(Mode, config.mode) if mode is None else mode)
        self._threshold = parse_threshold(config.threshold if threshold is None else threshold)
        with opened_model(model or config.reranker or DEFAULT_RERANKER, "reranker", config) as self.model:
            self.calibration, self._damage = self._calibrated()
            self.engine = open_engine(
                self.model, config, memory=memory, budget=budget, max_tokens=max_tokens, trace=trace, tuning=tuning
            )
        self.budget = self.engine.budget
        self._scorer = Scorer(self.model.spec, self.engine.head, self.calibration)
        self._seen = SeenPairs(self.model.spec.layers)
        self._opening = threading.Lock()
        self._looked, self._found = False, cast("SpanReader | None", None)

    def rank(
        self,
        query: str,
        docs: Sequence[str],
        top_k: int | None = None,
        *,
        retrieved: Retrieved = False,
        mode: Mode | None = None,
        threshold: str | float | None = None,
        enough: Callable[[Sequence[Ranked]], bool] | None = None,
        watch: Watch | None = None,
    ) -> list[Ranked]:
        """The `top_k` most relevant of `docs` (all if None), best first.

        Args:
            retrieved: a retriever's score for each of `docs`, or True if they are in the retriever's order, best first.
                These scores are independent evidence and are blended with the model's (`models.blending`). Further
                scores belong to texts that are not ranked, and show how good the others are.
            mode: overrides the mode that this object was made with.
            threshold: overrides the threshold that this object was made with.
            enough: gets all results with a final score, best first, and returns whether they are enough. If not, the
                pruned candidates are scored at full depth as well. With it the results are not cut to `top_k`.
            watch: called after each layer whose scores are examined, in the thread that runs the pass.

        Raises:
            InputError: the query is empty, there are no documents, `top_k` is not positive, a text is not valid
                Unicode, or there are fewer retrieval scores than texts.
            BudgetExceeded: the request does not fit the limit; the error names the smallest that works.
        """
        ranking = self.explain(
            query, docs, top_k, retrieved=retrieved, mode=mode, threshold=threshold, enough=enough, watch=watch
        )
        return ranking.results

    def explain(
        self,
        query: str,
        docs: Sequence[str],
        top_k: int | None = None,
        *,
        retrieved: Retrieved = False,
        mode: Mode | None = None,
        threshold: str | float | None = None,
        every_layer: bool = False,
        enough: Callable[[Sequence[Ranked]], bool] | None = None,
        watch: Watch | None = None,
        unread: Sequence[bool] | None = None,
        remember: bool = False,
    ) -> Ranking:
        """Like `rank`, but also returns the pruning rule, the decisions after each layer, and the figures of the pass.

        Args:
            every_layer: examine the scores after every layer, not only after those that pruning uses.
            unread: for each document whether the model cannot understand it, so that only its retrieval score counts.
                Its place in the order is that of a document of which no layer has read anything. Needs a calibration
                and retrieval scores; without them all documents count alike.
            remember: compute only what the latest calls with `remember` have not, for questions that are ranked by
                again: by their next page, by a later round of an answer, and ahead of a language model. `stats` are of
                what is computed.
        """
        _check_documents(docs)
        if not isinstance(query, str) or not query.strip():
            raise InputError("the query is empty" if isinstance(query, str) else f"a query is text, not {query!r}")
        check_texts(docs, "document")  # the tokenizer would not check documents that pruning leaves out
        if self._damage is not None and (every_layer or self._limit(threshold) != math.inf):
            raise self._damage
        k = len(docs) if top_k is None else top_k
        if top_k is not None and (not isinstance(top_k, int | np.integer) or top_k < 1):
            raise InputError(f"the number of results is a whole number of at least 1, not {top_k!r}")
        mode = self.mode if mode is None else _checked(mode)

        def begin() -> tuple[Pruning, CandidatePool]:
            pool = CandidatePool(
                len(docs), retrieved=retrieved, calibration=self.calibration, weight=share_of(query), unread=unread
            )
            return self._pruning(k, mode, threshold, len(docs), pool), pool

        observer, stats = self._pass(query, docs, begin, every_layer, watch, remember)
        pool, pruning = observer.pool, observer.pruning
        ids = observer.ranking()
        results = _ranked(ids, docs, observer.scores[ids], pool.relevance()[ids])
        exact = len(ids) - sum(map(len, observer.dropped))
        if enough is not None:
            results = results[:exact]
            if exact < len(docs) and not enough(results):
                # If the scores depend on the pool (a blend without a calibrated spread), all candidates are scored.
                late = ids[exact:] if pool.separable else np.arange(len(docs))
                texts = [docs[i] for i in late]

                def again() -> tuple[Pruning, CandidatePool]:
                    return ProgressivePruning(len(late), mode="ranked", candidates=len(late)), pool.part(late)

                last, more = self._pass(query, texts, again, every_layer, None, remember)
                found = _ranked(late, docs, last.scores, last.pool.relevance())
                results = sorted((results if pool.separable else []) + found, key=lambda r: (-r.score, r.index))
                stats, exact = stats.plus(more), len(docs)
        else:
            results = results[:k]
        return Ranking(
            results,
            threshold=pruning.threshold if isinstance(pruning, ProgressivePruning) else math.inf,
            margin=pruning.margin if isinstance(pruning, BoundedPruning) else None,
            exact=min(exact, len(results)),
            layers=observer.reports,
            stats=stats,
        )

    @property
    def reads(self) -> bool:
        """Whether the model has a reader, which finds the answer in a passage (see `read`), and can use it: a device
        keeps the states of tokens to itself."""
        return self.engine.place.on_host and self._reader() is not None

    def read(self, query: str, passages: Sequence[str], units: Sequence[Units] | None = None) -> list[list[Span]]:
        """The most probable answer in each unit of each passage, in the order of `passages`.

        Args:
            units: for each passage the start and end of its sentences, lines or blocks, in order; without them, a
                passage is one unit. Behind a passage's longest length, the probability is 0.

        Raises:
            CapabilityError: the model has no reader, or runs on a device that keeps the states of tokens to itself.
            CorruptBlock: the reader is damaged.
            InputError, BudgetExceeded: as for `rank`.
        """
        _check_documents(passages)
        reader = self._reader()
        if reader is None:
            raise CapabilityError(f"{self.model.name} has no reader that finds answers in passages")
        return reader.read(query, passages, units)

    def close(self) -> None:
        """Closes the model and frees all memory."""
        if self._found is not None:
            self._found.close()
        self.engine.close()

    def _reader(self) -> SpanReader | None:
        with self._opening:
            if not self._looked:
                self._found = SpanReader.open(self.engine)
                self._looked = True
            return self._found

    def _calibrated(self) -> tuple[Calibration | None, CorruptBlock | None]:
        """The model's calibration, or the error of a damaged one. Without pruning a damaged calibration is no error."""
        try:
            return Calibration.load(self.model.path, self.model.fingerprint), None
        except CorruptBlock as error:
            if self._threshold != math.inf:
                raise
            return None, error

    def _limit(self, threshold: str | float | None) -> float | None:
        """The threshold of one call; None stands for the calibrated margin."""
        return self._threshold if threshold is None else parse_threshold(threshold)

    def _pass(
        self,
        query: str,
        docs: Sequence[str],
        begin: Callable[[], tuple[Pruning, CandidatePool]],
        every_layer: bool,
        watch: Watch | None,
        remember: bool,
    ) -> tuple[PruningObserver, RunStats]:
        """Runs one pass. `begin` makes the pruning rule and the pool. It is called again if the pass starts again."""
        observers: list[PruningObserver] = []
        keys = self._seen.keys(query, docs) if remember else []
        known = Known(self._seen, keys, np.zeros(len(docs), np.bool_)) if remember else None

        def undo() -> None:
            for observer in observers:
                observer.close()

        def observe() -> PruningObserver:
            undo()
            pruning, pool = begin()
            observers.append(
                PruningObserver(
                    self.model.spec, self._scorer, pruning, pool, len(docs), every_layer, watch, self.budget, known
                )
            )
            return observers[-1]

        try:
            stats = self._computed(Job(docs, observe, query=query, undo=undo), known)
            stats = replace(stats, evaluations_full=self.model.spec.layers * len(docs))
            self.engine.trace.count("rerank.evaluations", stats.evaluations)
            self.engine.trace.count("rerank.evaluations_full", stats.evaluations_full)
            return observers[-1], stats
        finally:
            undo()

    def _computed(self, job: Job, known: Known | None) -> RunStats:
        """Runs a pass, or again with those pairs whose known logits end too early."""
        try:
            if known is not None and not len(job.observe().decide(0, np.arange(len(known.keys)))):
                return RunStats(layers=self.model.spec.layers, limit=self.budget.limit)
            return self.engine.run(job)
        except LackingLogits as lacking:
            if known is not None:
                known.anew[lacking.numbers] = True
        return self._computed(job, known)

    def _pruning(
        self, k: int, mode: Mode, threshold: str | float | None, candidates: int, pool: CandidatePool
    ) -> ProgressivePruning | BoundedPruning:
        """The pruning rule: the calibrated margin, unless a threshold of dispersion was set by hand."""
        limit, forecast = self._limit(threshold), pool.forecast
        margin = None if limit is not None or forecast is None else forecast.margin(mode, k, max(1, candidates))
        if forecast is not None and margin is not None:
            return BoundedPruning(k, mode=mode, errors=forecast.errors, margin=margin, candidates=candidates)
        return ProgressivePruning(k, mode=mode, threshold=math.inf if limit is None else limit, candidates=candidates)


def _ranked(
    ids: npt.NDArray[np.int64], docs: Sequence[str], scores: npt.NDArray[np.float64], relevance: npt.NDArray[np.float64]
) -> list[Ranked]:
    found = zip(ids.tolist(), scores.tolist(), relevance.tolist(), strict=True)
    return [Ranked(i, score, docs[i], probability) for i, score, probability in found]


def _check_documents(docs: object) -> None:
    if isinstance(docs, str):
        raise InputError("documents are a list of texts, not one text")
    if isinstance(docs, Mapping) or not (hasattr(docs, "__len__") and hasattr(docs, "__getitem__")):
        raise InputError(f"documents are a list of texts, not {type(docs).__name__}")
    if len(docs) == 0:
        raise InputError("there are no documents to rank")


def _checked(mode: Mode) -> Mode:
    if mode not in get_args(Mode):
        raise InputError(f"the mode is `ranked` or `top-k`, not {mode!r}")
    return mode
