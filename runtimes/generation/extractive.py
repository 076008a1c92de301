"""`ExtractiveGenerator`: answers with the documents' best sentences and their citations, without a model."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from edge.runtimes.generation.base import Document, Finish, GenerationStats, Message, Piece, Sampling, check_messages
from edge.text.sentences import sentences

Score = Callable[[str, Sequence[str]], Sequence[float]]
"""A function that scores sentences by how well they answer a question; higher is better."""

_WORDS = re.compile(r"(?:(?<=\S)\s+)?\S+")
"""Words with the space before them, which may be a line break in code."""

_ENDED = re.compile(r"[.!?…。！？][\"'”’)\]»*_]*$")


@dataclass(frozen=True, slots=True)
class Quoted(Piece):
    """A word that is quoted from a document. Brackets in it are not a citation."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    text: str
    document: int
    words: int


class ExtractiveGenerator:
    """A `Generator` without a model: it writes the best sentences, best first, as `sentence [number]`. A part that does
    not end like a sentence stands on its own line. Words are the tokens; of equal scores the earlier wins."""

    name = "extractive"
    context = 1_000_000
    follows_instructions = False

    def __init__(self, score: Score, *, most: int = 3) -> None:
        """`score` judges all sentences. At most `most` are shown."""
        self._score = score
        self._most = most
        self._stats: GenerationStats | None = None

    @property
    def stats(self) -> GenerationStats | None:
        return self._stats

    def count(self, text: str) -> int:
        return len(text.split())

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        """The best sentences for the last question: as many whole ones as fit, or the first one's beginning."""
        check_messages(messages)
        question = next(message.content for message in reversed(messages) if message.role == "user")
        return self._answer(question, sampling.max_tokens, documents, cancel or threading.Event())

    def close(self) -> None:
        """Does nothing, because this generator holds no memory."""

    def _answer(
        self, question: str, most_words: int, documents: Sequence[Document], cancel: threading.Event
    ) -> Iterator[Piece]:
        called = time.perf_counter()
        candidates, read, dropped = self._candidates(documents, self.count(question))
        words, cut = self._words(question, candidates, most_words)
        first = time.perf_counter()
        finish: Finish = "cancelled"
        written = 0
        try:
            for word in words:
                if cancel.is_set():
                    return
                written += self.count(word.text)
                yield word
            finish = "length" if cut else "stop"
        finally:
            ended = time.perf_counter()
            self._stats = GenerationStats(read, 0, written, first - called, ended - called, dropped, finish)

    def _candidates(self, documents: Sequence[Document], read: int) -> tuple[list[_Candidate], int, int]:
        """Every different sentence with its first document, the number of words read, and of documents left out."""
        found: dict[str, _Candidate] = {}
        for number, document in enumerate(documents, 1):
            size = self.count(document.text)
            if read + size > self.context:
                return list(found.values()), read, len(documents) - number + 1
            read += size
            parts = document.parts
            for text in sentences(document.text) if parts is None else (part.text for part in parts):
                found.setdefault(text.casefold(), _Candidate(text, number, self.count(text)))
        return list(found.values()), read, 0

    def _lead(self, question: str) -> str:
        return ""

    def _cites(self, sentence: str) -> bool:
        """Whether a sentence has a mark of its document."""
        return True

    def _words(self, question: str, candidates: Sequence[_Candidate], most_words: int) -> tuple[list[Piece], bool]:
        """The answer's words, and whether its length limit left some out."""
        lead = self._lead(question)
        if lead and (left := most_words - self.count(lead)) < 2:  # not even a word and its citation
            return [Piece(" ".join(lead.split()[:most_words]))], True
        words, cut = self._chosen(question, candidates, left if lead else most_words)
        return [Piece(lead), *words] if lead else words, cut

    def _chosen(self, question: str, candidates: Sequence[_Candidate], most_words: int) -> tuple[list[Piece], bool]:
        if not candidates:
            return [], False
        scores = self._score(question, [candidate.text for candidate in candidates])
        if len(scores) != len(candidates):
            raise ValueError(f"{len(candidates)} sentences were given to score, and {len(scores)} scores came back")
        # `sorted` is stable, so that of equal scores the earlier sentence comes first.
        order = sorted(range(len(candidates)), key=lambda index: -scores[index])
        words: list[Piece] = []
        before, cut = "", False
        for index in order[: self._most]:
            candidate = candidates[index]
            if math.isnan(scores[index]):
                break
            cut = len(words) + candidate.words + 1 > most_words
            if cut and words:
                break
            quoted = _WORDS.findall(candidate.text)[: max(1, most_words - len(words) - 1)]
            # Two rows of a table or list items would be unreadable on one line.
            gap = " " if _ENDED.search(before) and _ENDED.search(candidate.text) else "\n"
            words.append(Quoted((gap if before else "") + quoted[0]))
            words += map(Quoted, quoted[1:])
            if cut or self._cites(candidate.text):
                words.append(Piece(f" [{candidate.document}]"))
            before = candidate.text
            if cut:
                break
        return words, cut
