"""Published figures of the other systems, computed again. docs/planning.md has the same numbering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from edge.planner.search_accelerator import (
    Alternation,
    SearchParameters,
    Units,
    _exactly,
    queries_per_second,
    queue_length,
)
from edge.planner.traversal import Vectors, at_once, nearest_graph, traverse
from naive.published_rago import Check

SHARES: Sequence[tuple[str, float, float]] = (
    ("Dec-S", 0.16, 53.7), ("EncDec-S, interval 8", 2.37, 77.1), ("EncDec-S, interval 64", 14.9, 94.1),
    ("Dec-L", 0.78, 64.0), ("EncDec-L, interval 8", 14.1, 93.8), ("EncDec-L, interval 64", 98.0, 99.0),
)  # fmt: skip
"""Ratio of generation time to retrieval time in an interval, and percentage of generating devices: figure 4.10. The
times are not published. They follow from the percentages, so the comparison is circular."""

PROBED = (1, 2, 4, 8, 16, 32, 64, 128)
RETRIEVAL_MS = (26.06, 48.12, 92.59, 178.43, 344.49, 666.43, 1298.52, 2544.44)
"""Milliseconds of a retrieval by lists probed: table 5.3."""

TOKEN_MS = (7.24, 7.29, 7.71, 8.34, 9.31, 10.47, 11.84, 13.19)
"""Milliseconds per token, for each 128 tokens of position: table 5.4."""

TRAVERSAL_HOPS: Sequence[Sequence[float]] = (
    (1.00, 1.08, 1.16, 1.24, 1.32, 1.40, 1.48), (1.07, 1.23, 1.39, 1.54, 1.70, 1.86, 2.01),
    (1.14, 1.38, 1.62, 1.85, 2.08, 2.32, 2.56), (1.21, 1.53, 1.84, 2.16, 2.47, 2.79, 3.12),
)  # fmt: skip
"""Hops over those of best-first search, for 1 to 4 candidates (rows) in 1 to 7 groups: figure 7.9 (Falcon)."""

TRAVERSAL_RECALL: Sequence[Sequence[float]] = (
    (94.11, 94.26, 94.40, 94.55, 94.63, 94.75, 94.86), (94.23, 94.53, 94.74, 94.94, 95.15, 95.33, 95.45),
    (94.36, 94.73, 95.05, 95.31, 95.50, 95.64, 95.79), (94.48, 94.93, 95.31, 95.54, 95.72, 95.89, 95.91),
)  # fmt: skip
"""Recall@10 in percent of the same searches, with a queue of 64 results over 10 million vectors."""


def tail(results: int, queues: int, length: int) -> float:
    """Probability that a given one of `queues` queues gets more than `length` of the best `results`."""
    return math.fsum(_exactly(results, queues, count) for count in range(length + 1, results + 1))


def unpipelined(chunks: Sequence[float], retrieval: float) -> float:
    """Seconds to write a text if every chunk but the first waits for its own retrieval (PipeRAG)."""
    return sum(chunks) + (len(chunks) - 1) * retrieval


def pipelined(chunks: Sequence[float], retrieval: float) -> float:
    """Seconds if the next chunk's passages are retrieved while a chunk is written, from the second retrieval on."""
    if len(chunks) < 2:
        return sum(chunks)
    return chunks[0] + retrieval + chunks[1] + sum(max(seconds, retrieval) for seconds in chunks[2:])


def lists_within(seconds: float, fixed: float, each: float, most: int) -> int:
    """The largest number of lists, from 1 to `most`, that a retrieval can probe within `seconds`.

    Args:
        fixed, each: seconds of a retrieval, and additional seconds for each list.
    """
    return min(most, max(1, int((seconds - fixed) / each)))


def rounds(tables: int, banks: int) -> int:
    """Number of consecutive accesses if the tables are spread evenly over independent memory banks (MicroRec)."""
    return math.ceil(tables / banks)


def bitonic_cycles(width: int) -> int:
    """Cycles to sort `width` inputs (a power of two) in a bitonic network."""
    steps = width.bit_length() - 1
    return steps * (1 + steps) // 2


def false_positive_rate(bits: int, items: int, hashes: int) -> float:
    """The probability that a Bloom filter with `items` items reports a new one as present."""
    return float((1 - math.exp(-hashes * items / bits)) ** hashes)


def dense_operations(features: int, widths: Sequence[int]) -> int:
    """Operations per item in fully connected layers of these widths with one output: two for each weight."""
    return 2 * sum(a * b for a, b in pairwise([features, *widths, 1]))


def chameleon() -> Iterator[Check]:
    """Checkable figures 8 and 9."""
    length = queue_length(100, 16)
    yield Check(8, "queues of the best 100 over 16, entries", 15, length, 0.0, "predicted", "fig 4.4")
    yield Check(8, "more than 20 in one queue, probability", 8e-7, tail(100, 16, 20), 0.0625, "predicted", "fig 4.4")
    for name, ratio, share in SHARES:
        ours = 100 * Alternation(1, 1, ratio, 1.0).generating_share
        yield Check(9, f"devices that generate, {name}, %", share, ours, 0.005, "circular", "fig 4.10")


def chunk_seconds(tokens: int) -> list[float]:
    """Seconds of each chunk of `tokens` tokens (at most 128) in a text of 1,024 tokens, by table 5.4."""
    return [tokens * TOKEN_MS[start // 128] / 1e3 for start in range(0, 1024, tokens)]


def overlap_gains() -> list[float]:
    """Gain by overlap at each number of lists of table 5.3, with chunks of 64 tokens."""
    chunks = chunk_seconds(64)
    return [unpipelined(chunks, ms / 1e3) / pipelined(chunks, ms / 1e3) for ms in RETRIEVAL_MS]


def piperag() -> Iterator[Check]:
    """Checkable figures 10 to 13."""
    yield Check(10, "1,024 tokens without retrieval, s", 9.35, sum(chunk_seconds(64)), 0.04, "predicted", "table 5.1")
    slope, fixed = np.polyfit(PROBED, RETRIEVAL_MS, 1)
    yield Check(11, "a list more, ms", 19.8, float(slope), 0.005, "predicted", "table 5.3")
    yield Check(11, "a retrieval without lists, ms", 18.2, float(fixed), 0.01, "predicted", "table 5.3")
    gains = overlap_gains()
    yield Check(12, "largest gain of overlap, 64 tokens", 1.71, max(gains), 0.005, "predicted", "tables 5.3, 5.4")
    yield Check(
        12, "lists at which it is largest", 32, PROBED[gains.index(max(gains))], 0.0, "predicted", "tables 5.3, 5.4"
    )
    first, last = (lists_within(1e3 * s, fixed, slope, 16384) for s in (chunk_seconds(64)[0], chunk_seconds(64)[-1]))
    yield Check(13, "lists within the first 64 tokens", 22, first, 0.0, "predicted", "tables 5.3, 5.4")
    yield Check(13, "lists within the last 64 tokens", 41, last, 0.0, "predicted", "tables 5.3, 5.4")


def fanns() -> Iterator[Check]:
    """Checkable figures 14 and 15, and the two other rows of table 6.3."""
    one = queries_per_second(SearchParameters(1e8, 4096, 5), Units(16, 5, 57))
    yield Check(14, "queries/s, K=1", 31876, one, 0.0005, "calibrated", "table 6.3")
    ten = queries_per_second(SearchParameters(1e8, 8192, 17, True, 1.139, 10), Units(11, 9, 36))
    yield Check(14, "queries/s, K=10", 11098, ten, 0.005, "circular", "table 6.3")
    hundred = queries_per_second(SearchParameters(1e8, 16384, 33, True, 1.154, 100), Units(8, 5, 9, 1))
    yield Check(14, "queries/s, K=100", 3818, hundred, 0.005, "circular", "table 6.3")
    yield Check(15, "bitonic sort of 16, cycles", 10, bitonic_cycles(16), 0.0, "predicted", "6.4.1")


def falcon() -> Iterator[Check]:
    """Checkable figures 16 to 18."""
    for hashes, published in ((1, 3.0), (3, 0.07)):
        ours = 100 * false_positive_rate(32 << 10, 1000, hashes)
        yield Check(16, f"Bloom filter, 32 Kbit, {hashes} hashes, %", published, ours, 0.05, "predicted", "7.3.2")
    ratios = traversal_ratios(((4, 1), (6, 2), (7, 4)))
    for (groups, candidates), published, ours in zip(((4, 1), (6, 2), (7, 4)), (1.24, 1.86, 3.12), ratios, strict=True):
        what = f"hops, {groups} groups of {candidates}, over best-first"
        yield Check(17, what, published, ours, 0.1, "predicted", "fig 7.9, other data")
    yield Check(18, "largest gain of 8 sub-graphs", 1.9, 8 / 4.2, 0.01, "predicted", "7.3.3")


def traversal_ratios(sizes: Sequence[tuple[int, int]], queries: int = 40) -> list[float]:
    """Ratio of hops to those of best-first search, for each (groups, candidates), on clustered random vectors."""
    random = np.random.default_rng(7)
    centres = random.standard_normal((40, 32))
    vectors = (centres[random.integers(40, size=2000)] + 0.7 * random.standard_normal((2000, 32))).astype(np.float32)
    asked = (centres[random.integers(40, size=queries)] + 0.7 * random.standard_normal((queries, 32))).astype(
        np.float32
    )
    graph = nearest_graph(vectors, 8)

    def hops(groups: int, candidates: int) -> int:
        total = 0
        for query in asked:

            def distances(vertices: Sequence[int], query: Vectors = query) -> list[float]:
                return [float(d) for d in ((vectors[list(vertices)] - query) ** 2).sum(axis=1)]

            launch = at_once(graph, distances)
            total += traverse(launch, 0, k=10, length=20, groups=groups, candidates=candidates).hops
        return total

    best = hops(1, 1)
    return [hops(groups, candidates) / best for groups, candidates in sizes]


def microrec() -> Iterator[Check]:
    """Checkable figures 19 and 20."""
    for tables, printed in ((39, 2), (34, 1), (82, 3), (68, 2)):
        yield Check(19, f"rounds of {tables} tables over 34 banks", printed, rounds(tables, 34), 0.0, "predicted",
                    "table 8.3")  # fmt: skip
    for name, features, items, published in (("small", 352, 3.05e5, 619.5), ("large", 876, 1.95e5, 606.41)):
        ours = dense_operations(features, (1024, 512, 256)) * items / 1e9
        yield Check(20, f"dense layers of the {name} model, GOP/s", published, ours, 0.005, "predicted", "table 8.2")


def fleetrec() -> Iterator[Check]:
    """Checkable figure 21."""
    yield Check(21, "rounds of 60 tables over 30 banks", 2, rounds(60, 30), 0.0, "predicted", "9.4.4")
