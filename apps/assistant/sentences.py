"""Answers without a language model: which sentences of the passages answer a question."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edge.apps.assistant.gist import gist
from edge.apps.assistant.prose import prose
from edge.apps.collection.collection import Collection
from edge.runtimes.generation.base import Document, Message, Piece, Sampling
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.runtimes.generation.sentences import sentences

_MOST = 3
_ENOUGH = 0.4
"""A sentence is shown beside the best one if it is at least this fraction as good."""

_LEAST = 0.0
_HIDDEN = -1.0

_WORD = re.compile(r"[^\W_]+")
_FEW_WORDS = 4
_LEANING = re.compile(r"(?:it|its|this|that|these|those|they|their|he|his|she|her|such|however|also|so|then)\b", re.I)
"""How sentences begin that need the one before them."""

_ENDED = re.compile(r"[.!?:…`][\"'”’)\]]*$|[:=\d]")
_HEADING_WORDS = 10
"""What is as short and neither ends like a sentence nor holds a value is taken for a heading."""

_QUESTION, _FRAGMENT, _HEADING, _LEANS = 0.3, 0.4, 0.3, 0.8
"""Factors of sentences that answer less well than they look."""


class PickedSentences(ExtractiveGenerator):
    """The best sentences of passages by a collection's reranker. A sentence is as good as it stands alone and as the
    passage it comes from; one that is much worse than the best is left out, so that answers are short.

    Weighing by the passage was measured on 120 test questions of nq-oracle, without layout and the factors below (the
    answer is in the best four passages for 98 %): the sentences picked held it for 78 %, with 2.2 on average; by
    their own relevance alone for 71 %, with 2.3.
    """

    def __init__(self, collection: Collection) -> None:
        super().__init__(self._judge, most=_MOST, floor=_LEAST)
        self._collection = collection
        self._passages: Sequence[Document] = ()

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """See `ExtractiveGenerator.stream`."""
        self._passages = [replace(document, text=prose(document.text)) for document in documents]
        return super().stream(messages, sampling, documents=self._passages, cancel=cancel)

    def _judge(self, question: str, found: Sequence[str]) -> list[float]:
        """Scores sentences; negative for those not worth showing."""
        passages = [f"{passage.title}\n{passage.text}" for passage in self._passages]
        relevance = self._collection.relevance(gist(question), [*passages, *found])
        best: dict[str, float] = {}
        for passage, value in zip(self._passages, relevance, strict=False):
            for sentence in sentences(passage.text):
                best[sentence] = max(value, best.get(sentence, 0.0))
        scores = [
            best.get(sentence, 0.0) * own**0.5 * _standing(sentence)
            for sentence, own in zip(found, relevance[len(passages) :], strict=True)
        ]
        least = _ENOUGH * max(scores)
        return [score if score >= least else _HIDDEN for score in scores]


def _standing(sentence: str) -> float:
    """How well a sentence stands alone, as a factor."""
    factor = _QUESTION if sentence.endswith("?") else 1.0
    words = len(_WORD.findall(sentence))
    if words < _FEW_WORDS:
        factor *= _FRAGMENT
    if words < _HEADING_WORDS and not _ENDED.search(sentence):
        factor *= _HEADING
    if _LEANING.match(sentence):
        factor *= _LEANS
    return factor
