"""How an answer is compared with a known one."""

from __future__ import annotations

import re


def holds(text: str, wanted: str) -> bool:
    """Whether a text holds a phrase as whole words, regardless of case and white space.

    >>> holds("Within SIX\\nweeks", "six weeks"), holds("It costs 145 euros.", "45 euros"), holds("`KEEP=5`", "KEEP=5")
    (True, False, True)
    """
    phrase = r"\s+".join(re.escape(word) for word in wanted.casefold().split())
    return re.search(rf"(?<!\w){phrase}(?!\w)", " ".join(text.casefold().split())) is not None
