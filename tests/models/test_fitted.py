"""Small fitted models: logistic ones, the judge of statements, calibrations, and the blending of scores."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import CorruptBlock, InputError
from edge.files.sealed import sealed
from edge.models.blending import (
    COMPARED,
    LONG,
    LONG_WEIGHT,
    WEIGHT,
    prior_logits,
    retrieval_scores,
    retrieved_scores,
    share_of,
    standard,
)
from edge.models.calibration import FILE, Calibration, Forecast, Lens, Measured
from edge.models.evidence import Logistic, fit, log_odds
from edge.models.statements import FLAGS, LONGEST, SortedVocabulary, StatementModel, alike, encode, key, stem, words
from edge.models.training.measures import blended
from edge.runtimes.scoring import CandidatePool


def test_it_separates_what_can_be_separated() -> None:
    rng = np.random.default_rng(0)
    signals = rng.normal(9, 1, (300, 3))
    right = signals[:, 1] + 0.1 * rng.normal(size=300) > 9.2
    model = fit(signals, right)
    assert ((model.probability(signals) > 0.5) == right).mean() > 0.95
    assert abs(model.weights[1]) > 10 * abs(model.weights[0])
    stored = Logistic.from_json(json.loads(json.dumps(model.to_json())))
    assert np.allclose(stored.probability(signals), model.probability(signals), atol=1e-4)
    nothing = np.zeros((10, 1))
    assert fit(nothing, np.arange(10) < 5).probability([[0.0]])[0] == pytest.approx(0.5)
    assert fit(nothing, np.ones(10, bool)).probability([[0.0]])[0] > 0.9
    assert log_odds(0.5) == 0.0
    assert log_odds(0.0) == pytest.approx(-log_odds(1.0)) == pytest.approx(-9.21, abs=0.01)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I don't live here, I'm at 9:30", ["I", "don'", "t", "live", "here", ",", "I'", "m", "at", "9:30"]),
        ("J’habite à Lyon ?", ["J'", "habite", "à", "Lyon", "?"]),
        ("mail jo@x.example or src/app", ["mail", "jo@x.example", "or", "src/app"]),
        ("a_b-c", ["a", "b", "c"]),
        ("", []), ("word " * 99, ["word"] * LONGEST),
    ],
)  # fmt: skip
def test_a_text_has_these_words(text: str, found: list[str]) -> None:
    assert words(text) == found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("drink", "drinking", True), ("moved", "moving", True), ("thriller", "thrillers", True),
        ("user", "usual", False), ("on", "one", False), ("8080", "8081", False), ("live", "livestock", False),
    ],
)  # fmt: skip
def test_words_of_one_stem(one: str, other: str, same: bool) -> None:
    assert alike(one, other) is alike(other, one) is same


def test_what_is_seen_of_a_pair() -> None:
    vocabulary = {key("live"): 1, key(stem("moving")): 2}
    pair = encode(words("I live in Oslo"), words("Moving , I lived in Rome 2"), vocabulary)
    assert pair.ids.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert pair.stems.tolist() == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert pair.places.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]
    told = {name: np.flatnonzero(pair.flags[:, number]).tolist() for number, name in enumerate(FLAGS)}
    assert told == {
        "new": [4, 5, 6, 7, 8, 9, 10], "same": [0, 2, 6, 8], "alike": [1, 7], "capital": [3, 6, 9], "number": [10],
        "form": [], "unknown": [0, 2, 3, 5, 6, 7, 8, 9, 10], "first": [0, 4], "mark": [5],
    }  # fmt: skip
    assert np.argwhere(np.triu(pair.common)).tolist() == [[0, 6], [1, 7], [2, 8]]
    keys = np.sort(np.array([key(word) for word in ("live", "moved", "zoo", "a")], np.uint32))
    found = SortedVocabulary(keys)
    assert [found.get(int(one), 0) for one in keys] == [1, 2, 3, 4]
    assert [found.get(int(one), 0) for one in (*(keys + 1), 0, 2**32 - 1)] == [0] * 6


def test_the_program_computes_what_was_fitted(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from edge.models.training import judge
    from edge.models.training.packing import save_statements
    from edge.models.training.updates import pairs, spoken

    made = list(pairs(300, 7))
    spelled = [*sorted(spoken())[::2], "zanzibar"]
    vectors = np.random.default_rng(2).normal(size=(len(spelled), 40)).astype(np.float32)
    some = judge.known(spelled, vectors, made)
    torch.manual_seed(1)
    network = judge.Network(some).eval()
    network.out.weight.data *= 30  # a network that was not fitted tells little apart
    with torch.no_grad():
        given = judge.batch([encode(words(pair.old), words(pair.new), some.numbers) for pair in made])
        network.out.bias -= network(*given).mean()
        odds = network(*given)
    weights = {name: array.numpy() for name, array in network.state_dict().items() if name != "own.weight"}
    save_statements(tmp_path / "m.npz", list(some.numbers), weights | {"vectors": judge.table(network)})
    found = StatementModel.open(tmp_path / "m.npz").probabilities([(pair.old, pair.new) for pair in made])
    assert np.abs(found - torch.sigmoid(odds).numpy()).max() < 0.05
    assert found.std() > 0.1


def test_the_pairs_that_are_made() -> None:
    from edge.models.training.updates import LANGUAGES, pairs

    made = list(pairs(3_000, 1))
    assert made == list(pairs(3_000, 1))
    assert made != list(pairs(3_000, 2))
    assert {pair.language for pair in made} == set(LANGUAGES)
    assert 0.25 < sum(pair.ends for pair in made) / len(made) < 0.5
    assert not [pair for pair in made if set("{}^~_") & set(pair.old + pair.new)]


def calibration() -> Calibration:
    generator = np.random.default_rng(0)
    lens = Lens(generator.normal(size=(3, 8)).astype(np.float32), generator.normal(size=3).astype(np.float32))
    points = (Measured(5, 20, "ranked", True, 1.0, 1.0, 1.0, 0.8),)
    lines = ((0.0, 0.5, 0.9, 1.0), (0.3, 0.1, 0.0, 0.0), (0.1, 0.2, 0.0, 0.0))
    margins = {"ranked": ((0.1, 3.0), (0.5, 2.0)), "top-k": ((0.1, 3.25),)}
    alone = Forecast(*lines, (math.inf, math.inf, 0.4, 0.0), margins)
    blended = Forecast(*lines, (1.4, 1.2, 0.4, 0.0), {"ranked": ((0.1, 2.0),), "top-k": ((0.1, 2.25),)})
    return Calibration("f", 0.99, 10, 20, (1, 2), alone, blended, 1.7, points, lens)


FORECAST = {"slopes": [0, 1], "pulls": [0, 0], "offsets": [0, 0], "errors": [None, 0], "margins": {"top-k": [[0.5, 2]]}}


@pytest.mark.parametrize("content", ["", "{}", "{", "[]", "7", "null", '"x"', "\x00", "[" * 100_000, "\ud800"])
def test_what_is_no_calibration_is_refused_with_the_way_out(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content, encoding="utf-8", errors="surrogatepass")
    with pytest.raises(
        CorruptBlock, match=r"calibration\.json is damaged: .*; `edge models calibrate` makes a new one"
    ):
        Calibration.load(tmp_path, "f")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 3}, "is of another version"),
        ({"points": 7}, "is no calibration"),
        ({"points": [{"k": 1}]}, "is no calibration"),
        ({"alone": 1}, "is no calibration"),
        ({"alone": {}}, "is no calibration"),
        ({"blended": {**FORECAST, "errors": ["wide", 0.0]}}, "is no calibration"),
        ({"blended": {**FORECAST, "errors": [0.0]}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": 2.0}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": {"ranked": []}}}, "is no calibration"),
        ({"blended": {**FORECAST, "margins": {"ranked": [[0.5, 1], [0.1, 2]]}}}, "is no calibration"),
        ({"lens": {"layers": 3, "hidden": 8, "weight": "AAAA", "bias": "AAAA"}}, "is no calibration"),
        ({"lens": 5}, "is no calibration"),
        ({"more": 5}, "is no calibration"),
    ],
)
def test_what_another_program_sealed_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    calibration().save(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    del content["sha256"]
    (tmp_path / FILE).write_bytes(sealed({**content, **change}))
    with pytest.raises(CorruptBlock, match=message):
        Calibration.load(tmp_path, "f")


def test_errors_and_probes_come_back_bit_for_bit_to_their_model_alone(tmp_path: Path) -> None:
    saved = calibration()
    saved.save(tmp_path)
    found = Calibration.load(tmp_path, "f")
    assert found == saved
    assert np.array_equal(found.lens.weight, saved.lens.weight)
    assert np.array_equal(found.lens.bias, saved.lens.bias)
    assert found.lens.weight.flags.writeable  # the arrays are the reader's own, not views of the file's text
    assert Calibration.load(tmp_path, "another") is None
    assert Calibration.load(tmp_path / "nowhere", "f") is None


def test_no_single_damage_gives_other_values(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    data = (tmp_path / FILE).read_bytes()
    chance = random.Random(0)
    for _ in range(600):
        at, bit = chance.randrange(len(data)), 1 << chance.randrange(8)
        (tmp_path / FILE).write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with pytest.raises(CorruptBlock):
            Calibration.load(tmp_path, "f")
    for cut in (*range(40), *(chance.randrange(len(data)) for _ in range(40))):
        (tmp_path / FILE).write_bytes(data[:cut])
        with pytest.raises(CorruptBlock):
            Calibration.load(tmp_path, "f")


def test_shift_and_scale_do_not_matter() -> None:
    logits, retrieved = np.random.default_rng(3).normal(size=(2, 20))
    assert np.allclose(blended(logits, retrieved, 0.4), blended(7 * logits - 3, 0.01 * retrieved + 5, 0.4))
    for scale in (1e-30, 1e307):
        assert np.allclose(blended(logits, retrieved, 0.4), blended(logits, scale * retrieved, 0.4))
    with pytest.raises(ValueError, match=r"1\.5"):
        blended(logits, retrieved, 1.5)


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        ([0.1, 0.2], "2 scores for 3"),
        ([0.1, np.nan, 0.2], "not finite"),
        ("abc", "are numbers"),
        (["a", "b", "c"], "are numbers"),
    ],
)
def test_scores_that_are_not_the_candidates_are_refused(scores: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        retrieved_scores(3, scores)
    assert retrieved_scores(3, False) is None
    assert retrieved_scores(3, True).tolist() == retrieval_scores(3).tolist()  # type: ignore[union-attr]
    assert retrieved_scores(3, [0.5, 0.9, -1.0]).tolist() == [0.5, 0.9, -1.0]  # type: ignore[union-attr]


def test_a_candidates_part_is_the_same_in_pools_of_all_sizes() -> None:
    """Also if fewer of them are judged than retrieval scored."""
    scores = np.sort(np.random.default_rng(4).exponential(size=3 * COMPARED))[::-1]
    whole = prior_logits(scores)
    for count in (COMPARED, COMPARED + 1, 2 * COMPARED):
        assert prior_logits(scores[:count]) == pytest.approx(whole[:count])
    few, many = (CandidatePool(5, retrieved=scores[:count].tolist()) for count in (COMPARED, 3 * COMPARED))
    ids, logits = np.arange(5), np.arange(5.0)
    assert few.see(ids, logits) == pytest.approx(many.see(ids, logits))
    assert standard(scores)[:COMPARED].mean() == pytest.approx(0)


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=30), st.floats(0.05, 1.0))
def test_prior_logits_order_a_pool_as_the_blend_does(values: list[float], weight: float) -> None:
    logits = np.array(values)
    if logits.std() <= 1e-6:
        logits = np.arange(len(values), dtype=float)
    retrieved = retrieval_scores(len(logits))
    mixed = blended(logits, retrieved, weight)
    shifted = logits + logits.std() * prior_logits(retrieved, weight)
    assert np.allclose(weight * (shifted - shifted.mean()) / logits.std(), mixed - mixed.mean(), atol=1e-7)


def test_the_share_falls_with_the_sentences_of_the_query() -> None:
    shares = [share_of("What holds here? " * count) for count in range(8)]
    assert shares[0] == shares[1] == WEIGHT
    assert shares[LONG] == shares[-1] == LONG_WEIGHT
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == LONG
    one = "I need to know how much the rent was in May, who paid it and when."
    assert share_of(one) == WEIGHT, "commas end no sentence"
    shares = [share_of("word " * count) for count in range(200)]  # words count where no full stop does
    assert shares[0] == shares[20] == WEIGHT
    assert shares[-1] == LONG_WEIGHT
    assert shares == sorted(shares, reverse=True)
