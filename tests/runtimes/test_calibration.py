"""Calibration: what it replays is what a live pass does, and its points keep the precision they promise."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge.chunking import Chunk
from edge.config import Config
from edge.errors import CorruptBlock, InputError
from edge.models.blending import Retrieved, blended, retrieval_scores
from edge.models.calibration import FILE, Calibration, Lens, Operating
from edge.models.pack import pack
from edge.models.spec import ModelSpec
from edge.pruning import Mode
from edge.runtimes.calibration import Example, calibrate
from edge.runtimes.replay import Record, courses, operating, replay
from edge.runtimes.reranker import Reranker
from edge.runtimes.scoring import Scorer

GOLDEN = Path(__file__).parents[1] / "golden" / "bert-reranker"
WORDS = [f"word{i}" for i in range(37)] + ["river", "flood", "spring", "town"]


def texts(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    folder = tmp_path_factory.mktemp("calibration")
    pack(GOLDEN, folder / "pack", "fp32").close()
    with Reranker(folder / "pack", config=Config(memory=4 * 10**9, scratch_dir=str(folder))) as opened:
        yield opened


def recorded(reranker: Reranker, query: str, docs: list[str]) -> np.ndarray:
    """Logits [layers, candidates] after every layer, looked at without pruning."""
    ranking = reranker.explain(query, docs, threshold="inf", every_layer=True)
    probabilities = np.stack([report.scores[np.argsort(report.ids)] for report in ranking.layers])
    return np.log(probabilities) - np.log1p(-probabilities)


@pytest.mark.parametrize("retrieved", [False, True, np.linspace(0, 1, 24).tolist()], ids=["none", "order", "scores"])
@pytest.mark.parametrize("mode", ["ranked", "top-k"])
@pytest.mark.parametrize("threshold", [0.0, 1e-4, 1e-3, math.inf])
def test_a_replay_chooses_what_a_live_pass_chooses(
    reranker: Reranker, mode: Mode, threshold: float, retrieved: Retrieved
) -> None:
    docs = texts(4, 24)  # no two of them have the same score, which the last bit would decide
    live = reranker.explain("river town", docs, 5, mode=mode, threshold=threshold, retrieved=retrieved)
    scores = recorded(reranker, "river town", docs)
    course = replay(Record(scores, None), 5, mode, threshold, 1, retrieved)
    assert [r.index for r in live.results] == course.chosen.tolist()
    assert live.stats.evaluations == course.evaluations


@pytest.mark.parametrize("mode", ["ranked", "top-k"])
def test_courses_are_all_that_thresholds_can_do(mode: Mode) -> None:
    random = np.random.default_rng(3)
    record = Record(random.normal(size=(5, 18)), None)
    found = list(courses(record, 4, mode, 2, True))
    assert found[0].low == 0.0
    assert found[-1].high == math.inf
    assert found[-1].evaluations == record.scores.size
    assert all(a.high == b.low for a, b in pairwise(found))
    for threshold in [0.0, *random.uniform(0, 2, 40).tolist(), *(course.low for course in found), 1e9]:
        (course,) = (course for course in found if course.low <= threshold < course.high)
        alone = replay(Record(record.scores, None), 4, mode, threshold, 2, True)
        assert course.chosen.tolist() == alone.chosen.tolist()
        assert course.evaluations == alone.evaluations


RELEVANT = frozenset({0, 3, 7})


def cheapest(records: list[Record], first: int, target: float) -> tuple[float, float]:
    """Tries a threshold between any two at which something changes: (threshold, evaluations), infinity if none does."""
    changes = sorted({course.low for record in records for course in courses(record, 5, "ranked", first, False)})
    full = precision(records, first, math.inf)
    best = (math.inf, 1.0)
    for threshold in [*((a + b) / 2 for a, b in pairwise(changes)), changes[-1]]:
        found = [replay(record, 5, "ranked", threshold, first, False) for record in records]
        evaluations = float(np.mean([course.evaluations for course in found])) / 80
        if precision(records, first, threshold) >= target * full - 1e-12 and evaluations < best[1] - 1e-12:
            best = (threshold, evaluations)
    return best


def precision(records: list[Record], first: int, threshold: float) -> float:
    found = [replay(record, 5, "ranked", threshold, first, False) for record in records]
    return float(np.mean([len(RELEVANT & set(course.chosen.tolist())) / 3 for course in found]))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("domains", [["a", "b", "c"], [""]])
def test_the_operating_point_is_the_cheapest_that_also_holds_where_it_was_not_chosen(
    seed: int, domains: list[str]
) -> None:
    random = np.random.default_rng(seed)
    final = random.normal(size=(16, 20))
    final[:, list(RELEVANT)] += 1.0
    records = [
        Record(
            np.stack([row + noise * random.normal(size=20) for noise in (2.0, 0.7, 0.3, 0.0)]), RELEVANT,
            domain=domains[i % len(domains)],
        )
        for i, row in enumerate(final)
    ]  # fmt: skip
    target = 0.9
    full = precision(records, 1, math.inf)
    holding = []
    for first in (1, 2, 3):
        parts = [list(part) for part in np.array_split(np.arange(16), 4)]
        if len(domains) > 1:
            parts = [[i for i in range(16) if records[i].domain == domain] for domain in domains]
        changes = []
        for part in parts:
            threshold, _ = cheapest([record for i, record in enumerate(records) if i not in part], first, target)
            inside = [records[i] for i in part]
            changes.append(min(0.0, precision(inside, first, threshold) - precision(inside, first, math.inf)))
        if np.mean(changes) >= (target - 1) * full - 1e-12:
            holding.append(cheapest(records, first, target))
    expected = min((evaluations for _, evaluations in holding), default=1.0)
    points = operating(records, (5,), "ranked", retrieved=False, target=target)
    assert [point.evaluations for point in points] == pytest.approx([expected] if expected < 1 else [])
    for point in points:
        assert point.full_precision == pytest.approx(full)
        assert point.precision == pytest.approx(precision(records, point.first_layer, point.threshold))
        assert point.precision >= target * full - 1e-12


def test_a_domain_of_few_queries_is_not_given_up() -> None:
    """In two queries of twenty-two the first layer is wrong; by the mean over queries that would be good enough."""
    random = np.random.default_rng(2)
    right = np.full(20, -5.0)
    right[list(RELEVANT)] = 5.0
    wrong = np.roll(right, 1)
    records = []
    for number in range(22):
        layers = [right if number < 20 else wrong, right, right, right]
        noisy = np.stack([layer + 0.1 * random.normal(size=20) for layer in layers])
        records.append(Record(noisy, RELEVANT, domain="common" if number < 20 else "rare"))
    (point,) = operating(records, (3,), "ranked", retrieved=False, target=0.9)
    assert point.first_layer == 2
    for record in records:
        record.domain = ""
    (careless,) = operating(records, (3,), "ranked", retrieved=False, target=0.9)
    assert careless.first_layer == 1


def test_full_depth_on_retrieved_candidates_is_the_blended_order(reranker: Reranker) -> None:
    docs = texts(2, 20)
    unordered = reranker.rank("river flood", docs, threshold="inf")
    own = np.empty(len(docs))
    for result in unordered:
        own[result.index] = result.score
        assert result.relevance == result.score
    mixed = blended(np.log(own) - np.log1p(-own), retrieval_scores(len(own)))
    results = reranker.rank("river flood", docs, retrieved=True, threshold="inf")
    assert [r.index for r in results] == np.argsort(-mixed, kind="stable").tolist()
    assert [r.index for r in results] != [r.index for r in unordered]
    assert all(a.score >= b.score for a, b in pairwise(results))
    assert [r.relevance for r in results] == pytest.approx([own[r.index] for r in results], abs=1e-9)


@pytest.fixture(scope="module")
def calibration(reranker: Reranker) -> Calibration:
    examples = [Example(f"{WORDS[i]} river", texts(10 + i, 20), frozenset({0, i % 20})) for i in range(12)]
    return calibrate(reranker, examples, ks=(1, 5), target=0.9)


def test_points_keep_their_promise(calibration: Calibration, reranker: Reranker) -> None:
    assert calibration.queries == 6
    assert calibration.fingerprint == reranker.model.fingerprint
    assert calibration.points, "a target of 0.9 leaves room to prune"
    for point in calibration.points:
        assert point.precision >= 0.9 * point.full_precision
        assert 0 < point.evaluations < 1
        assert 1 <= point.first_layer < reranker.model.spec.layers


def test_what_is_saved_is_found_again(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path)
    again = Calibration.load(tmp_path, calibration.fingerprint)
    assert again == calibration
    assert Calibration.load(tmp_path, "another model") is None


def test_a_point_serves_its_own_order_and_mode_and_no_larger_k() -> None:
    points = (
        Operating(5, "ranked", True, 0.5, 3, 1.0, 1.0, 0.8),
        Operating(1, "ranked", False, 0.4, 3, 1.0, 1.0, 0.8),
        Operating(10, "ranked", True, 0.7, 3, 1.0, 1.0, 0.8),
    )
    found = Calibration("f", 0.99, 10, 20, (), points)
    assert found.find(3, "ranked", True) == points[0]
    assert found.find(7, "ranked", True) == points[2]
    assert found.find(11, "ranked", True) is None
    assert found.find(1, "top-k", True) is None
    assert found.find(1, "ranked", False) == points[1]


def test_a_damaged_calibration_hinders_only_those_who_prune(
    calibration: Calibration, reranker: Reranker, tmp_path: Path
) -> None:
    folder, docs = tmp_path / "model", texts(4, 24)
    shutil.copytree(reranker.model.path, folder)
    calibration.save(folder)
    with Reranker(folder, memory="1GB", threshold="inf") as whole:
        expected = whole.rank("river town", docs)
    (folder / FILE).write_bytes(b'{"version": 3, ')
    with pytest.raises(CorruptBlock, match=r"`edge models calibrate` makes a new one.*`--threshold inf` does without"):
        Reranker(folder, memory="1GB")
    with Reranker(folder, memory="1GB", threshold="inf") as damaged:
        assert damaged.rank("river town", docs) == expected
        assert damaged.rank("river town", docs, threshold="inf") == expected
        for threshold in ("auto", 0.3):
            with pytest.raises(CorruptBlock, match="edge models calibrate"):
                damaged.rank("river town", docs, threshold=threshold)
        with pytest.raises(CorruptBlock, match="edge models calibrate"):
            damaged.explain("river town", docs, every_layer=True)


def test_too_little_to_calibrate_on_is_refused(reranker: Reranker) -> None:
    examples = [Example("river", texts(1, 20))] * 7
    with pytest.raises(InputError, match="at least 8"):
        calibrate(reranker, examples)
    with pytest.raises(InputError, match=r"\(0, 1\]"):
        calibrate(reranker, examples * 2, target=1.5)


def test_without_judgements_full_depth_is_the_measure(reranker: Reranker) -> None:
    examples = [Example(f"{WORDS[i]} town", texts(40 + i, 20)) for i in range(8)]
    found = calibrate(reranker, examples, ks=(5,), modes=("ranked",), orders=(False,), target=1.0)
    assert all(point.full_precision == 1.0 for point in found.points)


def test_the_lens_scores_where_calibration_says_so(reranker: Reranker) -> None:
    """After its layers the mean of the tokens is read, after the others the head's token; the results stay those of the
    last layer."""
    spec = reranker.model.spec
    random = np.random.default_rng(0)
    lens = Lens(random.normal(size=(spec.layers, spec.layer.hidden)).astype(np.float32), np.zeros(spec.layers, "f4"))
    found = Calibration(reranker.model.fingerprint, 0.99, 10, 20, (1,), (), lens)
    docs = texts(7, 12)
    plain = reranker.explain("river", docs, threshold="inf", every_layer=True)
    reranker._scorer = Scorer(spec, reranker.engine.head, found)
    try:
        probed = reranker.explain("river", docs, threshold="inf", every_layer=True)
    finally:
        reranker._scorer = Scorer(spec, reranker.engine.head, reranker.calibration)
    for before, after in zip(plain.layers[1:], probed.layers[1:], strict=True):
        assert after.scores.tolist() == before.scores.tolist()
    means = Means(spec, len(docs))
    reranker.engine.run(reranker.tokenize("river", docs), means)
    first = probed.layers[0]
    logits = np.log(first.scores) - np.log1p(-first.scores)
    assert logits == pytest.approx(means.first[first.ids] @ lens.weight[0], abs=1e-4)


class Means:
    """An observer that keeps the mean of every sequence's tokens after the first layer."""

    def __init__(self, spec: ModelSpec, candidates: int) -> None:
        self.first = np.zeros((candidates, spec.layer.hidden))

    def wants(self, layer: int) -> bool:
        return layer == 1

    def collect(self, chunk: Chunk, states: np.ndarray) -> None:
        start = 0
        for candidate, length in zip(chunk.ids.tolist(), chunk.lengths.tolist(), strict=True):
            self.first[candidate] = states[start : start + length].astype(np.float64).mean(axis=0)
            start += length

    def decide(self, layer: int, active: np.ndarray) -> np.ndarray:
        return active[:0]


def calibrated() -> Calibration:
    lens = Lens(np.ones((2, 3), np.float32), np.zeros(2, np.float32))
    points = (
        Operating(5, "ranked", True, 0.5, 3, 1.0, 1.0, 0.8),
        Operating(1, "ranked", True, math.inf, 3, 1.0, 1.0, 1.0),
    )
    return Calibration("f", 0.99, 10, 20, (1,), points, lens)


def test_a_point_that_never_prunes_is_none(tmp_path: Path) -> None:
    calibrated().save(tmp_path)
    found = Calibration.load(tmp_path, "f")
    assert found is not None
    assert [point.k for point in found.points] == [5]
