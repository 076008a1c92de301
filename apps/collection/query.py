"""`Query`: what is looked up by words, what by meaning, and what the reranker is asked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge.errors import InputError

_KINDS = ("lex", "vec", "hyde")
_TYPED = re.compile(rf"\s*(?:{'|'.join(_KINDS)}):", re.IGNORECASE)
_PART = re.compile(rf"(?:^|(?<=\s))({'|'.join(_KINDS)}):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """
    Attributes:
        words: looked up in the full text; empty asks the vectors alone.
        questions: each embedded as a question and looked up among the vectors.
        passages: each embedded as a passage: answers that somebody imagined (HyDE, Gao et al., 2022).
        asked: what the reranker compares passages with.
    """

    words: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    asked: str

    @classmethod
    def parse(cls, text: str) -> Query:
        """A plain question, or one that begins with `lex:`, `vec:` or `hyde:` and consists of such parts: `lex:` is
        looked up by words, `vec:` by meaning, `hyde:` is a passage as the answer might have it.

        Raises:
            InputError: the text or a part of it is empty.
        """
        if not text.strip():
            raise InputError("the query is empty")
        if not _TYPED.match(text):
            return cls(text, (text,), (), text)
        _, *pieces = _PART.split(text)
        parts: dict[str, list[str]] = {kind: [] for kind in _KINDS}
        for kind, value in zip(pieces[::2], pieces[1::2], strict=True):
            if not value.strip():
                raise InputError(f"nothing follows {kind}: in the query")
            parts[kind.lower()].append(value.strip())
        asked = parts["vec"] or parts["lex"] or parts["hyde"]
        return cls(" ".join(parts["lex"]), tuple(parts["vec"]), tuple(parts["hyde"]), "\n".join(asked))

    @property
    def shown(self) -> str:
        """The words that a snippet marks."""
        return self.words or " ".join((*self.questions, *self.passages))
