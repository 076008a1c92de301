"""`Query`: the parts of a query for BM25, for the vectors, and for the reranker."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge.errors import InputError

_KINDS = ("lex", "vec", "hyde")
_TYPED = re.compile(rf"\s*(?:{'|'.join(_KINDS)}):", re.IGNORECASE)
_PART = re.compile(rf"(?:^|(?<=\s))({'|'.join(_KINDS)}):", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query.

    Attributes:
        words: text for the full-text search; if empty, only the vectors are searched.
        questions: texts that are embedded as questions and searched among the vectors.
        passages: hypothetical answers (HyDE, Gao et al., 2022) that are embedded as passages.
        asked: the text that the reranker compares passages with.
    """

    words: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    asked: str

    @classmethod
    def parse(cls, text: str) -> Query:
        """Parses a plain question, or a text that begins with `lex:`, `vec:` or `hyde:` and consists of such parts:
        `lex:` is searched by words, `vec:` by meaning, and `hyde:` is a hypothetical answer.

        Raises:
            InputError: the text or one of its parts is empty.
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
        """The words that snippets highlight."""
        return self.words or " ".join((*self.questions, *self.passages))
