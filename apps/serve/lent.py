"""Models that the server holds: opened when they are first asked for, closed when others need their room.

`LentReranker` and `LentEmbedder` stand for such a model wherever an open one may be handed over, to a collection or a
memory for example. They are there from the start, whether the model is open or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import BudgetExceeded, InputError
from edge.models.packed import PackedModel
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Engine, Tuning
from edge.runtimes.reranker import Ranked, Ranking, Reranker
from edge.runtimes.scoring import LayerReport, Watch
from edge.scheduling.waiting_line import current_urgency
from edge.trace import Trace

_MOST = 300
"""Candidates that are drawn, those with the first numbers; more are only counted."""


class Picture:
    """Collects what a reranking saw after each layer whose scores it looked at."""

    def __init__(self, model: str, candidates: int, watch: Watch | None = None) -> None:
        """`watch`: sees every report as well."""
        self.model = model
        self.candidates = candidates
        self._watch = watch
        self._layers: list[dict[str, Any]] = []

    def see(self, report: LayerReport) -> None:
        """Takes a report. A pass that begins anew begins the picture anew."""
        if self._layers and report.layer <= self._layers[-1]["layer"]:
            self._layers = []
        decision = report.decision
        self._layers.append({
            "layer": report.layer,
            "active": len(report.ids),
            "scores": {str(i): round(s, 5) for i, s in zip(report.ids.tolist(), report.scores.tolist(), strict=True)
                       if i < _MOST},
            "dropped": [i for i in decision.dropped.tolist() if i < _MOST],
            "selected": [i for i in decision.selected.tolist() if i < _MOST],
        })  # fmt: skip
        if self._watch is not None:
            self._watch(report)

    def to_json(self) -> dict[str, Any]:
        """`layers` in their order: the provisional score of each active candidate, and who left."""
        return {"model": self.model, "candidates": self.candidates, "layers": list(self._layers)}


class _Model(Protocol):
    def close(self) -> None: ...


Model = TypeVar("Model", bound=_Model)
Result = TypeVar("Result")


class ModelPool:
    """The models of one server. They share one budget: what does not fit beside the others gets their room once their
    requests have ended.

    Attributes:
        picture: what the last reranking saw and decided; None before the first.
    """

    def __init__(self, budget: MemoryBudget, config: Config, trace: Trace, tuning: Tuning | None = None) -> None:
        self.budget = budget
        self.config = config
        self.trace = trace
        self.tuning = tuning
        self._models: dict[tuple[str, str], Held[Any]] = {}
        self._making = threading.Lock()
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0
        self.picture: Picture | None = None
        self._own = threading.local()

    def reranker(self, name: str) -> LentReranker:
        """The reranker of a name or path; nothing is opened yet."""
        return LentReranker(self._held("reranker", name, lambda: self._open(Reranker, name)))

    def embedder(self, name: str) -> LentEmbedder:
        """The embedder of a name or path; nothing is opened yet."""
        return LentEmbedder(self._held("embedder", name, lambda: self._open(Embedder, name)))

    def models(self) -> list[Held[Any]]:
        """Every model that was asked for, open or not."""
        with self._making:
            return list(self._models.values())

    def close(self) -> None:
        """Closes all models."""
        for held in self.models():
            held.close()

    def _held(self, kind: str, name: str, opening: Callable[[], Any]) -> Held[Any]:
        with self._making:
            if (kind, name) not in self._models:
                self._models[kind, name] = Held(self, kind, name, opening)
            return self._models[kind, name]

    def _open(self, kind: type[Any], name: str) -> Any:
        return kind(name, budget=self.budget, config=self.config, trace=self.trace, tuning=self.tuning)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Work on a model beside that on others. Waits while a request has all the room."""
        nested = getattr(self._own, "depth", 0)
        urgency = current_urgency()
        with urgency.heard(self._wake), self._changed:
            while self._alone and not nested:
                urgency.check()
                self._changed.wait(urgency.remaining)
            self._inside += 1
        self._own.depth = nested + 1
        try:
            yield
        finally:
            self._own.depth = nested
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, wanted: Held[Any]) -> Iterator[None]:
        """Work on one model, beside which no other is open. Only outside of `beside`."""
        urgency = current_urgency()
        with urgency.heard(self._wake), self._changed:
            self._alone += 1
            try:
                while self._inside:
                    urgency.check()
                    self._changed.wait(urgency.remaining)
                self._inside += 1
            except BaseException:
                self._alone -= 1
                self._changed.notify_all()
                raise
        nested = getattr(self._own, "depth", 0)
        self._own.depth = nested + 1
        try:
            for held in self.models():
                if held is not wanted:
                    held.give_way()
            yield
        finally:
            self._own.depth = nested
            with self._changed:
                self._inside -= 1
                self._alone -= 1
                self._changed.notify_all()

    @property
    def nested(self) -> bool:
        """Whether this thread works on a model already."""
        return bool(getattr(self._own, "depth", 0))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Held(Generic[Model]):
    """A model that is open, or can be. Thread-safe.

    Attributes:
        kind, name: what it is.
        users: requests that it works on.
        nbytes: what opening it took, the last time.
    """

    def __init__(self, pool: ModelPool, kind: str, name: str, opening: Callable[[], Model]) -> None:
        self.kind = kind
        self.name = name
        self.users = 0
        self.nbytes = 0
        self.pool = pool
        self._opening = opening
        self._model: Model | None = None
        self._count = threading.Condition()  # nothing is reserved while it is held: the budget takes it from inside
        self._open = threading.Lock()
        self._load_s = 0.0
        self._forget: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is in memory."""
        return self._model is not None

    def run(self, work: Callable[[Model], Result]) -> Result:
        """What `work` returns for the open model. Where that does not fit beside other models, they are closed first,
        when their requests have ended.

        Raises:
            BudgetExceeded: it does not fit even alone.
            ModelError: the model is missing or broken.
        """
        if self.pool.nested:
            with self.using() as model:
                return work(model)
        try:
            with self.pool.beside(), self.using() as model:
                return work(model)
        except BudgetExceeded:
            pass  # waiting for the others must not hold what they may wait for
        with self.pool.alone(self), self.using() as model:
            return work(model)

    @contextmanager
    def using(self) -> Iterator[Model]:
        """The open model, which stays open inside. Raises as `run` does."""
        with self._count:
            self.users += 1
        try:
            with self._open:
                if self._model is None:
                    self._load()
                model = self._model
            assert model is not None
            yield model
        finally:
            with self._count:
                self.users -= 1
                self._count.notify_all()

    def give_way(self, nbytes: int = 0) -> None:
        """Closes the model, unless a request uses it."""
        with self.pool.budget.locked(), self._count:
            model = self._model
            if self.users or model is None:
                return
            self._model = None
            if self._forget is not None:
                self._forget()
            model.close()

    def close(self) -> None:
        """Closes the model for good, when its requests have ended."""
        with self._count:
            self._count.wait_for(lambda: not self.users)
        with self._open:
            model, self._model = self._model, None
            if self._forget is not None:
                self._forget()
            if model is not None:
                model.close()

    def _load(self) -> None:
        budget, started = self.pool.budget, time.perf_counter()
        with budget.loading():
            before = budget.holders()
            self._model = self._opening()
            # Others may have given memory meanwhile, so what the process holds may have become less.
            self.nbytes = max(
                1, sum(max(0, nbytes - before.get(owner, 0)) for owner, nbytes in budget.holders().items())
            )
        self._load_s = time.perf_counter() - started
        # Each request after the next pays nothing, but the next one pays for all of the loading.
        self._forget = budget.add_shrinker(
            f"{self.kind} {self.name}", self.give_way, loss=lambda: self._load_s / self.nbytes
        )


class LentReranker(Reranker):
    """A reranker that the server holds. `close` does nothing: the server closes it."""

    shares_requests = True

    def __init__(self, held: Held[Reranker]) -> None:
        self.held = held

    @property
    def model(self) -> PackedModel:  # type: ignore[override]
        """The model's files; it is opened if it is not."""
        return self.held.run(lambda reranker: reranker.model)

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        """The engine of the model, which is opened if it is not. It may be closed at any moment."""
        return self.held.run(lambda reranker: reranker.engine)

    def rank(self, query: str, docs: Sequence[str], *args: Any, **kwargs: Any) -> list[Ranked]:
        """As `Reranker.rank`."""
        return self.explain(query, docs, *args, **kwargs).results

    def explain(
        self, query: str, docs: Sequence[str], *args: Any, watch: Watch | None = None, **kwargs: Any
    ) -> Ranking:
        """As `Reranker.explain`."""
        picture = Picture(self.held.name, len(docs), watch)
        ranking = self.held.run(lambda reranker: reranker.explain(query, docs, *args, watch=picture.see, **kwargs))
        self.held.pool.picture = picture
        return ranking

    def close(self) -> None:
        """Does nothing."""


class LentEmbedder(Embedder):
    """An embedder that the server holds. `close` does nothing: the server closes it."""

    shares_requests = True

    def __init__(self, held: Held[Embedder]) -> None:
        self.held = held

    @property
    def model(self) -> PackedModel:  # type: ignore[override]
        """The model's files; it is opened if it is not."""
        return self.held.run(lambda embedder: embedder.model)

    @property
    def engine(self) -> Engine:  # type: ignore[override]
        """The engine of the model, which is opened if it is not. It may be closed at any moment."""
        return self.held.run(lambda embedder: embedder.engine)

    def embed(self, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
        """As `Embedder.embed`."""
        return self.held.run(lambda embedder: embedder.embed(texts, **options))

    def embed_iter(self, texts: Sequence[str], **options: Any) -> Iterator[npt.NDArray[np.float32]]:
        """As `Embedder.embed_iter`, but all at once: a model that is lent cannot wait for its caller."""
        if isinstance(texts, str):
            raise InputError("embed takes a list of texts, not a single string")
        yield self.embed(texts, **options)

    def close(self) -> None:
        """Does nothing."""
