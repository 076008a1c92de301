"""Reproducible texts of a given length in tokens, for measurements."""

from __future__ import annotations

import random

from edge.models.tokenizer import PairTokenizer

_TEXT = (
    "memory layer weight query answer river stone window budget candidate cluster reading disk signal garden "
    "history theory engine market number letter motion island winter supply bridge copper forest circle record"
)
_WORDS = _TEXT.split()


def documents(tokenizer: PairTokenizer, query: str, count: int, tokens: int, seed: int = 0) -> list[str]:
    """`count` random texts, each as long as fits into `tokens` tokens together with `query`."""
    generator = random.Random(seed)
    texts = []
    for _ in range(count):
        low, high = 1, tokens
        words = generator.choices(_WORDS, k=tokens)
        while low < high:  # the largest number of words that still fits
            middle = (low + high + 1) // 2
            batch = tokenizer.encode_pairs(query, [" ".join(words[:middle])], tokens + 64)
            if len(batch.prefix) + int(batch.lengths[0]) <= tokens:
                low = middle
            else:
                high = middle - 1
        texts.append(" ".join(words[:low]))
    return texts
