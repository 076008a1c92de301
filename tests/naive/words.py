"""Models of meaning that only know words: deterministic, instant, and good enough to tell topics apart."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edge.runtimes.reranker import Ranked

_WORD = re.compile(r"\w+")


class WordEmbedder:
    """Unit vectors of word counts, hashed into `dim` places."""

    def __init__(self, dim: int = 64, fingerprint: str = "words") -> None:
        self.dim = dim
        self.fingerprint = fingerprint
        self.calls = 0
        self.closed = False

    def embed(self, texts: Sequence[str], *, query: bool = False) -> npt.NDArray[np.float32]:
        self.calls += 1
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.casefold()):
                vectors[row, zlib.crc32(word.encode()) % self.dim] += 1
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors[:, 0] += norms[:, 0] == 0
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)

    def close(self) -> None:
        self.closed = True


class WordReranker:
    """Relevance is the share of the query's words that a text holds."""

    fingerprint = "shared words"

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.retrieved: list[bool | Sequence[float]] = []

    def rank(
        self, query: str, docs: Sequence[str], top_k: int | None = None, *, retrieved: bool | Sequence[float] = False
    ) -> list[Ranked]:
        self.asked.append((query, list(docs)))
        self.retrieved.append(retrieved)
        words = set(_WORD.findall(query.casefold()))
        scores = [len(words & set(_WORD.findall(doc.casefold()))) / max(1, len(words)) for doc in docs]
        order = sorted(range(len(docs)), key=lambda i: (-scores[i], i))[:top_k]
        return [Ranked(i, scores[i], docs[i], scores[i]) for i in order]

    def close(self) -> None:
        pass
