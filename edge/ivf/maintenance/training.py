"""Training of an index, and its recall: when it is due, lists, codec, k-means, and recall@10 by nprobe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.base import DEVIATIONS, NO_IDS, RESCORE, Codec, Codecs, CodecSpec, Ids, IndexOptions, Tuned, Vectors
from edge.ivf.maintenance.work import VectorSource, Work, live_rows, workspace
from edge.ivf.storage.manifest import IndexManifest, State

_OUTGROWN = 4
"""The index is trained again when the number of vectors has grown or shrunk by this factor since the last training."""

_DRIFT = 1.15
_DRIFT_SHARE = 0.1
"""The index is also trained again when the newer vectors are this share of all, and their mean misfit `_DRIFT` times
that of the older ones."""

_LISTS_PER_ROOT = 4
"""There are at most this many times sqrt(vectors) lists, because routing should not cost more than scanning."""

_SAMPLE_PER_LIST = 40
_MOST_SHARE = 0.8
"""Largest share of the rows in the sample. On the other rows the fit of the lists is measured."""

_ITERATIONS = 10
_CODEC_ROWS = 8192
_MOST = 256 << 20


def due(state: State, options: IndexOptions, tuned: Tuned | None = None) -> bool:
    """Whether the index needs its first centroids, has outgrown its centroids, or has drifted from them."""
    if state.quantizer:
        return False  # the owner of all indexes that share it decides
    return outgrown(state, options, tuned)


def outgrown(state: State, options: IndexOptions, tuned: Tuned | None = None) -> bool:
    if state.training == 0:
        return choose_nlist(state.rows, options, tuned) > 1
    if state.rows >= _OUTGROWN * state.trained_rows or state.rows * _OUTGROWN <= state.trained_rows:
        return True
    if tuned is None and state.rows * 2 <= options.flat_limit:
        return True
    if state.newer_rows < max(1, _DRIFT_SHARE * state.rows):
        return False
    return state.newer_misfit / state.newer_rows > _DRIFT * state.trained_misfit


def choose_nlist(rows: int, options: IndexOptions, tuned: Tuned | None = None) -> int:
    """Number of lists for `rows` vectors; one for a small collection. It grows with the square root of the vectors."""
    if tuned is not None and rows < _OUTGROWN * tuned.rows:
        lists = tuned.parameters.lists
        return 1 if lists == 1 or rows < 4 else min(rows // 2, max(2, round(lists * (rows / tuned.rows) ** 0.5)))
    if rows <= options.flat_limit:
        return 1
    return max(2, int(min(rows / options.list_rows, _LISTS_PER_ROOT * rows**0.5)))


def choose_codec(options: IndexOptions, rows: int, dim: int, limit: int) -> str:
    """The codec for `rows` vectors under a limit of `limit` bytes. `auto` takes sq8 while a quarter of the codes fits
    half of the limit, so that the lists in use stay resident; else pq."""
    if rows <= options.flat_limit:
        return "flat"
    if options.codec != "auto":
        return options.codec
    return "sq8" if rows * dim // 4 <= limit // 2 or dim % 4 else "pq"


def train(
    rows: int,
    drawn: Callable[[int], Iterable[tuple[Ids, Vectors]]],
    codecs: Codecs,
    options: IndexOptions,
    dim: int,
    tuned: Tuned | None,
    *,
    budget: MemoryBudget,
    check: Callable[[int], None],
) -> tuple[CodecSpec, Vectors, Ids]:
    """Fits codec and centroids on a random sample of `rows` vectors, which `drawn` gives block by block: ids [n],
    vectors [n, dim]. Returns the codec, the centroids [nlist, dim], and the ids [n] of the sample, ascending."""
    nlist = choose_nlist(rows, options, tuned)
    if nlist == 1:
        spec = codecs.train("flat", np.empty((0, dim), np.float32), seed=options.seed)
        return spec, np.zeros((1, dim), np.float32), NO_IDS
    if tuned is None:
        name, code_size = choose_codec(options, rows, dim, budget.limit), 0
    else:
        name, code_size = tuned.parameters.codec, tuned.parameters.code_size
    # k-means holds the centroids three times, and the products of a block of vectors with a block of centroids.
    # A rotation needs two more copies of the codec's sample.
    fixed = 3 * nlist * dim * 4 + (8 << 20) + (3 if name == "opq" else 1) * _CODEC_ROWS * dim * 4
    least = fixed + max(nlist, 256) * (dim * 2 + 8)
    with workspace(budget, "index training", least, _MOST) as lease:
        room = (lease.nbytes - fixed) // (2 * dim + 8)
        # A tuned index may have few lists. Its codec is not trained with fewer rows for that.
        wanted = max(_SAMPLE_PER_LIST * nlist, 0 if tuned is None else _CODEC_ROWS)
        count = min(int(_MOST_SHARE * rows), wanted, room)
        held = np.empty((count, dim), np.float16)
        held_ids = np.empty(count, np.int64)
        at = 0
        for ids, vectors in drawn(count):
            held[at : at + len(vectors)] = vectors
            held_ids[at : at + len(vectors)] = ids
            at += len(vectors)
            check(at)
        held, held_ids, count = held[:at], held_ids[:at], at
        centroids = codecs.cluster(held, nlist, iterations=_ITERATIONS, seed=options.seed)
        some = np.random.default_rng(options.seed).choice(count, min(count, _CODEC_ROWS), replace=False)
        spec = codecs.train(name, held[some].astype(np.float32), seed=options.seed, code_size=code_size)
    return spec, centroids, np.sort(held_ids)


_ROWS = 512
"""Rows that are read at a time."""


def draw(
    sources: Sequence[VectorSource], count: int, random: np.random.Generator
) -> Iterator[tuple[VectorSource, Ids]]:
    """Yields each source with the numbers, ascending, of `count` random live rows, or of all if there are fewer."""
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


def sample(sources: Sequence[VectorSource], count: int, seed: int) -> Iterator[tuple[Ids, Vectors]]:
    """Reads `count` random rows, block by block: ids [n] and vectors [n, dim], in file order."""
    for source, rows in draw(sources, count, np.random.default_rng(seed)):
        for start in range(0, len(rows), _ROWS):
            own = rows[start : start + _ROWS]
            yield source.segment.ids(own), source.segment.vectors(own)


Curve = tuple[tuple[int, float], ...]

QUERIES = 512
"""Number of queries. With it, three indexes of a million rows chose 33 to 54 lists for a recall of 0.95."""
NEIGHBOURS = 10
NEARNESS = 0.65
"""Cosine between a simulated question and its row, about that of real questions and passages (medians of 0.58 to 0.77
on judged sets)."""

BLOCK = 4096
"""Rows that are compared with the queries at a time."""

_GROUP = 32
"""Queries whose best rows are selected at a time."""

_STEP = 1.04
"""Ratio of the numbers of lists at neighbouring points of the curve."""


def measure(
    sources: Sequence[VectorSource],
    codec: Codec,
    centroids: Vectors,
    *,
    rescore: int = RESCORE,
    budget: MemoryBudget,
    seed: int,
    check: Callable[[int], None],
) -> Curve:
    """Measures recall@10 by the number of lists probed: (nprobe, recall@10), ascending, up to where more lists find no
    more.

    Every row of `sources`, in the lists of `centroids` [nlist, dim], is read once. A neighbour is found if its list is
    probed and, where candidates are re-scored, if its code makes it a candidate in the whole collection."""
    count = min(QUERIES, live_rows(sources))
    pool = rescore * NEIGHBOURS
    dim = centroids.shape[1]
    nbytes = pass_nbytes(dim, count, codec.spec) + 5 * count * len(centroids)
    with budget.reserve("index measurement", nbytes):
        queries = questions(np.concatenate([rows for _, rows in sample(sources, count, seed)]), seed)
        exact = Best(len(queries), NEIGHBOURS)
        coded = Best(len(queries), pool)
        read = 0
        for own, lists, codes, vectors in blocks(sources):
            exact.offer(queries, vectors, own, lists)
            if not codec.spec.exact:
                coded.offer(queries, codec.decode(codes), own, lists)
            read += len(own)
            check(read)
        nearness = queries @ centroids.T
        found = np.take_along_axis(nearness, np.maximum(exact.lists, 0), axis=1)
        # For each query and neighbour, the number of lists probed before the neighbour's list: [queries, NEIGHBOURS].
        before = np.stack([(nearness > column[:, None]).sum(axis=1) for column in found.T], axis=1)
        kept = exact.ids >= 0
        total = int(kept.sum())
        if not codec.spec.exact:
            last = np.partition(coded.scores, pool - NEIGHBOURS, axis=1)[:, pool - NEIGHBOURS]
            margin = 2 * DEVIATIONS * np.array([codec.deviation(query) for query in queries])
            candidates = np.where(coded.scores >= (last - margin)[:, None], coded.ids, -1)
            kept &= (exact.ids[:, :, None] == candidates[:, None, :]).any(axis=2)
        return _curve(before[kept], total, len(centroids))


def pass_nbytes(dim: int, count: int, spec: CodecSpec) -> int:
    """Bytes that a comparison of all rows with `count` queries holds, and that reading rows of `spec` holds."""
    row_nbytes = 2 * (4 * dim + spec.code_size + 12) + (0 if spec.exact else 4 * dim)
    return BLOCK * (row_nbytes + 5 * count + 12 * _GROUP) + (6 << 20)


def questions(rows: Vectors, seed: int) -> Vectors:
    """Simulated questions [n, dim]: each of `rows` [n, dim] is turned towards the difference of two others."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    order = np.random.default_rng(seed).permutation(len(rows))
    away = rows[order] - rows[np.roll(order, 1)]
    away -= np.einsum("ij,ij->i", away, rows)[:, None] / lengths**2 * rows
    away *= lengths / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-12)
    turned: Vectors = (NEARNESS * rows + math.sqrt(1 - NEARNESS**2) * away).astype(np.float32)
    return turned


def aim(curve: Curve, nprobe: int) -> float:
    """The recall to aim at, so that at least `nprobe` lists are probed, or the last point; 1 without a curve."""
    return next((recall for lists, recall in curve if lists >= nprobe), curve[-1][1] if curve else 1.0)


class Best:
    """The rows with the highest scores so far: `scores`, `ids` and `lists`, each [queries, keep], unsorted."""

    def __init__(self, queries: int, keep: int) -> None:
        self.scores = np.full((queries, keep), -np.inf, np.float32)
        self.ids = np.full((queries, keep), -1, np.int64)
        self.lists = np.full((queries, keep), -1, np.int32)

    def offer(self, queries: Vectors, vectors: Vectors, ids: Ids, lists: npt.NDArray[np.int32]) -> None:
        scores = queries @ vectors.T
        for start in range(0, len(queries), _GROUP):
            self._merge(slice(start, start + _GROUP), scores[start : start + _GROUP], ids, lists)

    def _merge(self, own: slice, scores: Vectors, ids: Ids, lists: npt.NDArray[np.int32]) -> None:
        keep = self.scores.shape[1]
        chosen = np.broadcast_to(np.arange(len(ids)), scores.shape)
        if len(ids) > keep:
            chosen = np.argpartition(scores, len(ids) - keep, axis=1)[:, -keep:]
        all_scores = np.concatenate((self.scores[own], np.take_along_axis(scores, chosen, axis=1)), axis=1)
        all_ids = np.concatenate((self.ids[own], ids[chosen]), axis=1)
        all_lists = np.concatenate((self.lists[own], lists[chosen]), axis=1)
        best = np.argpartition(all_scores, all_scores.shape[1] - keep, axis=1)[:, -keep:]
        self.scores[own], self.ids[own], self.lists[own] = (
            np.take_along_axis(values, best, axis=1) for values in (all_scores, all_ids, all_lists)
        )
        self.ids[own][np.isneginf(self.scores[own])] = -1


_Rows = tuple[Ids, npt.NDArray[np.int32], npt.NDArray[np.uint8], Vectors]


def blocks(sources: Sequence[VectorSource]) -> Iterator[_Rows]:
    """All rows in blocks of about `BLOCK`: ids, lists, codes, vectors."""
    held: list[_Rows] = []
    rows = 0
    for source in sources:
        for block in source.stream():
            for start in range(0, len(block.ids), BLOCK):
                cut = slice(start, start + BLOCK)
                own = block.ids[cut]
                if rows + len(own) > BLOCK:
                    yield _joined(held)
                    held, rows = [], 0
                lists = np.full(len(own), block.list, np.int32)
                held.append((own, lists, block.codes[cut], block.vectors[cut]))
                rows += len(own)
    if held:
        yield _joined(held)


def _joined(blocks: list[_Rows]) -> _Rows:
    ids, lists, codes, vectors = zip(*blocks, strict=True)
    return np.concatenate(ids), np.concatenate(lists), np.concatenate(codes), np.concatenate(vectors)


def _curve(before: npt.NDArray[np.int64], total: int, nlist: int) -> Curve:
    """The curve up to the first point that more lists do not improve. `before`: the lists probed before that of each
    neighbour that can be found, of `total`."""
    points = []
    nprobe = 1
    while total:
        found = int((before < nprobe).sum())
        points.append((nprobe, found / total))
        if found == len(before):
            break
        nprobe = min(nlist, max(nprobe + 1, int(nprobe * _STEP)))
    return tuple(points)


_ROWS_CHANGE = 1.5
_LISTS_CHANGE = 1.05
"""Factors by which the number of vectors or lists grows or shrinks before recall is measured again."""


def measured(
    work: Work, sources: Sequence[VectorSource], codec: Codec, centroids: Vectors, tuned: Tuned | None
) -> Curve:
    """The recall curve of `sources`; empty if there is a single list."""
    total = live_rows(sources)
    if len(centroids) == 1 or total == 0:
        return ()
    return measure(
        sources,
        codec,
        centroids,
        rescore=RESCORE if tuned is None else tuned.parameters.rescore,
        budget=work.budget,
        seed=work.options.seed + 1,
        check=lambda done: work.check("measure", done, total),
    )


def remeasure(work: Work) -> None:
    """Measures the recall curve if it is out of date, because many vectors came or went, or lists were split."""
    with work.write() as db:
        manifest = IndexManifest(db)
        state = manifest.state()
        if (
            state.training == 0
            or state.quantizer
            or (
                _near(state.rows, state.measured_rows, _ROWS_CHANGE)
                and _near(manifest.list_count(), state.measured_lists, _LISTS_CHANGE)
            )
        ):
            return
        training, tuned = work.snapshots.training(manifest), manifest.tuned()
        sources = list(work.sources(manifest).values())
    curve = measured(work, sources, training.codec, training.centroids, tuned)
    with work.write() as db:
        manifest = IndexManifest(db)
        work.check_state(manifest, state.training, sources)
        rows, lists = live_rows(sources), len(training.centroids)
        manifest.touch(recall=curve, measured_rows=rows, measured_lists=lists)


def _near(now: int, then: int, change: float) -> bool:
    return now <= then * change and then <= now * change
