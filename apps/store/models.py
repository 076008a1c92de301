"""`StoreModels`: the embedder and the reranker of a collection or a memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from edge.apps.pool import Closable, Held, ModelPool, Result
from edge.apps.store.database import Database
from edge.apps.store.planning import retrieval_plan
from edge.apps.store.rebuilding import EmbedderIdentity
from edge.budget import MemoryBudget, OperationPlan, OperationStage
from edge.config import Config
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Reranker
from edge.trace import Trace

AnyEmbedder = TypeVar("AnyEmbedder", bound=Closable)
AnyReranker = TypeVar("AnyReranker", bound=Closable)


class StoreModels(ABC, Generic[AnyEmbedder, AnyReranker]):
    """Opens models on first use, in one budget. If both do not fit at once, one is closed to make room for the other.
    Thread-safe; each model runs one request at a time."""

    def __init__(
        self,
        database: Database,
        config: Config,
        budget: MemoryBudget,
        trace: Trace,
        *,
        embedder: object,
        reranker: object,
    ) -> None:
        """Models that are passed open or lent are closed by their owner."""
        self._database = database
        self._budget = budget
        self._config = config
        self._trace = trace
        self._pool = ModelPool(budget)
        self._chosen = embedder
        self._chosen_reranker = reranker
        self._embedder: Held[AnyEmbedder] = self._pool.held(
            "embedder", "", lambda: self._open(Embedder, self.named_embedder()), chosen=embedder, shared=False
        )
        self._reranker: Held[AnyReranker] = self._pool.held(
            "reranker", "", lambda: self._open(Reranker, reranker or ""), chosen=reranker, shared=False
        )
        self._compared = ""  # the fingerprint of an embedder that can search the store

    def identity(self) -> EmbedderIdentity | None:
        """The model that makes the store's vectors; None if it is not decided yet."""
        with self._database.read() as db:
            return EmbedderIdentity.stored(db)

    def check_room(
        self,
        operation: str,
        *,
        rerank: bool,
        candidates: int,
        writes: bool = False,
        extra: Sequence[OperationStage] = (),
        query: int = 0,
    ) -> None:
        """Checks that all models of an operation fit, before the first one is opened."""
        self._pool.check(
            lambda: self.plan(operation, rerank=rerank, candidates=candidates, writes=writes, extra=extra, query=query)
        )

    def plan(
        self, operation: str, *, rerank: bool, candidates: int, writes: bool = False,
        extra: Sequence[OperationStage] = (), query: int = 0,
    ) -> OperationPlan:  # fmt: skip
        return retrieval_plan(
            operation, self._config, embedder=self.named_embedder(), reranker=self._chosen_reranker,
            rerank=rerank, candidates=candidates, writes=writes, extra=extra, query=query,
        )  # fmt: skip

    def make_way(self, work: Callable[[], Result]) -> Result:
        return self._pool.make_way(work)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        """[n, dim] float32. `ModelError` if the embedder is missing, or another one made the stored vectors."""

        def embedded(embedder: Any) -> npt.NDArray[np.float32]:
            return embedder.embed(texts, query=query)  # type: ignore[no-any-return]

        return self._use_embedder(embedded)

    def named_embedder(self) -> Any:
        """The embedder that the caller passed, or the name of the one to open. Without a choice by the caller or the
        configuration, it is the store's own."""
        if self._chosen is not None and not isinstance(self._chosen, str | Path):
            return self._chosen
        identity = self.identity()
        return str(self._chosen or self._config.embedder or (self._source(identity) if identity else ""))

    def close(self) -> None:
        self._pool.close()

    def _source(self, identity: EmbedderIdentity) -> str:
        return identity.source

    @abstractmethod
    def _compare(self, embedder: AnyEmbedder) -> None:
        """Raises `ModelError` if another embedder made the stored vectors."""

    def _use_embedder(self, work: Callable[[AnyEmbedder], Result]) -> Result:
        """What `work` returns for the embedder, which must be the one that made the vectors."""

        def compared(embedder: AnyEmbedder) -> Result:
            own = fingerprint(embedder)
            if own != self._compared:
                self._compare(embedder)
                self._compared = own
            return work(embedder)

        return self._embedder.run(compared)

    def _open(self, kind: Callable[..., Any], chosen: object) -> Any:
        if not isinstance(chosen, str | Path | Held):
            return chosen
        return kind(str(chosen), budget=self._budget, config=self._config, trace=self._trace)


def fingerprint(model: object) -> str:
    """That of its packed weights, its own attribute, or its class name."""
    packed = getattr(model, "model", model)
    return str(getattr(packed, "fingerprint", type(model).__qualname__))
