"""The model of pairs of statements: what it sees of two statements, and that it computes what was fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.models.statements import FLAGS, LONGEST, StatementModel, alike, encode, key, stem, words


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


def test_the_program_computes_what_was_fitted(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from edge.models.statements import save
    from edge.models.training.judge import Network, batch, vocabulary
    from edge.models.training.updates import pairs

    made = list(pairs(300, 7))
    known = vocabulary(made)
    torch.manual_seed(1)
    network = Network(len(known)).eval()
    network.out.weight.data *= 30  # a network that was not fitted tells little apart
    numbers = {key(word): number for number, word in enumerate(known, 1)}
    with torch.no_grad():
        given = batch([encode(words(pair.old), words(pair.new), numbers) for pair in made])
        network.out.bias -= network(*given).mean()
        odds = network(*given)
    weights = {name: array.numpy() for name, array in network.state_dict().items()}
    save(tmp_path / "m.npz", known, weights | {"vectors": weights.pop("vectors.weight")[1:]})
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
    held, others = ({pair.new for pair in pairs(3_000, 1, held) if pair.ends == 1} for held in (True, False))
    assert len(held & others) < 0.2 * len(held)
