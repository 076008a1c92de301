"""Mining on any device: BM25 and a bi-encoder over one collection, thousands of queries a second on an accelerator.

The BM25 scores equal those of `mining.BM25`. They are computed as a product: the weights form a matrix, words x
passages, and the scores of a query are the sum of its words' rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..blending import BM25_WEIGHT
from .mining import Floats, PackedLists, Request, words

Number = TypeVar("Number", np.int32, np.float16)


@dataclass(frozen=True)
class Depths:
    """The composition of a pool.

    Attributes:
        fused: number of candidates from the top of the fused order.
        lexical: number of candidates from the top of BM25's order.
        dense: number of candidates from the top of the vectors' order.
        far: number of random candidates from the fused order, between the ranks ``fused`` and ``farthest``.
        farthest: the last rank for random candidates.
        found: a query without a human judgement is kept only if a positive is among so many first of the fused order.
        fewest: smallest number of candidates. A query with a smaller pool is left out.
    """

    fused: int = 24
    lexical: int = 6
    dense: int = 6
    far: int = 6
    farthest: int = 200
    found: int = 20
    fewest: int = 12


class Searcher:
    """One collection on one device.

    Args:
        passages: the texts.
        vectors: their unit vectors, passages x dimensions.
        device: the device that computes the products.
        k1, b: BM25's parameters.
    """

    def __init__(
        self, passages: Sequence[str], vectors: Floats, device: torch.device, k1: float = 1.2, b: float = 0.75
    ) -> None:
        self._device = device
        self._kind = torch.float16 if device.type == "cuda" else torch.float32
        self._vectors = torch.from_numpy(vectors).to(device, self._kind)
        self._counts = [Counter(words(text)) for text in passages]
        self._frequency = Counter(word for count in self._counts for word in count)
        lengths = np.array([max(1, sum(c.values())) for c in self._counts], dtype=np.float32)
        self._penalty = k1 * (1 - b + b * lengths / max(float(lengths.mean()), 1e-9))
        self._k1 = k1

    def _matrix(self, wanted: dict[str, int]) -> Tensor:
        """BM25 weights of the wanted words, words x passages. The last row is zero, for queries without these words."""
        places, rows, weights = [], [], []
        size = len(self._counts)
        idf = {w: float(np.log1p((size - self._frequency[w] + 0.5) / (self._frequency[w] + 0.5))) for w in wanted}
        for row, count in enumerate(self._counts):
            penalty = self._penalty[row]
            for word, frequency in count.items():
                place = wanted.get(word)
                if place is not None:
                    places.append(place)
                    rows.append(row)
                    weights.append(idf[word] * frequency * (self._k1 + 1) / (frequency + penalty))
        matrix = torch.zeros(len(wanted) + 1, size, dtype=self._kind, device=self._device)
        where = (torch.tensor(places, device=self._device), torch.tensor(rows, device=self._device))
        matrix[where] = torch.tensor(weights, dtype=self._kind, device=self._device)
        return matrix

    @torch.inference_mode()
    def scores(
        self, queries: Sequence[str], vectors: Floats, batch: int = 512
    ) -> Iterator[tuple[range, Tensor, Tensor]]:
        """Batches of (range of queries, BM25 scores, cosines). Both scores are queries x passages.

        ``vectors``: unit rows, one per query.
        """
        asked = [[w for w in words(query) if w in self._frequency] for query in queries]
        wanted = {w: n for n, w in enumerate(sorted({w for found in asked for w in found}))}
        matrix = self._matrix(wanted)
        for start in range(0, len(queries), batch):
            group = range(start, min(start + batch, len(queries)))
            bags = [[wanted[w] for w in asked[n]] or [len(wanted)] for n in group]
            offsets = np.concatenate([[0], np.cumsum([len(b) for b in bags])[:-1]])
            flat = torch.tensor([p for bag in bags for p in bag], device=self._device)
            lexical = torch.nn.functional.embedding_bag(
                flat, matrix, torch.from_numpy(offsets).to(self._device), mode="sum"
            )
            held = torch.from_numpy(vectors[group.start : group.stop]).to(self._device, self._kind)
            yield group, lexical.float(), (held @ self._vectors.T).float()

    @torch.inference_mode()
    def mine(self, requests: Sequence[Request], vectors: Floats, depths: Depths, seed: int = 0) -> PackedLists:
        """The pools of all judged requests, and of other requests if retrieval finds a positive.

        ``vectors``: unit rows, one per request (at least one).
        """
        generator = torch.Generator().manual_seed(seed)
        kept: list[int] = []
        rows: list[npt.NDArray[np.int32]] = []
        teachers: list[npt.NDArray[np.float16]] = []
        for group, lexical, dense in self.scores([r.query for r in requests], vectors):
            positive = _ragged([requests[n].positive for n in group], self._device)
            found, ids, teacher = _pools(lexical, dense, positive, depths, generator)
            certain = np.array([requests[n].certain for n in group])
            both = _above(lexical, dense, positive, ids)
            ids = torch.where(both & torch.from_numpy(~certain).to(self._device)[:, None], -1, ids)
            enough = (ids >= 0).sum(1) >= min(depths.fewest, dense.shape[1])
            use = (certain | (found.cpu().numpy() < depths.found)) & enough.cpu().numpy()
            kept += [n for n, good in zip(group, use.tolist(), strict=True) if good]
            rows.append(ids.cpu().numpy()[use].astype(np.int32))
            teachers.append(teacher.cpu().numpy()[use].astype(np.float16))
        return PackedLists([requests[n] for n in kept], _stacked(rows, -1), _stacked(teachers, 0))


def _stacked(parts: Sequence[npt.NDArray[Number]], fill: int) -> npt.NDArray[Number]:
    """Matrices of different widths stacked below one another. Narrow matrices are padded with ``fill``."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts])


def fused(lexical: Tensor, dense: Tensor) -> Tensor:
    """Fused scores from 0 to 1, in the order of the collection's search. Both arguments are queries x passages."""
    return BM25_WEIGHT * lexical / lexical.max(1, keepdim=True).values.clamp(min=1.0) + (1 - BM25_WEIGHT) * dense.clamp(
        min=0
    )


def _ragged(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of different lengths as one matrix. Short rows are padded with their first number."""
    longest = max(len(row) for row in rows)
    return torch.tensor([[*row, *[row[0]] * (longest - len(row))] for row in rows], device=device)


def _above(lexical: Tensor, dense: Tensor, positive: Tensor, ids: Tensor) -> Tensor:
    """Marks candidates that both rankings place above the best positive. They may be relevant, so they are not used as
    negatives."""
    least = [scores.gather(1, positive).max(1, keepdim=True).values for scores in (lexical, dense)]
    shown = ids.clamp(min=0)
    higher = (lexical.gather(1, shown) >= least[0]) & (dense.gather(1, shown) > least[1])
    return higher & ~(shown[:, :, None] == positive[:, None, :]).any(-1)


def _pools(
    lexical: Tensor, dense: Tensor, positive: Tensor, depths: Depths, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """The fused rank of the best positive (from 0), the candidate ids (-1 for none) and the teacher's scores.

    Each result has a row per query. The teacher's scores are a weighted mean of both standardized scores. The ranking
    that puts the positive higher has the larger weight.
    """
    size = lexical.shape[1]
    mixed = fused(lexical, dense)
    ranks = [
        (scores > scores.gather(1, positive).max(1, keepdim=True).values).sum(1) for scores in (mixed, lexical, dense)
    ]
    order = mixed.topk(min(depths.farthest, size)).indices
    parts = [order[:, : depths.fused], lexical.topk(min(depths.lexical, size)).indices]
    parts.append(dense.topk(min(depths.dense, size)).indices)
    if order.shape[1] > depths.fused + depths.far:
        far = torch.randperm(order.shape[1] - depths.fused, generator=generator)[: depths.far] + depths.fused
        parts.append(order[:, far.to(order.device)])
    ids = torch.cat([positive, *parts], dim=1).sort(1).values
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
    score = mixed.gather(1, ids).masked_fill(repeated, -1e4)
    place = score.argsort(dim=1, descending=True, stable=True)
    ids, repeated = ids.gather(1, place), repeated.gather(1, place)
    share = ((ranks[2] + 1) / (ranks[1] + ranks[2] + 2)).clamp(0.2, 0.8)[:, None]
    teacher = share * _standard(lexical.gather(1, ids), ~repeated) + (1 - share) * _standard(
        dense.gather(1, ids), ~repeated
    )
    return ranks[0], ids.masked_fill(repeated, -1), teacher.masked_fill(repeated, 0.0)


def _standard(scores: Tensor, shown: Tensor) -> Tensor:
    """Scores scaled to mean 0 and standard deviation 1 over the shown part of each row."""
    count = shown.sum(1, keepdim=True)
    mean = (scores * shown).sum(1, keepdim=True) / count
    spread = (((scores - mean) ** 2 * shown).sum(1, keepdim=True) / count).sqrt()
    return (scores - mean) / spread.clamp(min=1e-6)
