"""Draws training lists from pools: chooses the pool, the negatives, and the form of each passage.

Every list is a function of the seed and the list's number, so that a resumed run draws the same lists as an
uninterrupted one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .corpora import joined
from .mining import Candidates, Pool
from .pairs import sentences

_FUNCTION_WORDS = (
    "a an the of in on at to for from by with and or is are was were be been do does did has have had can could "
    "would should will what which who whom whose when where why how that this these those it its as than"
)
STOP = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True)
class ListConfig:
    """Settings for drawing lists. Shares are probabilities. ``candidates`` includes the positive."""

    candidates: int = 6
    near: int = 10
    window_share: float = 0.6
    window_sentences: int = 4
    untitled_share: float = 0.3
    keyword_share: float = 0.1
    trust_judged: float = 0.1
    trust_mined: float = 0.3


@dataclass(frozen=True)
class TrainingList:
    """One query, its passages with the positive first, the retrievers' scores, and the weight of these scores."""

    query: str
    passages: list[str]
    teacher: list[float]
    trust: float
    source: str


class Mixture:
    """Draws from pools in given proportions. Within a pool no list is repeated before all were drawn."""

    def __init__(self, pools: Sequence[tuple[str, Pool, float]], seed: int, config: ListConfig) -> None:
        if not pools:
            raise ValueError("no training pools: nothing to draw lists from")
        for name, pool, _ in pools:
            if not pool.lists:
                raise ValueError(f"the pool {name} holds no list")
        self._pools = list(pools)
        self._seed = seed
        self._config = config
        self._order: list[tuple[int, int]] = []
        self._random = random.Random(seed)
        self._waiting: list[list[int]] = [[] for _ in pools]

    def draw(self, number: int) -> TrainingList:
        """The ``number``-th list of the run."""
        while len(self._order) <= number:
            self._extend()
        pool, row = self._order[number]
        name, source, _ = self._pools[pool]
        rng = random.Random(f"{self._seed}:{number}")
        return shown(source, source.lists[row], name, rng, self._config)

    def _extend(self) -> None:
        pool = self._random.choices(range(len(self._pools)), [share for *_, share in self._pools])[0]
        if not self._waiting[pool]:
            self._waiting[pool] = list(range(len(self._pools[pool][1].lists)))
            self._random.shuffle(self._waiting[pool])
        self._order.append((pool, self._waiting[pool].pop()))


def negatives(candidates: Candidates, count: int, near: int, rng: random.Random) -> list[int]:
    """Negatives as positions in ``candidates.rows``: about half from the first ``near`` ranks, the rest from below.

    Positives are never chosen. A small pool gives fewer than ``count`` negatives.
    """
    usable = [n for n, row in enumerate(candidates.rows) if row not in candidates.positive]
    top, rest = usable[:near], usable[near:]
    chosen = rng.sample(top, min(len(top), (count + 1) // 2))
    chosen += rng.sample(rest, min(len(rest), count - len(chosen)))
    left = [n for n in usable if n not in chosen]
    return chosen + rng.sample(left, min(len(left), count - len(chosen)))


def shown(pool: Pool, candidates: Candidates, source: str, rng: random.Random, config: ListConfig) -> TrainingList:
    """One list in the form that the model reads: whole passages, or windows of a few sentences around the answer."""
    positive = rng.choice(candidates.positive)
    chosen = [candidates.rows.index(positive), *negatives(candidates, config.candidates - 1, config.near, rng)]
    bare = candidates.bare or rng.random() < config.untitled_share
    texts = [pool.texts[candidates.rows[n]] for n in chosen]
    if candidates.replaced:
        texts[0] = candidates.replaced
    trust = config.trust_judged if candidates.certain else config.trust_mined
    if (candidates.answers or not candidates.certain) and rng.random() < config.window_share:
        anchor: str | None = window(texts[0], rng, config.window_sentences)
        if candidates.answers:
            anchor = answer_window(texts[0], candidates.answers, rng, config.window_sentences)
        if anchor is not None:
            # the retrievers scored whole passages, so their scores are not valid for windows
            trust = 0.0
            texts = [anchor] + [window(text, rng, config.window_sentences) for text in texts[1:]]
    titles = ["" if bare else pool.titles[candidates.rows[n]] for n in chosen]
    query = candidates.query
    if rng.random() < config.keyword_share:
        query = keywords(query)
    return TrainingList(
        query,
        [joined(title, text) for title, text in zip(titles, texts, strict=True)],
        [candidates.teacher[n] for n in chosen],
        trust,
        source,
    )


def window(text: str, rng: random.Random, longest: int) -> str:
    """One to ``longest`` neighbouring sentences from a random place."""
    parts = sentences(text)
    count = rng.randint(1, longest)
    start = rng.randint(0, max(0, len(parts) - count))
    return " ".join(parts[start : start + count]) or text


def answer_window(text: str, answers: Sequence[str], rng: random.Random, longest: int) -> str | None:
    """Like `window`, but with one of the answers inside; None if no sentence contains an answer."""
    parts = sentences(text)
    holding = [n for n, part in enumerate(parts) if any(answer in part for answer in answers)]
    if not holding:
        return None
    centre = rng.choice(holding)
    count = rng.randint(1, longest)
    start = max(0, centre - rng.randint(0, count - 1))
    return " ".join(parts[start : max(start + count, centre + 1)])


def keywords(query: str) -> str:
    """The question as a person types it into a search box: without function words (never empty)."""
    kept = [w for w in query.rstrip("?.").split() if w.lower() not in STOP]
    return " ".join(kept) if len(kept) >= 2 else query


def pools_in(directory: Path, shares: dict[str, float]) -> list[tuple[str, Pool, float]]:
    """The pools with a share, by their file name ``SET.KIND``. A share for a missing pool is an error."""
    found = []
    for name, share in shares.items():
        path = directory / f"{name}.npz"
        if not path.exists():
            raise FileNotFoundError(f"no pool {path.name} in {directory}")
        if share > 0:
            found.append((name, Pool.open(path), share))
    return found
