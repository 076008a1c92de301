"""The models of a memory: an embedder and a reranker in one budget, opened on first use; and the vectors that are made
from its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.memory.schema import ACTIONS, action_text
from edge.apps.pool import Held, ModelPool, Result
from edge.apps.store.planning import embedded_nbytes, holding, retrieval_plan
from edge.apps.store.rebuilding import EmbedderIdentity
from edge.apps.store.rows import held
from edge.budget import MemoryBudget, OperationPlan
from edge.config import Config
from edge.errors import BudgetExceeded, InputError, ModelError
from edge.ivf.base import Connection
from edge.models.blending import Retrieved
from edge.models.evidence import Evidence, load
from edge.models.packed import PackedModel
from edge.runtimes.embedder import Embedder
from edge.runtimes.reranker import Ranked, Reranker
from edge.trace import Trace

Vectors = npt.NDArray[np.float32]

CONTEXT = 0.5
"""The weight of the previous turn in a turn's vector (the benchmark `memory`)."""

_TINY = 1e-12

REBUILD = "edge memory rebuild"
"""The command that messages recommend when vectors cannot be read."""


class TextEmbedder(Protocol):
    """The interface of an embedder that a memory uses; `edge.Embedder` has it."""

    @property
    def dim(self) -> int:
        """The width of a vector."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """The vectors of texts, [n, dim] float32, of unit length. `query` says that the texts are questions."""

    def close(self) -> None:
        """Frees the model's memory."""


class TextReranker(Protocol):
    """The interface of a reranker that a memory uses; `edge.Reranker` has it."""

    def rank(
        self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: Retrieved = False
    ) -> list[Ranked]:
        """The best `top_k` of `docs`, best first. `retrieved`: the scores of the retriever that found them, if any."""

    def close(self) -> None:
        """Frees the model's memory."""


_WHOLE = 1 << 24
"""A token limit that no text reaches."""


class MemoryModels:
    """Opens models on first use. If both do not fit at once, one is closed to make room for the other. Thread-safe;
    each model runs one request at a time."""

    def __init__(
        self,
        budget: MemoryBudget,
        config: Config,
        trace: Trace,
        *,
        embedder: str | Path | TextEmbedder | Held[Any] | None,
        reranker: str | Path | TextReranker | Held[Any] | None,
        identity: Callable[[], EmbedderIdentity | None],
    ) -> None:
        """Opens nothing yet. Models that are passed open or lent are closed by their owner.

        Args:
            identity: gives the identity of the model that made the stored vectors; None while there are none.
        """
        self._budget = budget
        self._config = config
        self._trace = trace
        self._identity = identity
        self._pool = ModelPool(budget)
        self._chosen = embedder
        self._chosen_reranker = reranker
        self._embedder = self._pool.held("embedder", "", self._make_embedder, chosen=embedder, shared=False)
        self._reranker = self._pool.held("reranker", "", self._make_reranker, chosen=reranker, shared=False)
        self._compared = ""  # the fingerprint of an embedder that can search the memory

    def check_room(
        self,
        operation: str,
        *,
        rerank: bool,
        candidates: int,
        writes: bool = False,
        texts: Sequence[str] = (),
        held: int = 0,
    ) -> None:
        """Checks that all models of an operation fit the budget, before the first one is opened.

        Args:
            operation: the operation's name in error messages.
            rerank: whether the operation reranks.
            candidates: the number of memories that are read from the database, and judged if `rerank`.
            writes: whether the operation adds vectors to the index.
            texts: those that are embedded together.
            held: bytes that are reserved for them meanwhile.

        Raises:
            BudgetExceeded: the limit is too small. The message names the smallest limit that works.
        """
        embedder = self._chosen
        if embedder is None and (identity := self._identity()) is not None:
            embedder = self._config.embedder or identity.source

        def plan(beside: int) -> OperationPlan:
            found = retrieval_plan(
                operation, self._config, embedder=embedder, reranker=self._chosen_reranker, rerank=rerank,
                candidates=candidates, writes=writes,
            )  # fmt: skip
            return holding(found, held + beside) if held else found

        least, most = embedded_nbytes(embedder, self._config, texts) if texts else (0, 0)
        try:
            self._pool.check(lambda: plan(least))
        except BudgetExceeded as error:
            refusal = plan(most).refusal(self._budget.limit, self._budget.used)
            raise max(error, refusal, key=lambda error: error.needed) from None

    def make_way(self, work: Callable[[], Result]) -> Result:
        """See `ModelPool.make_way`."""
        return self._pool.make_way(work)

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        """The vectors of texts, [n, dim] float32.

        Raises:
            ModelError: the embedder is missing, or another embedder made the memory's vectors.
            BudgetExceeded: the limit is too small for the embedder.
        """
        return self._use_embedder(lambda embedder: embedder.embed(texts, query=query))

    def rank(self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: Retrieved) -> list[Ranked]:
        """The best `top_k` of `docs` (at least one; all if None), best first.

        Raises:
            ModelError: the reranker is missing.
            BudgetExceeded: the limit is too small for the reranker.
        """
        return self._reranker.run(lambda reranker: reranker.rank(query, docs, top_k, retrieved=retrieved))

    def describe(self) -> EmbedderIdentity:
        """The identity of the embedder, which is opened if necessary. Raises the errors of `embed`."""
        return self._use_embedder(self._described)

    def count(self, text: str) -> int:
        """The number of tokens of a text in the reranker's vocabulary, with the special tokens at its ends.

        Raises:
            InputError: the caller passed a reranker that has no vocabulary.
        """
        return self._reranker.run(lambda reranker: _length(reranker, text))

    def fingerprints(self, *, rerank: bool) -> tuple[str, str]:
        """The fingerprints of the embedder and, with `rerank`, of the reranker (otherwise empty). Opens the models if
        necessary."""
        reranker = ""
        if rerank:
            reranker = self._reranker.run(fingerprint)
        return self.describe().fingerprint, reranker

    def evidence(self, name: str, signals: tuple[str, ...]) -> Evidence | None:
        """The model named `name` that was fitted on the reranker's judgements; None if there is none for the models in
        use. Raises the errors of `rank`."""
        packed = getattr(self._reranker.run(lambda reranker: reranker), "model", None)
        if not isinstance(packed, PackedModel):
            return None
        found = load(packed, name, signals)
        return found if found is not None and found.embedder == self.describe().name else None

    def close(self) -> None:
        """Frees the memory of the models that this object opened. They are opened again when needed."""
        self._pool.close()

    def _described(self, model: TextEmbedder) -> EmbedderIdentity:
        chosen = self._chosen
        if isinstance(chosen, str | Path) and chosen:
            source = str(chosen)
        else:
            source = self._config.embedder if chosen is None else _place(model)
        return EmbedderIdentity(_name(model), source, fingerprint(model), model.dim)

    def _use_embedder(self, work: Callable[[TextEmbedder], Result]) -> Result:
        """What `work` returns for the embedder, which must be the one that made the vectors. Raises as `embed`."""

        def compared(embedder: TextEmbedder) -> Result:
            own = fingerprint(embedder)
            if own != self._compared:
                known = self._identity()
                if known is not None and known.fingerprint != own:
                    raise ModelError(
                        f"the memory was embedded with {known.name} ({known.fingerprint[:12]}), not with "
                        f"{_name(embedder)} ({own[:12]}), and vectors of two models cannot be compared: open it with "
                        f"{known.name}, or export it and import it into a new one"
                    )
                self._compared = own
            return work(embedder)

        return self._embedder.run(compared)

    def _make_embedder(self) -> TextEmbedder:
        chosen, known = self._chosen, self._identity()
        if chosen is not None and not isinstance(chosen, str | Path | Held):
            return chosen
        # If the user chose no model, the one that made the memory's vectors is opened, not the current default.
        name = str(chosen or self._config.embedder or (known.source if known else ""))
        return Embedder(name, budget=self._budget, config=self._config, trace=self._trace)

    def _make_reranker(self) -> TextReranker:
        chosen = self._chosen_reranker
        if chosen is not None and not isinstance(chosen, str | Path | Held):
            return chosen
        return Reranker(str(chosen or ""), budget=self._budget, config=self._config, trace=self._trace)


def _length(reranker: TextReranker, text: str) -> int:
    if not isinstance(reranker, Reranker):
        raise InputError("this reranker cannot count tokens: give count=, best that of the model that will read")
    return reranker.engine.vocabulary.length(text, _WHOLE)


def fingerprint(model: object) -> str:
    """The fingerprint that identifies a model: that of its packed weights, its own attribute, or its class name."""
    packed = getattr(model, "model", model)
    return str(getattr(packed, "fingerprint", type(model).__qualname__))


def _name(model: object) -> str:
    packed = getattr(model, "model", model)
    return str(getattr(packed, "name", type(model).__qualname__))


def _place(model: object) -> str:
    """The path of an open model's files; empty if it has none."""
    return str(getattr(getattr(model, "model", None), "path", ""))


def in_context(vectors: Vectors, previous: Sequence[int | None]) -> Vectors:
    """The vectors of turns, each mixed with the vector of the turn before it, because an answer seldom names its
    question.

    Args:
        vectors: vectors of unit length, [n or more, dim].
        previous: for each of the first n rows, the row of the turn before it; None if there is none.

    Returns:
        The mixed vectors, [n, dim], of unit length.
    """
    mixed: Vectors = vectors[: len(previous)].copy()
    for row, place in enumerate(previous):
        if place is not None:
            mixed[row] += CONTEXT * vectors[place]
            mixed[row] /= max(float(np.linalg.norm(mixed[row])), _TINY)
    return mixed


class MadeFrom(NamedTuple):
    """The input of a vector: a text, and the turn before it if the text is a turn of a conversation."""

    text: str
    before: str | None = None


class MemoryRebuild:
    """The source of a rebuild (`edge.apps.store.rebuilding.Source`): memories first, then actions."""

    def __init__(self, embed: Callable[[list[str]], Vectors]) -> None:
        self._embed = embed

    def rows(self, db: Connection, after: int, limit: int) -> list[tuple[int, MadeFrom]]:
        memories = db.execute(
            "SELECT memories.id, memories.text, earlier.text FROM memories "
            "LEFT JOIN memories AS earlier ON earlier.id = memories.follows "
            "WHERE memories.id > ? ORDER BY memories.id LIMIT ?",
            (after, limit),
        )
        if made := held(db, memories, lambda row: (row[0], MadeFrom(*row[1:]))):
            return made
        sql = "SELECT id, task, state FROM actions WHERE id > ? ORDER BY id LIMIT ?"
        actions = db.execute(sql, (after - ACTIONS, limit))
        return held(db, actions, lambda row: (ACTIONS + row[0], MadeFrom(action_text(*row[1:]))))

    def count(self, db: Connection, after: int) -> int:
        sql = "SELECT (SELECT count(*) FROM memories WHERE id > ?) + (SELECT count(*) FROM actions WHERE id > ?)"
        return int(db.execute(sql, (after, after - ACTIONS)).fetchone()[0])

    def vectors(self, made_from: Sequence[MadeFrom]) -> Vectors:
        texts = [text for text, _ in made_from]
        place = {text: number for number, text in enumerate(texts)}
        for _, before in made_from:
            if before is not None and before not in place:
                place[before] = len(texts)
                texts.append(before)
        return in_context(self._embed(texts), [None if before is None else place[before] for _, before in made_from])
