"""Calibration: its replay equals a live pass, and its points keep the precision they promise."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from edge.config import Config
from edge.errors import CorruptBlock, InputError
from edge.models.blending import WEIGHT, Retrieved, prior_logits, retrieval_scores, standard
from edge.models.calibration import FILE, Calibration, Forecast, Lens
from edge.models.pack import pack
from edge.models.spec import ModelSpec
from edge.models.training.measures import blended
from edge.runtimes.calibration import MARGINS, Example, RecordedScores, calibrate, find_margins, measure, replay
from edge.runtimes.passes import Job
from edge.runtimes.reranker import Ranked, Reranker
from edge.runtimes.scoring import Scorer
from edge.streaming.hidden_states import TokenChunk
from edge.streaming.pruning import Mode

GOLDEN = Path(__file__).parents[1] / "golden" / "bert-reranker"
WORDS = [f"word{i}" for i in range(37)] + ["river", "flood", "spring", "town"]


def texts(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    folder = tmp_path_factory.mktemp("calibration")
    pack(GOLDEN, folder / "pack", "fp32").close()
    with Reranker(folder / "pack", config=Config(memory=10**11, scratch_dir=str(folder))) as opened:
        yield opened


def recorded(reranker: Reranker, query: str, docs: list[str]) -> np.ndarray:
    """Logits [layers, candidates] after every layer, looked at without pruning."""
    ranking = reranker.explain(query, docs, threshold="inf", every_layer=True)
    probabilities = np.stack([report.scores[np.argsort(report.ids)] for report in ranking.layers if report.layer])
    return np.log(probabilities) - np.log1p(-probabilities)


ERRORS = (0.04, 0.02, 0.01, 0.0)


def plain(errors: Sequence[float], margin: float = 1.0, first: float = math.inf) -> Forecast:
    """A forecast that takes a layer's logits for the final ones; `first` is the error before the first layer."""
    layers = len(errors)
    zeros = (0.0,) * (layers + 1)
    margins = {"ranked": ((1.0, margin),), "top-k": ((1.0, margin),)}
    return Forecast((0.0, *(1.0,) * layers), zeros, zeros, (first, *errors), margins)


def calibration_of(
    alone: Forecast, blended: Forecast | None = None, *, spread: float = 1.0, fingerprint: str = "f"
) -> Calibration:
    return Calibration(fingerprint, 0.99, 10, 20, (), alone, blended or alone, spread, ())


def known(reranker: Reranker, margin: float, spread: float = 0.05) -> Calibration:
    """A calibration whose scores are the head's own, and that knows something of retrieved texts from the beginning."""
    errors = ERRORS[-reranker.model.spec.layers :]
    blended = plain(errors, margin, 0.06)
    blended = replace(blended, pulls=(0.01, *blended.pulls[1:]))
    return calibration_of(plain(errors, margin), blended, spread=spread, fingerprint=reranker.model.fingerprint)


@pytest.fixture
def calibrated_by(reranker: Reranker) -> Iterator[Callable[[Calibration], None]]:
    before = reranker.calibration

    def use(calibration: Calibration | None) -> None:
        reranker.calibration = calibration
        reranker._scorer = Scorer(reranker.model.spec, reranker.engine.head, calibration)

    yield use
    use(before)


@pytest.mark.parametrize("retrieved", [False, True, np.linspace(0, 1, 24).tolist()], ids=["none", "order", "scores"])
@pytest.mark.parametrize("mode", ["ranked", "top-k"])
@pytest.mark.parametrize("margin", [0.25, 1.0, 4.0])
def test_a_replay_chooses_what_a_live_pass_chooses(
    reranker: Reranker, calibrated_by: Callable[[Calibration], None], mode: Mode, margin: float, retrieved: Retrieved
) -> None:
    docs = texts(4, 24)  # no two of them have the same score, which the last bit would decide
    found = known(reranker, margin)
    calibrated_by(found)
    live = reranker.explain("river town", docs, 5, mode=mode, retrieved=retrieved)
    assert live.margin == margin
    scores = recorded(reranker, "river town", docs)
    record = RecordedScores(scores, None, retrieved)
    outcome = replay(record, 5, mode, margin, found, retrieved=retrieved is not False)
    assert [r.index for r in live.results] == outcome.chosen.tolist()
    assert live.stats.evaluations == outcome.evaluations


@pytest.mark.parametrize("retrieved", [False, True, np.linspace(0, 1, 24).tolist()], ids=["none", "order", "scores"])
def test_pruning_leaves_order_and_scores_of_the_others_exact(
    reranker: Reranker, calibrated_by: Callable[[Calibration], None], retrieved: Retrieved
) -> None:
    calibrated_by(known(reranker, 0.25))
    for seed in range(6):
        docs = texts(seed, 24)
        pruned = reranker.explain("river town", docs, 4, retrieved=retrieved)
        assert pruned.stats.evaluations < pruned.stats.evaluations_full
        assert pruned.exact == 4
        full = {r.index: r for r in reranker.rank("river town", docs, retrieved=retrieved, threshold="inf")}
        places = {index: place for place, index in enumerate(full)}
        survivors = [r.index for r in pruned.results]
        assert survivors == sorted(survivors, key=lambda index: places[index])
        for result in pruned.results:
            assert result.score == pytest.approx(full[result.index].score, abs=1e-6)
            assert result.relevance == pytest.approx(full[result.index].relevance, abs=1e-6)


@pytest.mark.parametrize("retrieved", [False, True], ids=["none", "order"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_dropped_candidates_are_judged_to_the_end_where_the_others_are_not_enough(
    reranker: Reranker, calibrated_by: Callable[[Calibration | None], None], retrieved: Retrieved, calibrated: bool
) -> None:
    calibrated_by(known(reranker, 0.25) if calibrated else None)
    threshold = None if calibrated else 0.0
    docs = texts(2, 24)
    full = reranker.rank("river town", docs, retrieved=retrieved, threshold="inf")
    seen: list[int] = []

    def enough(found: Sequence[Ranked]) -> bool:
        seen.append(len(found))
        return False

    ranking = reranker.explain("river town", docs, 4, retrieved=retrieved, threshold=threshold, enough=enough)
    assert 4 <= seen[0] < 24
    assert [r.index for r in ranking.results] == [r.index for r in full]
    assert [r.score for r in ranking.results] == pytest.approx([r.score for r in full], abs=1e-6)
    assert ranking.exact == 24
    assert ranking.stats.evaluations > ranking.stats.evaluations_full - 24 * reranker.model.spec.layers
    few = reranker.explain("river town", docs, 4, retrieved=retrieved, threshold=threshold, enough=lambda found: True)
    assert len(few.results) == few.exact == seen[0]
    assert few.stats.evaluations < few.stats.evaluations_full


RELEVANT = frozenset({0, 3, 7})


def noisy(seed: int, queries: int, noise: tuple[float, ...], domains: Sequence[str] = ("",)) -> list[RecordedScores]:
    random = np.random.default_rng(seed)
    records = []
    for i in range(queries):
        final = random.normal(size=20)
        final[list(RELEVANT)] += 1.0
        rows = np.stack([final + deviation * random.normal(size=20) for deviation in noise])
        records.append(RecordedScores(rows, RELEVANT, domain=domains[i % len(domains)]))
    return records


@pytest.mark.parametrize("mode", ["ranked", "top-k"])
def test_margins_are_the_smallest_that_keep_the_target_in_every_domain(mode: Mode) -> None:
    noise = (1.0, 0.4, 0.2, 0.0)
    records = noisy(3, 24, noise, ("a", "b", "c"))
    calibration = calibration_of(plain(noise))
    found = find_margins(records, (1, 2, 5), (10, 20), mode, calibration, retrieved=False, target=0.95)
    assert [share for share, _ in found] == [0.05, 0.1, 0.2, 0.35, 0.5]
    cases = {0.05: [(1, 20)], 0.1: [(1, 10), (2, 20)], 0.2: [(2, 10)], 0.35: [(5, 20)], 0.5: [(5, 10)]}

    def kept(share: float, margin: float) -> float:
        parts = [[record for record in records if record.domain == domain] for domain in "abc"]
        return min(
            statistics.mean(
                measure(part, k, mode, margin, calibration, candidates=n, retrieved=False).overlap
                for k, n in cases[share]
            )
            for part in parts
        )

    assert any(margin > MARGINS[0] for _, margin in found), "the smallest margin of all proves nothing"
    for share, margin in found:
        assert kept(share, margin) >= 0.95
        assert all(kept(share, smaller) < 0.95 for smaller in MARGINS if smaller < margin)


def test_wider_margins_cost_more_and_miss_less() -> None:
    noise = (1.0, 0.4, 0.2, 0.0)
    records = noisy(5, 20, noise)
    found = calibration_of(plain(noise))
    rows = [measure(records, 5, "ranked", m, found, candidates=20, retrieved=False) for m in (0.5, 1.5, 4.0, 40.0)]
    assert [r.evaluations for r in rows] == sorted(r.evaluations for r in rows)
    assert [r.overlap for r in rows] == sorted(r.overlap for r in rows)
    assert rows[-1].overlap == rows[-1].evaluations == 1.0
    assert rows[-1].precision == rows[-1].full_precision
    forecast = replace(plain((0.0,)), margins={"ranked": ((0.1, 2.0), (0.5, 1.0))})
    assert [forecast.margin("ranked", k, n) for k, n in ((1, 60), (3, 10), (9, 10))] == [2.0, pytest.approx(1.5), 1.0]
    assert forecast.margin("top-k", 3, 10) is None


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
    layers = reranker.model.spec.layers
    assert calibration.queries == 6
    assert calibration.fingerprint == reranker.model.fingerprint
    assert calibration.spread > 0
    assert len(calibration.points) == 2 * 2 * 2
    for point in calibration.points:
        assert 0 < point.evaluations <= 1
    for retrieved in (False, True):
        found = calibration.forecast(retrieved=retrieved)
        for column in (found.slopes, found.pulls, found.offsets, found.errors):
            assert len(column) == layers + 1
        assert (found.slopes[-1], found.pulls[-1], found.offsets[-1], found.errors[-1]) == (1.0, 0.0, 0.0, 0.0)
        assert math.isfinite(found.errors[0]) == retrieved
        assert set(found.margins) == {"ranked", "top-k"}
        for mode, margins in found.margins.items():
            assert all(MARGINS[0] <= margin <= MARGINS[-1] for _, margin in margins)
            kept = [p.overlap for p in calibration.points if p.mode == mode and p.retrieved == retrieved]
            assert np.mean(kept) >= 0.85 or margins[-1][1] == MARGINS[-1]


@pytest.mark.parametrize("mode", ["ranked", "top-k"])
def test_texts_that_retrieval_put_too_far_behind_are_not_read(
    reranker: Reranker, calibrated_by: Callable[[Calibration], None], mode: Mode
) -> None:
    calibrated_by(known(reranker, 0.25, spread=5.0))
    docs = texts(9, 24)
    scores = [1.0] * 3 + [0.0] * 21
    found = reranker.explain("river town", docs, 3, mode=mode, retrieved=scores)
    assert found.stats.sequences == 3
    assert found.stats.evaluations_full == 24 * reranker.model.spec.layers
    assert found.layers[0].layer == 0
    assert sorted(found.layers[0].decision.dropped.tolist()) == list(range(3, 24))
    full = reranker.rank("river town", docs, 3, retrieved=scores, threshold="inf")
    if mode == "ranked":  # else they stop early, with the relevance that is known then
        assert [(r.index, r.relevance) for r in found.results] == [(r.index, pytest.approx(r.relevance)) for r in full]
    assert {r.index for r in found.results} == {r.index for r in full}
    deeper = reranker.explain("river town", docs, 3, retrieved=scores, enough=lambda seen: len(seen) > 3)
    assert [r.index for r in deeper.results] == [
        r.index for r in reranker.rank("river town", docs, retrieved=scores, threshold="inf")
    ]
    with pytest.raises(InputError, match="document 23 is not valid Unicode"):
        reranker.rank("river town", [*docs[:-1], "half \ud800"], 3, retrieved=scores)


@pytest.mark.parametrize("every", [0, 1, 2], ids=["all", "half", "third"])
def test_retrieval_alone_places_what_the_model_cannot_read(
    reranker: Reranker, calibrated_by: Callable[[Calibration], None], every: int
) -> None:
    """Their scores are those that are expected before the first layer; pruning changes nothing in the results."""
    docs = texts(6, 24)
    usual = float(recorded(reranker, "river town", docs)[-1].mean())
    found = known(reranker, 40.0)
    blended = replace(found.blended, offsets=(usual, *found.blended.offsets[1:]))
    calibrated_by(replace(found, blended=blended))
    scores = np.random.default_rng(6).normal(size=24).tolist()
    unread = [every == 0 or number % (every + 1) == 0 for number in range(24)]
    full = reranker.explain("river town", docs, retrieved=scores, threshold="inf", unread=unread).results
    plain_scores = {r.index: r for r in reranker.rank("river town", docs, retrieved=scores, threshold="inf")}
    places, share = standard(np.array(scores)), WEIGHT
    for result in full:
        assert result.relevance == plain_scores[result.index].relevance
        if not unread[result.index]:
            assert result.score == plain_scores[result.index].score
            continue
        expected = usual + 0.01 * places[result.index] + 0.05 * prior_logits(np.array(scores), share)[result.index]
        assert result.score == pytest.approx(1 / (1 + math.exp(-expected)), abs=1e-9)
    pruned = reranker.explain("river town", docs, 5, retrieved=scores, unread=unread)
    assert [(r.index, r.score) for r in pruned.results] == [(r.index, r.score) for r in full[:5]]
    if every == 0:
        assert pruned.stats.sequences == 5


def test_scores_of_a_long_query_are_told_apart(
    reranker: Reranker, calibrated_by: Callable[[Calibration], None]
) -> None:
    """Retrieval decides nearly alone there; on the scale of the logits its part would fill the range of scores."""
    calibrated_by(known(reranker, 4.0, spread=2.0))
    query = " ".join(["The river is high in spring."] * 6)
    docs = texts(5, 24)
    scores = np.linspace(1.0, 0.0, 24).tolist()
    found = reranker.rank(query, docs, retrieved=scores)
    assert 0.001 < found[-1].score < found[0].score < 0.9999
    assert len({r.score for r in found}) == 24


def test_a_damaged_calibration_hinders_only_those_who_prune(
    calibration: Calibration, reranker: Reranker, tmp_path: Path
) -> None:
    folder, docs = tmp_path / "model", texts(4, 24)
    shutil.copytree(reranker.model.path, folder)
    calibration.save(folder)
    with Reranker(folder, memory="10GB", threshold="inf") as whole:
        expected = whole.rank("river town", docs)
    (folder / FILE).write_bytes(b'{"version": 3, ')
    with pytest.raises(CorruptBlock, match=r"`edge models calibrate` makes a new one.*`--threshold inf` does without"):
        Reranker(folder, memory="10GB")
    with Reranker(folder, memory="10GB", threshold="inf") as damaged:
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
    found = calibrate(reranker, [Example(f"{WORDS[i]} town", texts(40 + i, 20)) for i in range(8)], ks=(5,), target=1.0)
    assert all(point.full_precision == 1.0 for point in found.points), "without judgements full depth is the measure"


def test_the_lens_scores_where_calibration_says_so(reranker: Reranker) -> None:
    """After its layers the mean of the tokens is read, after the others the head's token; the results stay those of the
    last layer."""
    spec = reranker.model.spec
    random = np.random.default_rng(0)
    lens = Lens(random.normal(size=(spec.layers, spec.layer.hidden)).astype(np.float32), np.zeros(spec.layers, "f4"))
    found = replace(known(reranker, 1.0), lens_layers=(1,), lens=lens)
    docs = texts(7, 12)
    untouched = reranker.explain("river", docs, threshold="inf", every_layer=True)
    reranker._scorer = Scorer(spec, reranker.engine.head, found)
    try:
        probed = reranker.explain("river", docs, threshold="inf", every_layer=True)
    finally:
        reranker._scorer = Scorer(spec, reranker.engine.head, reranker.calibration)
    for before, after in zip(untouched.layers[1:], probed.layers[1:], strict=True):
        assert after.scores.tolist() == before.scores.tolist()
    means = Means(spec, len(docs))
    reranker.engine.run(Job(docs, lambda: means, query="river"))
    first = next(report for report in probed.layers if report.layer == 1)
    logits = np.log(first.scores) - np.log1p(-first.scores)
    assert logits == pytest.approx(means.first[first.ids] @ lens.weight[0], abs=1e-4)


class Means:
    """An observer that keeps the mean of every sequence's tokens after the first layer."""

    def __init__(self, spec: ModelSpec, candidates: int) -> None:
        self.first = np.zeros((candidates, spec.layer.hidden))

    def wants(self, layer: int) -> bool:
        return layer == 1

    def collect(self, chunk: TokenChunk, states: np.ndarray) -> None:
        start = 0
        for candidate, length in zip(chunk.ids.tolist(), chunk.lengths.tolist(), strict=True):
            self.first[candidate] = states[start : start + length].astype(np.float64).mean(axis=0)
            start += length

    def decide(self, layer: int, active: np.ndarray) -> np.ndarray:
        return active if layer == 0 else active[:0]
