"""Kinds of text that tokenizers, indexes and memories take differently."""

from __future__ import annotations

import base64
import json
import random

WORDS = (
    "river", "flood", "water", "bridge", "stone", "letter", "answer", "study",
    "world", "memory", "search", "engine", "layer", "index", "moon", "tide",
)  # fmt: skip

KINDS = {"english": 40, "chinese": 40, "base64": 40, "json": 40, "ligature": 40, "emoji": 40, "huge": 4, "tiny": 800}
"""Kinds of text, and how many lines of each a command is given."""


def text(kind: str, chance: random.Random) -> str:
    """A line of a kind of text."""
    if kind == "english":
        return words(chance, 20, 400)
    if kind == "chinese":
        return "".join(chr(chance.randint(0x4E00, 0x9FA5)) for _ in range(chance.randint(50, 1500)))
    if kind == "base64":
        return base64.b64encode(chance.randbytes(chance.randint(50, 4000))).decode()
    if kind == "json":
        values = {f"k{n}": [chance.randint(0, 10**9)] for n in range(chance.randint(3, 100))}
        return json.dumps(values, separators=(",", ":"))
    if kind == "ligature":
        return "\ufdfa" * chance.randint(5, 300)
    if kind == "emoji":
        return "".join(chr(chance.randint(0x1F400, 0x1F64F)) for _ in range(chance.randint(20, 500)))
    if kind == "huge":
        return words(chance, 30_000, 30_000)
    return chance.choice(WORDS)  # tiny


def words(chance: random.Random, fewest: int, most: int) -> str:
    """So many words of a small vocabulary."""
    return " ".join(chance.choices(WORDS, k=chance.randint(fewest, most)))
