"""Calibration: what it replays is what a live pass does, and its points keep the precision they promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge.config import Config
from edge.errors import CorruptBlock, InputError
from edge.models.blending import blended
from edge.models.calibration import FILE, Calibration, Operating
from edge.models.pack import pack
from edge.pruning import Mode
from edge.runtimes.calibration import Example, calibrate, replay
from edge.runtimes.reranker import Reranker

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


@pytest.mark.parametrize("retrieved", [False, True])
@pytest.mark.parametrize("mode", ["ranked", "top-k"])
@pytest.mark.parametrize("threshold", [0.0, 1e-4, 1e-3, math.inf])
def test_a_replay_chooses_what_a_live_pass_chooses(
    reranker: Reranker, mode: Mode, threshold: float, retrieved: bool
) -> None:
    docs = texts(4, 24)  # no two of them have the same score, which the last bit would decide
    live = reranker.explain("river town", docs, 5, mode=mode, threshold=threshold, retrieved=retrieved)
    scores = recorded(reranker, "river town", docs)
    chosen, evaluations = replay(scores, 5, mode, threshold, 1, retrieved=retrieved)
    assert [r.index for r in live.results] == chosen.tolist()
    assert live.stats.evaluations == evaluations


def test_full_depth_on_retrieved_candidates_is_the_blended_order(reranker: Reranker) -> None:
    docs = texts(2, 20)
    unordered = reranker.rank("river flood", docs, threshold="inf")
    own = np.empty(len(docs))
    for result in unordered:
        own[result.index] = result.score
        assert result.relevance == result.score
    mixed = blended(np.log(own) - np.log1p(-own))
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
    found = Calibration("f", 0.99, 10, 20, "head", points)
    assert found.find(3, "ranked", True) == points[0]
    assert found.find(7, "ranked", True) == points[2]
    assert found.find(11, "ranked", True) is None
    assert found.find(1, "top-k", True) is None
    assert found.find(1, "ranked", False) == points[1]


def test_a_broken_file_is_named(calibration: Calibration, tmp_path: Path) -> None:
    calibration.save(tmp_path)
    (tmp_path / FILE).write_bytes(b'{"version": 2, ')
    with pytest.raises(CorruptBlock, match="calibrate again"):
        Calibration.load(tmp_path, calibration.fingerprint)


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
