"""Chooses the parameters of an index: draws rows and queries, trains candidates, measures, and searches.

`examine` finds whether the tuning of an index in use is due. `tuned` trains the index with the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from edge.errors import BudgetExceeded, InputError, StorageError
from edge.ivf.base import Codec, Goal, IndexTuning, Tuned, Vectors
from edge.ivf.maintenance.maintainer import maintain
from edge.ivf.maintenance.retraining import sorting_nbytes
from edge.ivf.maintenance.training import choose_nlist, questions, sample
from edge.ivf.maintenance.work import Stopped, VectorSource, Work, live_rows, workspace
from edge.ivf.storage.manifest import IndexManifest
from edge.ivf.storage.snapshots import SnapshotLease
from edge.tuning.choosing import ParameterChoice, choose, codecs_of, numbers_of_lists
from edge.tuning.sampled import CodecKey, Sampled, sampled_nbytes
from edge.tuning.stage_costs import LEAST_ROWS as CALIBRATION_LEAST
from edge.tuning.stage_costs import QUERIES as CALIBRATION_QUERIES
from edge.tuning.stage_costs import ROWS as CALIBRATION_ROWS
from edge.tuning.stage_costs import calibrated, calibration_nbytes, small_sizes

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
    """Chooses parameters for the rows in an index's segments, and changes nothing. `given` are questions [q, dim] of
    the kind that will be asked; without them, questions are made from rows (see
    `edge.ivf.maintenance.training.questions`)."""
    with work.write() as db:
        sources = list(work.sources(IndexManifest(db)).values())
    candidates = TuningCandidates(work, sources, given)
    choice = candidates.choose(goal)
    return candidates.record(choice, goal)


class TuningCandidates:
    """All candidate parameters of one collection, with their recall on sampled queries (`Sampled`), the costs of their
    stages (`StageCosts`), the numbers of lists, the centroids [lists, dim] for each number above 1, and the codecs."""

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
        sorting = sorting_nbytes(max(wanted), dim) - tables  # the tables are released before
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
        """The best parameters for a goal. Raises as `edge.tuning.choosing.choose`."""
        room = self.work.budget.limit // 2 if goal.nbytes is None else goal.nbytes
        return choose(self.sampled, self.costs, self.dim, self.lists, goal, room)

    def record(self, choice: ParameterChoice, goal: Goal) -> Tuned:
        """The record of a choice."""
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
        """The codecs, trained with rows [n, dim]."""
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
        raise StorageError("tuning was stopped, or another state of the index was put in place: nothing has changed")
    return IndexTuning(record, changed=True)


def examine(work: Work, use: Callable[[TuningCandidates], object], questions: Vectors | None) -> None:
    """Calls `use` with the candidate parameters of an index. See `VectorIndex.examine`."""
    used = []

    def look(work: Work) -> Tuned:
        with work.write() as db:
            sources: list[VectorSource] = list(work.sources(IndexManifest(db)).values())
        use(TuningCandidates(work, sources, questions))
        used.append(True)
        raise Stopped  # before anything is trained

    report = maintain(work, look)
    if report.busy or not used:
        raise StorageError("another thread or process maintains the index: try again when that has ended")
