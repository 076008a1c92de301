"""`Reranker`: ranks texts by their relevance to a query with a cross-encoder, within a memory budget (GRATING)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from edge.bounded_pruning import BoundedPruning
from edge.budget import MemoryBudget
from edge.config import Config, parse_threshold
from edge.errors import CorruptBlock, InputError
from edge.models.blending import Retrieved, share_of
from edge.models.calibration import Calibration
from edge.models.packed import PackedModel
from edge.models.registry import DEFAULT_RERANKER
from edge.models.tokens import TokenBatch
from edge.pruning import Mode, ProgressivePruning
from edge.public_calls import checked_arguments
from edge.runtimes.engine import Tuning
from edge.runtimes.opening import open_engine, opened_model
from edge.runtimes.scoring import LayerReport, Pool, Pruning, PruningObserver, Scorer
from edge.runtimes.stats import RunStats
from edge.trace import Trace


@dataclass(frozen=True, slots=True)
class Ranked:
    """One result.

    Attributes:
        index: the text's position in the input.
        score: what the order follows, in 0 ... 1, higher is better: the model's probability of relevance, or its blend
            with what retrieval found.
        text: the text.
        relevance: the model's own probability, whatever order the text came in.
    """

    index: int
    score: float
    text: str
    relevance: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Results, best first, with how they came about.

    Attributes:
        results: the best `top_k`, best first.
        threshold: dispersion above which clusters are trusted, where it was set by hand; infinity where it was not.
        margin: standard deviations of the calibrated error that make a candidate hopeless; None where it played no
            part.
        exact: how many of `results` have their final score: all but those that were asked for though they were dropped.
        layers: what was seen and decided after each layer whose scores were looked at.
        stats: what the pass needed.
    """

    results: list[Ranked]
    threshold: float
    margin: float | None
    exact: int
    layers: list[LayerReport]
    stats: RunStats


@checked_arguments
class Reranker:
    """A cross-encoder under a memory budget.

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
            memory: limit of the whole process, such as `300MB`; the configuration's if not given.
            budget: a ledger shared with other parts of the program, instead of `memory`.
            threshold: dispersion at which pruning starts: `auto` takes the calibrated one (no pruning if there is
                none), `inf` never prunes.
            mode: `ranked` drops only the hopeless, so order and scores of the results are exact; `top-k` lets
                winners stop early too, for when only the set matters.
            max_tokens: longest query + document in tokens; documents are cut to fit.

        Raises:
            ModelError: the model is missing, broken or no reranker.
            BudgetExceeded: the limit is too small; the error names the smallest that works.
        """
        config = config or Config.load()
        self.mode: Mode = _checked(config.mode if mode is None else mode)
        self._threshold = parse_threshold(config.threshold if threshold is None else threshold)
        with opened_model(model or config.reranker or DEFAULT_RERANKER, "reranker", config) as self.model:
            self.calibration, self._damage = self._calibrated()
            self.engine = open_engine(
                self.model, config, memory=memory, budget=budget, max_tokens=max_tokens, trace=trace, tuning=tuning
            )
        self.budget = self.engine.budget
        self._scorer = Scorer(self.model.spec, self.engine.head, self.calibration)

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
    ) -> list[Ranked]:
        """The `top_k` most relevant of `docs` (all if None), best first.

        Args:
            retrieved: the score a retriever gave to each of `docs`, or True if they come in its order, best first.
                That is evidence of its own, and is blended with the model's judgement (`models.blending`).
            mode, threshold: instead of the ones this object was made with.
            enough: sees all results whose score is final, best first, and says whether they are enough; if not, those
                that were dropped are judged to the end as well. With it the results are not cut to `top_k`.

        Raises:
            InputError: the query is empty, there are no documents, `top_k` is not positive, a text is not valid
                Unicode, or there are not as many retrieval scores as texts.
            BudgetExceeded: the request does not fit the limit; the error names the smallest that works.
        """
        ranking = self.explain(query, docs, top_k, retrieved=retrieved, mode=mode, threshold=threshold, enough=enough)
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
    ) -> Ranking:
        """Like `rank`, with the rule, layer-by-layer decisions and what the pass needed.

        Args:
            every_layer: look at the scores of layers, too, on which pruning would not.
        """
        _check_documents(docs)
        if self._damage is not None and (every_layer or self._limit(threshold) != math.inf):
            raise self._damage
        k = len(docs) if top_k is None else top_k
        if top_k is not None and (not isinstance(top_k, int | np.integer) or top_k < 1):
            raise InputError(f"the number of results is a whole number of at least 1, not {top_k!r}")
        mode = self.mode if mode is None else _checked(mode)
        spread = None if self.calibration is None else self.calibration.spread
        pool = Pool(len(docs), retrieved=retrieved, spread=spread, weight=share_of(query))
        pruning = self._pruning(k, mode, threshold, len(docs))
        observer, stats = self._pass(query, docs, pruning, pool, every_layer)
        ids = observer.ranking()
        results = _ranked(ids, docs, observer.scores[ids], pool.relevance()[ids])
        exact = len(ids) - sum(map(len, observer.dropped))
        if enough is not None:
            results = results[:exact]
            if exact < len(docs) and not enough(results):
                # Only a blend without a calibrated spread depends on the others of the pool.
                late = ids[exact:] if pool.separable else np.arange(len(docs))
                part = pool.part(late)
                texts = [docs[i] for i in late]
                everything = ProgressivePruning(len(late), mode="ranked", candidates=len(late))
                last, more = self._pass(query, texts, everything, part, every_layer)
                found = _ranked(late, docs, last.scores, part.relevance())
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

    def tokenize(self, query: str, docs: Sequence[str]) -> TokenBatch:
        """The token sequences of all (query, document) pairs, while the first layers are already being read.

        Raises:
            InputError: the query is empty, there are no documents, or a text is not valid Unicode.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError("the query is empty" if isinstance(query, str) else f"a query is text, not {query!r}")
        if len(docs) == 0:
            raise InputError("there are no documents to rank")
        self.engine.check_request([doc for doc in docs if isinstance(doc, str)], query)
        self.engine.begin()
        return self.engine.tokenize_pairs(query, docs)

    def close(self) -> None:
        """Gives all memory back."""
        self.engine.close()

    def __enter__(self) -> Reranker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _calibrated(self) -> tuple[Calibration | None, CorruptBlock | None]:
        """The model's calibration; one that is damaged hinders only those who prune."""
        try:
            return Calibration.load(self.model.path, self.model.fingerprint), None
        except CorruptBlock as error:
            if self._threshold != math.inf:
                raise
            return None, error

    def _limit(self, threshold: str | float | None) -> float | None:
        """The threshold of one call; None for the calibrated one."""
        return self._threshold if threshold is None else parse_threshold(threshold)

    def _pass(
        self, query: str, docs: Sequence[str], pruning: Pruning, pool: Pool, every_layer: bool
    ) -> tuple[PruningObserver, RunStats]:
        batch = self.tokenize(query, docs)
        observer = PruningObserver(
            self.model.spec, self._scorer, pruning, pool, len(docs), every_layer, budget=self.budget
        )
        try:
            return observer, self.engine.run(batch, observer)
        finally:
            observer.close()

    def _pruning(
        self, k: int, mode: Mode, threshold: str | float | None, candidates: int
    ) -> ProgressivePruning | BoundedPruning:
        """By the calibrated margin, unless a threshold of dispersion was set by hand."""
        limit = self._limit(threshold)
        if limit is None and self.calibration is not None and mode in self.calibration.margins:
            errors, margin = self.calibration.errors, self.calibration.margins[mode]
            return BoundedPruning(k, mode=mode, errors=errors, margin=margin, candidates=candidates)
        return ProgressivePruning(k, mode=mode, threshold=math.inf if limit is None else limit, candidates=candidates)


def _ranked(
    ids: npt.NDArray[np.int64],
    docs: Sequence[str],
    scores: npt.NDArray[np.float64],
    relevance: npt.NDArray[np.float64],
) -> list[Ranked]:
    found = zip(ids.tolist(), scores.tolist(), relevance.tolist(), strict=True)
    return [Ranked(i, score, docs[i], probability) for i, score, probability in found]


def _check_documents(docs: object) -> None:
    if isinstance(docs, str):
        raise InputError("documents are a list of texts, not one text")
    if isinstance(docs, Mapping) or not (hasattr(docs, "__len__") and hasattr(docs, "__getitem__")):
        raise InputError(f"documents are a list of texts, not {type(docs).__name__}")


def _checked(mode: str) -> Mode:
    if mode == "ranked":
        return "ranked"
    if mode == "top-k":
        return "top-k"
    raise InputError(f"the mode is `ranked` or `top-k`, not {mode!r}")
