"""`Names`: how far the names in code are the words of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge.apps.collection.hits import Hit
from edge.apps.collection.snippets import stem
from edge.apps.store.lexical import FUNCTION_WORDS

FILE, FOLDER, DEFINED = 0.2, 0.1, 0.2
"""Weights of the shares of words that the query has: of the file's name, its folder's, and what a passage defines."""

CODE_KIND = "code"
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_DEFINED = re.compile(
    r"\b(?:def|class|func|fn|struct|interface|type|module|trait|enum|var|let|const|function|object|record|protocol|impl"
    r"|defmodule|macro)\s+(?:\([^()\n]{0,80}\)\s*)?([A-Za-z_]\w{0,99})"
)

_PAIR = 2  # A name of fewer words counts less: many queries have one of its words by chance.


class Names:
    def __init__(self, query: str) -> None:
        self._words = {word for word in _words(query) if word not in FUNCTION_WORDS}

    def raised(self, hit: Hit) -> float:
        """The score of a hit, nearer to 1 the more of the words its names have; unchanged unless it is code."""
        if hit.kind != CODE_KIND or not self._words:
            return hit.score
        *_, folder, file = ("", *re.split(r"[\\/]", hit.path))
        defined = max((self._share(name, _PAIR) for name in _DEFINED.findall(hit.text)), default=0.0)
        bonus = FILE * self._share(file.partition(".")[0]) + FOLDER * self._share(folder) + DEFINED * defined
        return hit.score + (1 - hit.score) * bonus

    def _share(self, name: str, whole: int = 1) -> float:
        """The share of a name's words that the query has; less if these are fewer than `whole`."""
        words = list(_words(name))
        known = sum(word in self._words for word in words)
        return known / len(words) * min(1.0, known / whole) if words else 0.0


def _words(text: str) -> Iterator[str]:
    return (stem(part) for part in _PARTS.findall(text))
