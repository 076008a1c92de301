"""Random rows of a collection, for training, and as queries when recall is measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edge.ivf.base import Ids, Vectors
from edge.ivf.maintenance.rewriting import Source, live_rows

_ROWS = 512
"""Rows that are read at a time."""


def draw(sources: Sequence[Source], count: int, random: np.random.Generator) -> Iterator[tuple[Source, Ids]]:
    """Draws `count` live rows, or all if there are fewer. Every row has the same chance.

    Yields:
        Each source with the numbers of its drawn rows, ascending.
    """
    left = live_rows(sources)
    count = min(count, left)
    for source in sources:
        share = int(random.hypergeometric(source.live, left - source.live, count)) if count else 0
        left -= source.live
        count -= share
        if share == 0:
            continue
        # Row numbers among the live rows are shifted past the deleted rows before them.
        chosen = np.sort(random.choice(source.live, share, replace=False, shuffle=False))
        if len(source.deleted):
            gaps = source.deleted - np.arange(len(source.deleted))
            chosen += np.searchsorted(gaps, chosen, side="right")
        yield source, chosen


def sample(sources: Sequence[Source], count: int, seed: int) -> Iterator[tuple[Ids, Vectors]]:
    """Reads `count` random rows, block by block: ids [n] and vectors [n, dim], in file order.

    Raises:
        CorruptBlock, StorageError: a row cannot be read.
    """
    for source, rows in draw(sources, count, np.random.default_rng(seed)):
        for start in range(0, len(rows), _ROWS):
            own = rows[start : start + _ROWS]
            yield source.segment.ids(own), source.segment.vectors(own)
