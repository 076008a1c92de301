"""The bound of tokens is never below the count of a tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import edge.models
from edge.models.registry import DEFAULT_RERANKER
from edge.text.tokens import fit, most_tokens

TEXTS = (
    "I moved to Trondheim in 2024, because the rent was 900 euros.",
    "Ich habe den Golf verkauft und fahre jetzt einen Passat; die Übergabe war am 3. Mai.",
    "def most_tokens(text: str) -> int:\n    return sum(_count(match) for match in _PIECES.finditer(text))",
    "| queries | 12 of 60 | 7 of 30 |\n|---|---|---|",
    "Я живу в Осло", "我住在奥斯陆，在银行工作。", "🙂👨‍👩‍👧", "THE MEETING IS ON MONDAY", "xkqzjwv rstlnbc",
    hashlib.sha256(b"1").hexdigest(), "a    b\n\n\n\tc", "https://example.org/a/b?c=d&e=f#g",
)  # fmt: skip


def tokens(text: str) -> int:
    """The tokens of a text in the vocabulary of the default reranker."""
    from tokenizers import Tokenizer

    bundled = Path(edge.models.__file__).parent / "bundled" / DEFAULT_RERANKER
    tokenizer = Tokenizer.from_file(str(bundled / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("text", TEXTS)
def test_no_tokenizer_makes_more(text: str) -> None:
    assert tokens(text) <= most_tokens(text)


def test_the_bound_is_near_for_prose() -> None:
    """A word counts as a word wherever it stands, not by its characters."""
    prose = "The river floods the old mill every spring, and nobody has moved the grain to the upper floor yet."
    assert most_tokens(prose) <= 2 * tokens(prose)
    assert most_tokens("river mill") < most_tokens("river 1234")


def test_nothing_is_nothing() -> None:
    assert most_tokens("") == 0
    assert most_tokens("a") > 0


def test_what_fits_is_taken_best_first() -> None:
    assert fit([5, 20, 5, 1], 11) == [True, False, True, True]
    assert fit([], 1) == []
    assert fit([2], 1) == [False]
