"""The bound of tokens is never below the count of a tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

import edge.models
from edge.models.registry import DEFAULT_RERANKER
from edge.text.tokens import expected_tokens, fit, most_tokens

TEXTS = (
    ("I moved to Trondheim in 2024, because the rent was 900 euros.", 24),
    ("8 May 2023: Wow, that's great! My sister and I went hiking last weekend, and saw an amazing sunset.", 34),
    ("Ich habe den Golf verkauft und fahre jetzt einen Passat; die Übergabe war am 3. Mai.", 33),
    ("Nous avons déménagé à Grenoble l'été dernier, près de l'école des enfants.", 35),
    ("Mi hermana dejó el trabajo en el hospital y ahora estudia en Sevilla.", 25),
    ("Dopo il terremoto abbiamo ricostruito la cucina e ridipinto le finestre.", 26),
    ("def most_tokens(text: str) -> int:\n    return sum(_count(match) for match in _PIECES.finditer(text))", 36),
    ("| queries | 12 of 60 | 7 of 30 |\n|---|---|---|", 26),
    ("Call +47 912 34 567 before 2024-05-08T13:45:10Z, order 8841023.", 48),
    ("Я живу в Осло и работаю учителем.", 37), ("我住在奥斯陆，在银行工作。", 27), ("أعيش في أوسلو منذ ثلاث سنوات", 31),
    ("🙂👨‍👩‍👧 see you there!! 🎉🎉🎉", 33), ("THE MEETING IS ON MONDAY", 9), ("xkqzjwv rstlnbc", 12),
    ("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b", 57), ("a    b\n\n\n\tc", 8),
    ("https://example.org/a/b?c=d&e=f#g", 21),
)  # fmt: skip
"""Texts with the most tokens that one of the tokenizers of docs/decisions/search.md makes of them."""


def tokens(text: str) -> int:
    """The tokens of a text in the vocabulary of the default reranker."""
    from tokenizers import Tokenizer

    bundled = Path(edge.models.__file__).parent / "bundled" / DEFAULT_RERANKER
    tokenizer = Tokenizer.from_file(str(bundled / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(("text", "most"), TEXTS)
def test_no_tokenizer_makes_more(text: str, most: int) -> None:
    assert tokens(text) <= most_tokens(expected_tokens(text))
    assert most <= most_tokens(expected_tokens(text))


def test_the_bound_is_near_for_many_texts() -> None:
    """What texts have more and less than expected evens out."""
    many = [(text, most) for text, most in TEXTS[:6] for _ in range(5)]
    found = most_tokens(sum(expected_tokens(text) for text, _ in many))
    assert sum(most for _, most in many) <= found <= 1.4 * sum(most for _, most in many)
    assert found <= sum(most_tokens(expected_tokens(text)) for text, _ in many) / 1.1
    prose = "The river floods the old mill every spring, and nobody has moved the grain to the upper floor yet."
    assert most_tokens(10 * expected_tokens(prose)) <= 1.5 * tokens(" ".join([prose] * 10))
    assert expected_tokens("river mill") < expected_tokens("river 1234")


def test_nothing_is_nothing() -> None:
    assert most_tokens(expected_tokens("")) == 0
    assert most_tokens(expected_tokens("a")) > 0


def test_what_fits_is_taken_best_first() -> None:
    least = most_tokens(11)
    assert fit([5, 20, 5, 1], least) == [True, False, True, True]
    assert fit([5, 20, 5, 2], least) == [True, False, True, False]
    assert fit([], 1) == []
    assert fit([2], 1) == [False]
