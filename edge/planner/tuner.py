"""Chooses the parameters of an index that reach a goal in the least time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edge.errors import BudgetExceeded, InputError, StorageError
from edge.ivf.base import CHECKSUM_NBYTES, ID_NBYTES, Codec, Goal, IndexTuning, Parameters, Tuned, Vectors
from edge.ivf.maintenance.maintainer import maintain
from edge.ivf.maintenance.retraining import sorting_nbytes
from edge.ivf.maintenance.training import choose_nlist, questions, sample
from edge.ivf.maintenance.work import Stopped, VectorSource, Work, live_rows, workspace
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.snapshots import SnapshotLease
from edge.planner.candidates import (
    CALIBRATION_LEAST,
    CALIBRATION_QUERIES,
    CALIBRATION_ROWS,
    CodecKey,
    Expected,
    Load,
    Sampled,
    StageCosts,
    calibrated,
    calibration_nbytes,
    queue_places,
    sampled_nbytes,
    small_sizes,
)

QUERIES = 2048
"""Simulated questions, if memory allows. Their mean recall has a standard error of about 0.003."""

Halves = npt.NDArray[np.float16]

_LEAST_ROWS = 200
_SAMPLE_PER_LIST = 40
_CODEC_ROWS = 4_096
"""Rows that codecs are tried with. The training of the index takes twice as many, which makes codes no worse."""

_FEWEST_QUERIES = 128
"""With less memory than these need, there is no tuning."""

_LEAST_QUESTIONS = 30
"""With fewer, the sampling error of the recall is not known."""

_ITERATIONS = 10

_CODECS = 5
"""Codecs that are tried at most."""


def tune(work: Work, goal: Goal, given: Vectors | None = None) -> Tuned:
    """Chooses parameters for rows in segments; changes nothing. `given` questions [q, dim], or made from rows."""
    with work.write() as db:
        sources = list(work.sources(IndexManifest(db)).values())
    candidates = TuningCandidates(work, sources, given)
    choice = candidates.choose(goal)
    return candidates.record(choice, goal)


class TuningCandidates:
    """All candidates of one collection: sampled recall, stage costs, lists, centroids [lists, dim], codecs."""

    def __init__(self, work: Work, sources: Sequence[VectorSource], given: Vectors | None = None) -> None:
        """Trains the candidates and measures. Arguments and errors are those of `tune`."""
        rows, dim, seed = live_rows(sources), work.snapshots.dim, work.options.seed
        if rows < _LEAST_ROWS:
            raise InputError(f"tuning needs at least {_LEAST_ROWS} vectors, and there are {rows:,}")
        if given is not None and len(given) < _LEAST_QUESTIONS:
            raise InputError(f"tuning needs at least {_LEAST_QUESTIONS} questions, not {len(given)}")
        self.work, self.dim = work, dim
        self.lists = numbers_of_lists(rows, choose_nlist(rows, work.options))
        wanted = [lists for lists in self.lists if lists > 1]
        count = min(QUERIES, rows) if given is None else len(given)
        # Centroids, questions and the tables of codecs stay in memory as long as the candidates.
        tables = 4 * dim * (sum(wanted) + count) + _CODECS * (4 * dim * (256 + dim))
        self._held = SnapshotLease(work.budget, tables)
        queries = given
        if queries is None:
            queries = questions(np.concatenate([rows for _, rows in sample(sources, count, seed + 1)]), seed + 1)
        drawn = int(min(0.8 * rows, max(_SAMPLE_PER_LIST * max(wanted), CALIBRATION_ROWS)))
        # k-means holds the centroids three times, and its part of the sample beside the sample. A codec is trained
        # with float32 rows, of which a rotation needs three further copies.
        fixed = 4 * dim * (4 * max(wanted) + 4 * _CODEC_ROWS) + (8 << 20)
        least = fixed + 2 * dim * CALIBRATION_LEAST
        calibrating = 6 * dim * CALIBRATION_LEAST + calibration_nbytes(dim, max(wanted))
        spec = sources[0].segment.spec
        sampling = sum(sampled_nbytes(min(count, _FEWEST_QUERIES), rows, wanted, _CODECS - 1, dim, spec))
        sorting = sorting_nbytes(rows, max(wanted), dim) - tables  # the tables are released before
        # No later step needs more than this, so a refusal names a limit that works.
        work.budget.reserve("index tuning", max(least, calibrating, sampling, sorting)).release()
        with workspace(work.budget, "index tuning", least, least + drawn * 4 * dim) as lease:
            most = max(CALIBRATION_LEAST, min(CALIBRATION_ROWS, (lease.nbytes - fixed) // (8 * dim)))
            room = lease.nbytes - fixed - 2 * dim * most
            held = self._drawn(sources, min(drawn, max(wanted) + room // (4 * dim)), seed)
            order = np.random.default_rng(seed).permutation(len(held))
            self.centroids = {lists: self._clustered(held, order, lists, max(wanted)) for lists in wanted}
            self.codecs = self._trained(held[order[:_CODEC_ROWS]].astype(np.float32))
            small = held[order[:most]]
            del held
        with work.budget.reserve("index tuning", 6 * dim * len(small) + calibration_nbytes(dim, max(wanted))):
            few = {lists: self.centroids[lists] for lists in small_sizes(wanted, len(small))}
            costs = calibrated(work, small.astype(np.float32), queries[:CALIBRATION_QUERIES], few, self.codecs)
            del small
        self.costs = costs
        self.sampled = self._sampled(sources, np.random.default_rng(seed).permutation(queries), rows)

    def choose(self, goal: Goal) -> ParameterChoice:
        room = self.work.budget.limit // 2 if goal.nbytes is None else goal.nbytes
        return choose(self.sampled, self.costs, self.dim, self.lists, goal, room)

    def record(self, choice: ParameterChoice, goal: Goal) -> Tuned:
        expected = choice.expected
        return Tuned(
            choice.parameters, goal, self.sampled.rows, choice.nprobe, 1.0, choice.seconds, expected.recall,
            choice.nbytes,
        )  # fmt: skip

    def _sampled(self, sources: Sequence[VectorSource], queries: Vectors, rows: int) -> Sampled:
        """The recall on as many of the queries [q, dim] as memory allows. With fewer, its sampling error is larger."""

        def sampled(queries: Vectors) -> Sampled:
            return Sampled(
                sources, queries, self.centroids, self.codecs, budget=self.work.budget,
                check=lambda done: self.work.check("sample", done, rows),
            )  # fmt: skip

        while len(queries) > _FEWEST_QUERIES:
            with suppress(BudgetExceeded):
                return sampled(queries)
            queries = queries[: max(_FEWEST_QUERIES, len(queries) // 2)]
        return sampled(queries)

    def _clustered(self, held: Halves, order: npt.NDArray[np.int64], lists: int, most: int) -> Vectors:
        """Centroids [lists, dim] of as many of the rows `held` [n, dim], in this order, as they need."""
        own = held[order[: max(lists, min(len(held), _SAMPLE_PER_LIST * lists))]]
        found = self.work.codecs.cluster(own, lists, iterations=_ITERATIONS, seed=self.work.options.seed)
        self.work.check("train", lists, most)
        return found

    def _trained(self, rows: Vectors) -> dict[CodecKey, Codec]:
        codecs, seed = self.work.codecs, self.work.options.seed
        found: dict[CodecKey, Codec] = {}
        for key in codecs_of(self.dim, len(rows)):
            found[key] = codecs.open(codecs.train(key[0], rows, seed=seed, code_size=key[1]))
            self.work.check("train", len(found))
        return found

    def _drawn(self, sources: Sequence[VectorSource], count: int, seed: int) -> Halves:
        held = np.empty((count, self.dim), np.float16)
        at = 0
        for _, vectors in sample(sources, count, seed):
            held[at : at + len(vectors)] = vectors
            at += len(vectors)
            self.work.check("train", at, count)
        return held


_SAME_ROWS = 0.1
"""Largest relative change in the number of vectors at which an index still counts as tuned."""


def tuned(work: Work, goal: Goal, questions: Vectors | None) -> IndexTuning:
    """Tunes an index, unless it was tuned for the same goal with about as many vectors. See `VectorIndex.tune`."""
    with work.write() as db:
        manifest = IndexManifest(db)
        rows, known = manifest.state().rows, manifest.tuned()
    if known is not None and known.goal == goal and abs(rows - known.rows) <= _SAME_ROWS * known.rows:
        return IndexTuning(known, changed=False)
    report = maintain(work, lambda work: tune(work, goal, questions))
    if report.busy:
        raise StorageError("another thread or process maintains the index: tune it when that has ended")
    with work.write() as db:
        record = IndexManifest(db).tuned()
    if record is None or not report.trained:
        raise StorageError("another state of the index was put in place while it was tuned: nothing has changed")
    return IndexTuning(record, changed=True)


def examine(work: Work, use: Callable[[TuningCandidates], object]) -> None:
    """Calls `use` with the candidate parameters of an index. See `VectorIndex.examine`."""
    used = []

    def look(work: Work) -> Tuned:
        with work.write() as db:
            sources: list[VectorSource] = list(work.sources(IndexManifest(db)).values())
        use(TuningCandidates(work, sources))
        used.append(True)
        raise Stopped  # before anything is trained

    report = maintain(work, look)
    if report.busy or not used:
        raise StorageError("another thread or process maintains the index: try again when that has ended")


DEPTHS = (1, 2, 4, 8, 16)
"""Exact scores per result that are tried where codes are not exact."""

_STEP = 1.04
"""Ratio of neighbouring numbers of lists probed."""

_TINY = 1e-9

_TABLE = 256
"""Entries of a table of pq."""


@dataclass(frozen=True, slots=True)
class ParameterChoice:
    """Parameters, lists to probe, and what is expected: the time and work of a query, and bytes of the lists."""

    parameters: Parameters
    nprobe: int
    expected: Expected
    seconds: float
    nbytes: int
    load: Load
    rows: int

    def reaches(self, recall: float) -> bool:
        return self.expected.sure >= recall - _TINY


def numbers_of_lists(rows: int, standard: int) -> list[int]:
    """The numbers of lists that are tried: one, powers of two around the square root, and `standard`."""
    root = max(1.0, rows**0.5)
    powers = [2**power for power in range(1, 24) if root / 6 <= 2**power <= 4 * root and 2**power * 8 <= rows]
    return sorted({1, standard, *powers})


def codecs_of(dim: int, sample: int) -> list[tuple[str, int]]:
    """The codecs that can be tried, with bytes of their codes. pq needs a sample of its entries."""
    tables = [("pq", 4), ("opq", 4), ("opq", 8)]
    coded = [(name, dim // width) for name, width in tables if dim % width == 0 and sample >= _TABLE]
    return [("flat", 4 * dim), ("sq8", dim), *coded]


def lists_nbytes(rows: int, code_size: int) -> int:
    return rows * (code_size + ID_NBYTES + CHECKSUM_NBYTES)


def grid(sampled: Sampled, lists: Sequence[int]) -> Iterator[Parameters]:
    """All parameters that are tried, except for the numbers of lists probed. A single list is never coded."""
    for name, code_size in sampled.codecs:
        if name == "flat":
            yield from (Parameters(number, name, code_size, 1) for number in lists)
        else:
            yield from (Parameters(n, name, code_size, depth) for n in lists if n > 1 for depth in DEPTHS)


def probes(lists: int) -> Iterator[int]:
    """The numbers of lists probed that are tried, ascending."""
    number = 1
    while number < lists:
        yield number
        number = max(number + 1, int(number * _STEP))
    yield lists


def load_of(sampled: Sampled, dim: int, parameters: Parameters, nprobe: int, rescored: float) -> Load:
    queue = queue_places(parameters.rescore, exact=parameters.codec == "flat")
    codec = (parameters.codec, parameters.code_size)
    rows = sampled.scanned(parameters.lists, nprobe)
    return Load(codec, dim, parameters.lists, nprobe, rows, queue, rescored)


def evaluated(sampled: Sampled, costs: StageCosts, dim: int, parameters: Parameters, nprobe: int) -> ParameterChoice:
    """What a search with these parameters is expected to find and to take."""
    expected = sampled.expected(parameters, nprobe)
    load = load_of(sampled, dim, parameters, nprobe, expected.rescored)
    nbytes = lists_nbytes(sampled.rows, parameters.code_size)
    return ParameterChoice(parameters, nprobe, expected, costs.seconds(load), nbytes, load, sampled.rows)


def tries(
    sampled: Sampled, costs: StageCosts, dim: int, parameters: Parameters, recall: float | None, longest: float
) -> Iterator[ParameterChoice]:
    """Choices with these parameters by the lists probed, up to the fewest that reach a recall if one is wanted. Recall
    is computed only where exact codes would reach it and earlier stages take no longer than `longest`."""
    for nprobe in probes(parameters.lists):
        if recall is not None and sampled.bound(parameters.lists, nprobe) < recall - _TINY:
            continue
        if costs.seconds(load_of(sampled, dim, parameters, nprobe, 0.0)) > longest:
            return
        yield (choice := evaluated(sampled, costs, dim, parameters, nprobe))
        if recall is not None and choice.reaches(recall):
            return


def choose(
    sampled: Sampled, costs: StageCosts, dim: int, lists: Sequence[int], goal: Goal, room: int
) -> ParameterChoice:
    """The best parameters whose lists have at most `room` bytes; if none has so few, among those with the fewest: the
    fastest of those that reach a wanted recall, or else those of the highest recall."""

    def order(choice: ParameterChoice) -> tuple[float, float]:
        return (-choice.expected.sure, choice.seconds) if goal.recall is None else (choice.seconds, choice.nbytes)

    best: ParameterChoice | None = None
    nearest: ParameterChoice | None = None
    most = math.inf if goal.seconds is None else goal.seconds
    for parameters in within(list(grid(sampled, lists)), sampled.rows, room, strict=goal.nbytes is not None):
        longest = most if best is None or goal.recall is None else min(most, best.seconds)
        for choice in tries(sampled, costs, dim, parameters, goal.recall, longest):
            if nearest is None or choice.expected.sure > nearest.expected.sure:
                nearest = choice
            kept = choice.seconds <= most and (goal.recall is None or choice.reaches(goal.recall))
            if kept and (best is None or order(choice) < order(best)):
                best = choice
    if best is None:
        raise InputError(_refusal(goal, nearest))
    return best


def within(tried: list[Parameters], rows: int, room: int, *, strict: bool) -> list[Parameters]:
    fitting = [p for p in tried if lists_nbytes(rows, p.code_size) <= room]
    if fitting:
        return fitting
    least = min(p.code_size for p in tried)
    if strict:
        raise InputError(
            f"no codec keeps the lists of {rows:,} vectors in {room:,} bytes: the smallest needs "
            f"{lists_nbytes(rows, least):,}"
        )
    return [p for p in tried if p.code_size == least]


def _refusal(goal: Goal, nearest: ParameterChoice | None) -> str:
    if nearest is None or goal.recall is None:
        return f"no parameters answer a query so well within {(goal.seconds or 0) * 1e3:g} ms: allow more time"
    wanted = f"a recall of {goal.recall:g}"
    limits = [f"{goal.seconds * 1e3:g} ms" if goal.seconds else "", f"{goal.nbytes:,} bytes" if goal.nbytes else ""]
    inside = " and ".join(filter(None, limits))
    return (
        f"no parameters surely reach {wanted}{f' within {inside}' if inside else ''}: the best reach "
        f"{nearest.expected.sure:.3f}; ask for less, or allow more"
    )
