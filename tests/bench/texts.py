"""Texts made by rule, the same for every system and every run: of a given length; and memories, questions and tasks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edge.apps.collection.collection import Collection
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


_NAMES = ("Ann", "Bo", "Carla", "Deniz", "Elif", "Femi", "Goran", "Hana", "Ivo", "Jun", "Kaya", "Lena", "Mo", "Nia")
_DID = ("bought", "lost", "repaired", "lent me", "sold", "found", "returned", "ordered", "painted", "hid", "admired")
_WHAT = (
    "a red bicycle", "the old piano", "two concert tickets", "a box of spices", "the garden chairs", "a silver ring",
    "the camping stove", "a first edition", "the blue kayak", "her father's watch", "a bag of seeds", "the router",
    "a wool coat", "the spare keys", "a jar of honey", "the projector", "a chess set", "the sewing machine",
)  # fmt: skip
_WHERE = (
    "in Rome", "at the station", "near the harbour", "in the attic", "at the market", "behind the school", "in Oslo",
    "on the ferry", "at the clinic", "in the library", "by the lake", "at the office", "in Lisbon", "on the roof",
)  # fmt: skip
_WHY = (
    "before the storm", "after the exam", "during the strike", "on a rainy day", "for the wedding", "by mistake",
    "without telling anyone", "while it snowed", "on the first day of school", "when the power failed",
)  # fmt: skip


def memories(count: int) -> list[str]:
    """`count` different sentences."""
    choose = random.Random(0)
    made: dict[str, None] = {}
    while len(made) < count:
        words = [choose.choice(part) for part in (_NAMES, _DID, _WHAT, _WHERE, _WHY)]
        made[f"{words[0]} {words[1]} {words[2]} {words[3]} {words[4]} in {choose.randrange(1990, 2026)}"] = None
    return list(made)


def questions(count: int) -> list[str]:
    """`count` questions about the sentences of `memories`."""
    choose = random.Random(1)
    return [
        f"where was {choose.choice(_NAMES)} when {choose.choice(_WHAT)} was {choose.choice(('lost', 'sold', 'found'))} "
        f"{choose.choice(_WHY)}?"
        for _ in range(count)
    ]


def collection_of(folder: Path, texts: Iterable[str], **models: Any) -> Path:
    """The collection of texts in a folder, each in a file of its own; it is made unless it is there."""
    place, files = folder / "collection", folder / "texts"
    if not (folder / "done").exists():
        files.mkdir(parents=True, exist_ok=True)
        for number, text in enumerate(texts):
            (files / f"{number}.txt").write_text(f"{text}\n", "utf-8")
        with Collection(place, memory="10GB", **models) as collection:
            collection.index([files])
        (folder / "done").touch()
    return place
