"""Candidate indexes of a collection: `Sampled` for their recall, from one pass over the rows, and `StageCosts` for the
time of their searches, from searches of small indexes (`calibrated`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from edge.budget import MemoryBudget
from edge.ivf.base import DEVIATIONS, NO_IDS, RESCORE, Codec, CodecSpec, Goal, Parameters, Snapshot, Tuned, Vectors
from edge.ivf.device import Search, open_device
from edge.ivf.maintenance.training import BLOCK, NEIGHBOURS, Best, blocks, pass_nbytes
from edge.ivf.maintenance.work import VectorSource, Work, live_rows
from edge.ivf.plan import probe
from edge.ivf.search import IndexSearcher
from edge.ivf.storage.segment_writer import Lists, SegmentWriter, append_by_list, assign, assign_nbytes
from edge.ivf.storage.snapshots import SnapshotLease, list_parts

KEPT = 320
"""Best rows that are kept of each query by each codec. Rows beyond them are taken as not found."""

_BOUND = 2.0
"""Standard errors by which the sample's recall must exceed a goal; 98 of 100 samples then reach it."""

Numbers = npt.NDArray[np.int32]
CodecKey = tuple[str, int]
"""Name of a codec, and bytes of its codes."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Means of a query: recall@10, the same less `_BOUND` standard errors, rows scanned, exact scores."""

    recall: float
    sure: float
    rows: float
    rescored: float


@dataclass(frozen=True, slots=True)
class _Lists:
    """One number of lists: those probed before each query's neighbours [q, NEIGHBOURS] and each codec's kept rows [q,
    KEPT], and the mean rows in the first 1, 2, ... lists [lists]."""

    truth: Numbers
    scanned: npt.NDArray[np.float64]
    ranks: Mapping[CodecKey, Numbers]


@dataclass(frozen=True, slots=True)
class _Coded:
    """The best rows of each query by one codec, best first: scores [q, KEPT], the place of each neighbour [q,
    NEIGHBOURS] (or KEPT), and the largest distance at which a row is scored exactly [q]."""

    scores: Vectors
    places: Numbers
    margin: npt.NDArray[np.float64]


class Sampled:
    """Sampled queries, their exact neighbours, and the places of both in every candidate index."""

    def __init__(
        self,
        sources: Sequence[VectorSource],
        queries: Vectors,
        centroids: Mapping[int, Vectors],
        codecs: Mapping[CodecKey, Codec],
        *,
        budget: MemoryBudget,
        check: Callable[[int], None],
    ) -> None:
        """Reads every row once, for queries [q, dim], centroids [lists, dim] by number of lists, and codecs."""
        self.rows = live_rows(sources)
        self.codecs = tuple(codecs)
        dim, count = queries.shape[1], len(queries)
        number = sum(not codec.spec.exact for codec in codecs.values())
        kept, needed = sampled_nbytes(count, self.rows, list(centroids), number, dim, sources[0].segment.spec)
        self._held = SnapshotLease(budget, kept)
        with budget.reserve("index tuning", needed):
            exact = Best(count, NEIGHBOURS)
            coded = {key: Best(count, KEPT) for key, codec in codecs.items() if not codec.spec.exact}
            lists_of = {lists: np.empty(self.rows, np.int32) for lists in centroids}
            read = 0
            for own, _, _, vectors in blocks(sources):
                places = np.arange(read, read + len(own))
                exact.offer(queries, vectors, places, np.zeros(len(own), np.int32))
                for key, best in coded.items():
                    codec = codecs[key]
                    best.offer(queries, codec.decode(codec.encode(vectors)), places, np.zeros(len(own), np.int32))
                for lists, own_centroids in centroids.items():
                    lists_of[lists][places] = assign(vectors, own_centroids)[0]
                read += len(own)
                check(read)
            self._present = exact.ids >= 0
            self._coded = {key: _coded(best, exact, codecs[key], queries) for key, best in coded.items()}
            ids = {key: np.take_along_axis(best.ids, _order(best), axis=1) for key, best in coded.items()}
            self._lists = {1: _one_list(self.rows, exact, ids)}
            for lists, own_centroids in centroids.items():
                self._lists[lists] = _placed(queries @ own_centroids.T, lists_of[lists], exact, ids)

    def scanned(self, lists: int, nprobe: int) -> float:
        return float(self._lists[lists].scanned[nprobe - 1])

    def bound(self, lists: int, nprobe: int) -> float:
        """A recall that no codec exceeds with `nprobe` lists: that of exact codes."""
        found = self._present & (self._lists[lists].truth < nprobe)
        return float((found.sum(axis=1) / np.maximum(1, self._present.sum(axis=1))).mean())

    def expected(self, parameters: Parameters, nprobe: int) -> Expected:
        """The result of a search of `nprobe` lists with these parameters."""
        lists, coded = self._lists[parameters.lists], self._coded.get((parameters.codec, parameters.code_size))
        found = self._present & (lists.truth < nprobe)
        rows = self.scanned(parameters.lists, nprobe)
        rescored = 0.0
        if coded is not None:
            ranks = lists.ranks[parameters.codec, parameters.code_size]
            probed = ranks < nprobe
            before = probed.cumsum(axis=1)
            # The score of the last result, if results were chosen by their codes.
            last = np.where(probed & (before == NEIGHBOURS), coded.scores, np.inf).min(axis=1)
            floor = np.where(np.isinf(last), -np.inf, last) - coded.margin
            candidates = probed & (before <= parameters.rescore * NEIGHBOURS) & (coded.scores >= floor[:, None])
            padded = np.concatenate((candidates, np.zeros((len(candidates), 1), np.bool_)), axis=1)
            found &= np.take_along_axis(padded, coded.places, axis=1)
            rescored = float(candidates.sum(axis=1).mean())
        recall = found.sum(axis=1) / np.maximum(1, self._present.sum(axis=1))
        error = float(recall.std() / len(recall) ** 0.5)
        mean = float(recall.mean())
        return Expected(mean, mean - _BOUND * error, rows, rescored)


def sampled_nbytes(
    count: int, rows: int, lists: Sequence[int], coded: int, dim: int, spec: CodecSpec
) -> tuple[int, int]:
    """Bytes that `Sampled` keeps, and that its pass takes in addition. `coded` codecs are not exact; the rows lie in
    segments of `spec`."""
    cells = count * KEPT * coded
    # For each cell the score and a rank for each number of lists stay; `expected` needs some more for one codec.
    kept = cells * (8 + 4 * len(lists)) + 24 * count * KEPT
    needed = 48 * cells + 4 * rows * len(lists) + 12 * count * sum(lists)
    return kept, needed + pass_nbytes(dim, count, spec) + BLOCK * 12 * dim + assign_nbytes(max([1, *lists]))


def _order(best: Best) -> npt.NDArray[np.int64]:
    return np.argsort(-best.scores, axis=1, kind="stable")


def _coded(best: Best, exact: Best, codec: Codec, queries: Vectors) -> _Coded:
    order = _order(best)
    ids, scores = np.take_along_axis(best.ids, order, axis=1), np.take_along_axis(best.scores, order, axis=1)
    places = np.full(exact.ids.shape, KEPT, np.int32)
    for column in range(exact.ids.shape[1]):
        same = (ids == exact.ids[:, column : column + 1]) & (ids >= 0)
        places[:, column] = np.where(same.any(axis=1), same.argmax(axis=1), KEPT)
    margin = np.array([2 * DEVIATIONS * codec.deviation(query) for query in queries])
    return _Coded(scores, places, margin)


def _one_list(rows: int, exact: Best, ids: Mapping[CodecKey, npt.NDArray[np.int64]]) -> _Lists:
    ranks = {key: np.zeros(own.shape, np.int32) for key, own in ids.items()}
    return _Lists(np.zeros(exact.ids.shape, np.int32), np.array([float(rows)]), ranks)


def _placed(nearness: Vectors, lists_of: Numbers, exact: Best, ids: Mapping[CodecKey, npt.NDArray[np.int64]]) -> _Lists:
    """One number of lists, from inner products of queries and centroids [q, lists], and the list of each row [rows]."""
    count, lists = nearness.shape
    order = np.argsort(-nearness, axis=1, kind="stable")
    rank = np.empty((count, lists), np.int32)
    np.put_along_axis(rank, order, np.arange(lists, dtype=np.int32)[None, :], axis=1)
    sizes = np.bincount(lists_of, minlength=lists)
    scanned = np.cumsum(sizes[order].mean(axis=0))

    def before(rows: npt.NDArray[np.int64]) -> Numbers:
        own = np.take_along_axis(rank, lists_of[np.maximum(rows, 0)].astype(np.int64), axis=1)
        return np.where(rows >= 0, own, lists).astype(np.int32)

    return _Lists(before(exact.ids), scanned, {key: before(rows) for key, rows in ids.items()})


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one query: codec, bytes of a code, lists and probes, rows, queue places, exact scores."""

    codec: tuple[str, int]
    dim: int
    lists: int
    probed: int
    rows: float
    queue: int
    rescored: float

    def amounts(self) -> dict[str, float]:
        """The amount of work in each stage."""
        inserted = self.queue * (1 + math.log(max(1.0, self.rows / self.queue)))
        exact = self.codec[0] == "flat"
        return {
            "query": 1.0, "coarse quantizer": float(self.lists * self.dim), "lists": float(self.probed),
            "queue": inserted * math.log2(1 + self.queue), "rescoring": 0.0 if exact else self.rescored,
            scan_of(self.codec): self.rows, prepare_of(self.codec): 0.0 if exact else 1.0,
        }  # fmt: skip


def scan_of(codec: tuple[str, int]) -> str:
    return f"scan of {codec[0]} {codec[1]}"


def prepare_of(codec: tuple[str, int]) -> str:
    """The name of the stage that prepares a query for a codec: its tables, and the reading of its candidates."""
    return f"preparation for {codec[0]} {codec[1]}"


def queue_places(rescore: int, *, exact: bool) -> int:
    """Places of a search's queue for ten results (see `edge.ivf.scan`)."""
    return NEIGHBOURS * (1 if exact else rescore) + 8


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds of a unit of work in each stage, by the names of `Load.amounts`."""

    rates: Mapping[str, float]

    def seconds(self, load: Load) -> float:
        return sum(self.rates.get(name, 0.0) * amount for name, amount in load.amounts().items())

    @classmethod
    def fitted(cls, loads: Sequence[Load], seconds: Sequence[float]) -> StageCosts:
        """The rates, none below 0, that predict the measured `seconds` [n] of `loads` with the least relative error."""
        names = sorted({name for load in loads for name in load.amounts()})
        work = np.array([[load.amounts().get(name, 0.0) for name in names] for load in loads])
        measured = np.array(seconds)
        rates = _not_negative(work / measured[:, None], np.ones(len(loads)))
        return cls(dict(zip(names, rates.tolist(), strict=True)))


def _not_negative(matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The least-squares `x` >= 0 [n] of `matrix` [m, n], `target` [m] (Lawson and Hanson 1974, chapter 23)."""
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(np.float64).tiny)
    matrix = matrix / scale
    count = matrix.shape[1]
    solution = np.zeros(count)
    free = np.zeros(count, np.bool_)
    for _ in range(10 * count):
        gain = matrix.T @ (target - matrix @ solution)
        if free.all() or gain[~free].max() <= 1e-10:
            break
        free[np.flatnonzero(~free)[gain[~free].argmax()]] = True
        while True:
            trial = np.zeros(count)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            if (trial[free] > 0).all():
                break
            falling = free & (trial <= 0)
            steps = solution[falling] / np.maximum(solution[falling] - trial[falling], np.finfo(np.float64).tiny)
            solution = solution + float(steps.min()) * (trial - solution)
            free &= solution > 1e-15
        solution = trial
    rates: npt.NDArray[np.float64] = solution / scale
    return rates


CALIBRATION_ROWS = 16_384
"""Rows of the small indexes. They do not fit the processor's nearest caches, as those of a collection do not."""

CALIBRATION_LEAST = 1_024

CALIBRATION_QUERIES = 16
_ROUNDS = 7
"""Times that each search is measured, in turns; the shortest counts."""

_FEW, _MANY = 32, 256
"""Numbers of lists. Long and short lists tell the time for a list from the time for its rows."""

_BLOCK = 2_048
"""Rows that are decoded at a time."""

_PROBED = (1, 4, 16, 64)
_DEPTHS = (2, 16)
_PROBED_BY_DEPTH = (4, 16)


@dataclass(frozen=True, slots=True)
class _Setting:
    """One way to search a small index: its snapshot, the lists probed, and the work of each query."""

    snapshot: Snapshot
    nprobe: int
    load: Load


def calibrated(
    work: Work, rows: Vectors, queries: Vectors, centroids: Mapping[int, Vectors], codecs: Mapping[CodecKey, Codec]
) -> StageCosts:
    """Measures searches of small indexes of `rows` [n, dim] for queries [q, dim], and fits the rates of all stages.
    Their files lie in the index's folder; the next maintenance removes those that a kill leaves."""
    host = open_device("cpu", work.budget)
    assert isinstance(host, Search), "the host searches lists"
    searcher = IndexSearcher(host)
    settings: list[_Setting] = []
    loads: list[Load] = []
    try:
        for own in centroids.values():
            for codec in codecs.values():
                settings += _settings(work, rows, queries, own, codec)
                work.check("calibrate", len(settings))
        seconds = _times(work, searcher, settings, queries)
        loads = [setting.load for setting in settings]
    finally:
        searcher.close()
        host.close()
        names = {part.key[0] for setting in settings for parts in setting.snapshot.lists for part in parts}
        settings.clear()
        for name in names:
            work.open_segments.remove(name)
    return StageCosts.fitted(loads, seconds)


def calibration_nbytes(dim: int, lists: int) -> int:
    """Bytes that `calibrated` needs beside its rows, for vectors of width `dim` and so many lists."""
    return assign_nbytes(lists) + 4 * CALIBRATION_ROWS * CALIBRATION_QUERIES + 12 * dim * _BLOCK + (4 << 20)


def _times(work: Work, searcher: IndexSearcher, settings: Sequence[_Setting], queries: Vectors) -> list[float]:
    """Seconds of a search in each setting: the mean over `queries` [q, dim] of each query's shortest time."""
    best = np.full((len(settings), len(queries)), np.inf)
    for _ in range(_ROUNDS):
        for number, setting in enumerate(settings):
            for place, query in enumerate(queries):
                started = time.perf_counter()
                searcher.search(setting.snapshot, query[None], NEIGHBOURS, nprobe=setting.nprobe)
                best[number, place] = min(best[number, place], time.perf_counter() - started)
            work.check("calibrate", number)
    return [float(own.mean()) for own in best]


def _settings(work: Work, rows: Vectors, queries: Vectors, centroids: Vectors, codec: Codec) -> list[_Setting]:
    """The ways in which a small index of `rows` [n, dim] with these lists and this codec is searched."""
    lists = assign(rows, centroids)[0]
    snapshot = small_index(work, rows, lists, centroids, codec)
    key, exact = (codec.spec.name, codec.spec.code_size), codec.spec.exact
    ways = [(probed, RESCORE) for probed in _PROBED]
    if not exact:
        ways += [(probed, depth) for depth in _DEPTHS for probed in _PROBED_BY_DEPTH]
    scores = np.empty((len(queries), 0 if exact else len(rows)), np.float32)
    for start in range(0, scores.shape[1], _BLOCK):
        own = rows[start : start + _BLOCK]
        scores[:, start : start + len(own)] = queries @ codec.decode(codec.encode(own)).T
    settings = []
    for probed, depth in ways:
        if probed > len(centroids):
            continue
        order = probe(queries, centroids, probed)
        inside = [np.isin(lists, own) for own in order]
        rescored = 0.0
        if not exact:
            pairs = zip(scores, inside, queries, strict=True)
            rescored = float(np.mean([_rescored(own[mask], depth, codec, query) for own, mask, query in pairs]))
        scanned = float(np.mean([mask.sum() for mask in inside]))
        load = Load(key, snapshot.dim, len(centroids), probed, scanned, queue_places(depth, exact=exact), rescored)
        parameters = Parameters(len(centroids), *key, depth)
        settings.append(_Setting(searched_with(snapshot, parameters, probed), probed, load))
    return settings


def _rescored(scores: Vectors, depth: int, codec: Codec, query: Vectors) -> int:
    """The number of rows that a search scores exactly, by the scores [n] of the codes that it scans."""
    best = -np.sort(-scores)[: depth * NEIGHBOURS]
    if len(best) <= NEIGHBOURS:
        return len(best)
    return int((best >= best[NEIGHBOURS - 1] - 2 * DEVIATIONS * codec.deviation(query)).sum())


def searched_with(snapshot: Snapshot, parameters: Parameters, nprobe: int) -> Snapshot:
    """A snapshot whose searches use the parameters' depth of rescoring."""
    return replace(snapshot, tuned=Tuned(parameters, Goal(recall=1.0), snapshot.rows, nprobe, 1.0, 0.0, 1.0, 0))


def small_index(work: Work, rows: Vectors, lists: Lists, centroids: Vectors, codec: Codec) -> Snapshot:
    """An index of `rows` [n, dim] that no committed state names."""
    with SegmentWriter(work.folder, codec.spec, work.budget) as writer:
        append_by_list(writer, codec, lists, np.arange(len(rows)), rows)
        entry = writer.finish()
    segment = work.open_segments.open(entry, codec.spec)
    parts = list_parts(len(centroids), {segment.name: segment}, {segment.name: NO_IDS})
    none = np.empty((0, rows.shape[1]), np.float32)
    return Snapshot(1, rows.shape[1], codec, centroids, parts, NO_IDS, none, (), len(rows))


def small_sizes(available: Sequence[int], rows: int) -> list[int]:
    """Lists to measure with: with one number, the quantizer could not be told from what every query takes."""
    fitting = sorted(lists for lists in available if 8 * lists <= rows) or [min(available)]
    many = min(fitting, key=lambda lists: abs(lists - _MANY))
    few = min((lists for lists in fitting if lists != many), key=lambda lists: abs(lists - _FEW), default=many)
    return sorted({few, many})
