"""The models of a memory, and the vectors that are made from its texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edge.apps.memory.records import ACTIONS, action_text
from edge.apps.store.models import StoreModels, fingerprint
from edge.apps.store.planning import embedded_nbytes, holding
from edge.apps.store.rebuilding import EmbedderIdentity
from edge.apps.store.rows import held
from edge.budget import OperationPlan
from edge.errors import BudgetExceeded, InputError, ModelError
from edge.ivf.base import Connection
from edge.models.blending import Retrieved
from edge.models.evidence import Evidence, load
from edge.models.packed import PackedModel
from edge.runtimes.reranker import Ranked, Reranker

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


class MemoryModels(StoreModels[TextEmbedder, TextReranker]):
    """See `StoreModels`; any model with the interface of the above will do."""

    def check_texts(self, operation: str, texts: Sequence[str], nbytes: int) -> None:
        """As `check_room`, for texts that are embedded together and added."""

        def plan(beside: int) -> OperationPlan:
            found = self.plan(operation, rerank=False, candidates=0, writes=True)
            return holding(found, nbytes + beside) if nbytes else found

        least, most = embedded_nbytes(self.named_embedder(), self._config, texts) if texts else (0, 0)
        try:
            self._pool.check(lambda: plan(least))
        except BudgetExceeded as error:
            refusal = plan(most).refusal(self._budget.limit, self._budget.used)
            raise max(error, refusal, key=lambda error: error.needed) from None

    def rank(self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: Retrieved) -> list[Ranked]:
        """The best `top_k` of `docs` (at least one; all if None), best first. Raises as `embed` does."""
        return self._reranker.run(lambda reranker: reranker.rank(query, docs, top_k, retrieved=retrieved))

    def describe(self) -> EmbedderIdentity:
        """The identity of the embedder, which is opened if necessary. Raises the errors of `embed`."""
        return self._use_embedder(self._described)

    def count(self, text: str) -> int:
        """The number of tokens of a text in the reranker's vocabulary, with the special tokens at its ends."""
        return self._reranker.run(lambda reranker: _length(reranker, text))

    def fingerprints(self, *, rerank: bool) -> tuple[str, str]:
        """The fingerprints of the embedder and, with `rerank`, of the reranker (otherwise empty)."""
        reranker = self._reranker.run(fingerprint) if rerank else ""
        return self.describe().fingerprint, reranker

    def evidence(self, name: str, signals: tuple[str, ...]) -> Evidence | None:
        """The model named `name` that was fitted on the reranker's judgements; None if there is none for the models in
        use."""
        packed = getattr(self._reranker.run(lambda reranker: reranker), "model", None)
        if not isinstance(packed, PackedModel):
            return None
        found = load(packed, name, signals)
        return found if found is not None and found.embedder == self.describe().name else None

    def _described(self, model: TextEmbedder) -> EmbedderIdentity:
        chosen = self._chosen
        if isinstance(chosen, str | Path) and chosen:
            source = str(chosen)
        else:
            source = self._config.embedder if chosen is None else _place(model)
        return EmbedderIdentity(_name(model), source, fingerprint(model), model.dim)

    def _compare(self, embedder: TextEmbedder) -> None:
        known, own = self._identity(), fingerprint(embedder)
        if known is not None and known.fingerprint != own:
            raise ModelError(
                f"the memory was embedded with {known.name} ({known.fingerprint[:12]}), not with "
                f"{_name(embedder)} ({own[:12]}), and vectors of two models cannot be compared: open it with "
                f"{known.name}, or export it and import it into a new one"
            )


def _length(reranker: TextReranker, text: str) -> int:
    if not isinstance(reranker, Reranker):
        raise InputError("this reranker cannot count tokens: give count=, best that of the model that will read")
    return reranker.engine.vocabulary.length(text, _WHOLE)


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
