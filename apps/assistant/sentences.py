"""Answers without a language model: which sentences of the passages answer a question."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge.apps.assistant.prose import prose
from edge.apps.collection.collection import Collection
from edge.runtimes.generation.base import Document, Message, Piece, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator

_MOST = 3
_ENOUGH = 0.5
"""A sentence is shown beside the best one if it is at least this fraction as good."""

_WORD = re.compile(r"[^\W_]+")
_FEW_WORDS = 4
_LEANING = re.compile(r"(?:it|its|this|that|these|those|they|their|he|his|she|her|such|however|also|so|then)\b", re.I)
"""How sentences begin that need the one before them."""

_DISCOUNTS = {"question": 0.3, "fragment": 0.5, "leaning": 0.8}


class PickedSentences(ExtractiveGenerator):
    """The best sentences of passages by a collection's reranker; a sentence that is much worse than the best is left
    out, so that an answer is as short as it can be."""

    def __init__(self, collection: Collection) -> None:
        super().__init__(self._judge, most=_MOST, floor=0.0)
        self._collection = collection

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """See `ExtractiveGenerator.stream`."""
        laid_out = [replace(document, text=prose(document.text)) for document in documents]
        return super().stream(messages, sampling, documents=laid_out, cancel=cancel)

    def _judge(self, question: str, sentences: Sequence[str]) -> list[float]:
        """How well sentences answer by themselves; below 0 those that are not worth showing."""
        scores = [0.0] * len(sentences)
        for ranked in self._collection.reranker.rank(question, sentences):
            scores[ranked.index] = ranked.relevance * _standing(sentences[ranked.index])
        least = _ENOUGH * max(scores)
        return [score if score >= least else -1.0 for score in scores]


def _standing(sentence: str) -> float:
    """How well a sentence stands alone, as a factor."""
    factor = 1.0
    if sentence.endswith("?"):
        factor *= _DISCOUNTS["question"]
    if len(_WORD.findall(sentence)) < _FEW_WORDS:
        factor *= _DISCOUNTS["fragment"]
    if _LEANING.match(sentence):
        factor *= _DISCOUNTS["leaning"]
    return factor
