"""Measures the stages of a search on this machine, with searches of small indexes made of the collection's own rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge.ivf.assignment import Lists, append_by_list, assign, assign_nbytes
from edge.ivf.base import DEVIATIONS, NO_IDS, RESCORE, Codec, Snapshot, Vectors
from edge.ivf.device import Search
from edge.ivf.maintenance.recall import NEIGHBOURS
from edge.ivf.maintenance.work import Work
from edge.ivf.opening import open_device
from edge.ivf.parameters import Goal, Parameters, Tuned
from edge.ivf.router import probe
from edge.ivf.search import Searcher
from edge.ivf.storage.segment_writer import SegmentWriter
from edge.ivf.storage.snapshots import list_parts
from edge.tuning.sampled import CodecKey
from edge.tuning.stage_costs import Load, StageCosts, queue_places

ROWS = 16_384
"""Rows of the small indexes. They do not fit the processor's nearest caches, as those of a collection do not."""

LEAST_ROWS = 1_024

QUERIES = 16
_ROUNDS = 7
"""Times that each search is measured; the shortest counts. All searches take turns, so that other programs slow all of
them alike."""

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
    """Measures searches of small indexes of `rows` [n, dim], and fits the rates of all stages.

    There is an index for each codec and number of lists. Their files lie in the index's folder for that time. Files
    that a kill leaves there are removed by the next maintenance, as any file that no committed state names.

    Args:
        queries: [q, dim].
        centroids: for one or two numbers of lists (see `small_sizes`), the centroids.

    Raises:
        BudgetExceeded, StorageError: the memory does not suffice, or the folder cannot be written.
    """
    host = open_device("cpu", work.budget)
    assert isinstance(host, Search), "the host searches lists"
    searcher = Searcher(host)
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
    return assign_nbytes(lists) + 4 * ROWS * QUERIES + 12 * dim * _BLOCK + (4 << 20)


def _times(work: Work, searcher: Searcher, settings: Sequence[_Setting], queries: Vectors) -> list[float]:
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
    """The numbers of lists, among those available, that indexes of `rows` rows are measured with.

    They are two wherever there is a choice: with one, the time for the coarse quantizer could not be told from the time
    that every query takes.
    """
    fitting = sorted(lists for lists in available if 8 * lists <= rows) or [min(available)]
    many = min(fitting, key=lambda lists: abs(lists - _MANY))
    few = min((lists for lists in fitting if lists != many), key=lambda lists: abs(lists - _FEW), default=many)
    return sorted({few, many})
