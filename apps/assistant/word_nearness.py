"""Compares the words of a question with the words of a text, by the vectors of single words.

A question worded differently from its answer may share no words with it, but each of its words has a near word in the
answer: a suitcase is a bag, vinegar a household acid. A question about something that the documents do not mention has
a word with no near word in them. Vectors of whole sentences hide that one word among the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_DIGIT = re.compile(r"\d")
_EMPTY = frozenset({
    "a", "after", "all", "an", "and", "any", "are", "as", "at", "be", "been", "before", "but", "by", "can", "could",
    "did", "do", "does", "each", "far", "for", "from", "had", "has", "have", "he", "her", "him", "his", "how", "i",
    "if", "in", "is", "it", "its", "long", "many", "may", "me", "might", "more", "much", "must", "my", "no", "not",
    "of", "often", "old", "on", "once", "or", "our", "shall", "she", "should", "so", "some", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "to", "too", "until", "us", "very", "was",
    "we", "were", "what", "when", "where", "which", "while", "who", "whom", "whose", "why", "will", "with", "would",
    "you", "your",
})  # fmt: skip
"""English function words and question words."""


def content_words(text: str) -> list[str]:
    """The content words of a text, in lower case and in their order.

    >>> content_words("How much is the monthly rent?")
    ['monthly', 'rent']
    """
    return [word for match in _WORD.finditer(text) if (word := match[0].lower()) not in _EMPTY]


class WordNearness:
    """Compares one question with texts.

    Attributes:
        asked: the question's content words.
    """

    def __init__(self, question: str) -> None:
        self.asked = content_words(question)
        self._near: dict[str, Floats] = {}
        self._vectors: Floats | None = None

    def learn(self, texts: Iterable[str], embed: Callable[[Sequence[str]], Floats]) -> None:
        """Embeds the words of some texts that have no vectors yet. `embed` returns unit vectors [n, dim]."""
        new = {word for text in texts for word in content_words(text)} - self._near.keys()
        if not self.asked or not new:
            return
        if self._vectors is None:
            vectors = embed([*self.asked, *sorted(new)])
            self._vectors, vectors = vectors[: len(self.asked)], vectors[len(self.asked) :]
        else:
            vectors = embed(sorted(new))
        self._near |= zip(sorted(new), vectors @ self._vectors.T, strict=True)

    def nearest(self, text: str) -> Floats:
        """The cosine of each word of the question with its nearest word of a text.

        The text's words must have been learned with `learn`. The result is all zeros if the text has no content words,
        and a single zero if the question has none.
        """
        rows = [self._near[word] for word in content_words(text) if word in self._near]
        return np.max(rows, axis=0) if rows else np.zeros(max(1, len(self.asked)), np.float32)

    def mean(self, text: str) -> float:
        """The mean of `nearest`, except that a word with a digit is near only to itself: error 409 is not error 400,
        although their vectors are similar."""
        there = set(content_words(text))
        near = self.nearest(text)
        for place, word in enumerate(self.asked):
            if _DIGIT.search(word):
                near[place] = float(word in there)
        return float(near.mean())

    def repeated(self, text: str) -> float:
        """The share of the question's words that occur in a text."""
        there = set(content_words(text))
        return sum(word in there for word in self.asked) / max(1, len(self.asked))
