"""How near a question's words are to a text's words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edge.apps.assistant.word_nearness import WordNearness, content_words

PLACES = {"suitcase": 0.0, "bag": 0.4, "airport": 1.5, "counter": 1.2, "costs": 3.0, "409": 0.1, "400": 0.1}
"""Angles of words."""


class Embedder:
    """Gives words their vectors, and remembers the requests."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, words: Sequence[str]) -> np.ndarray:
        self.asked.append(list(words))
        angles = np.array([PLACES[word] for word in words])
        return np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)


def test_each_word_of_the_question_has_its_nearest() -> None:
    embed = Embedder()
    nearness = WordNearness("What does a suitcase do at the airport?")
    nearness.learn(["The bag costs more at the counter."], embed)
    near = nearness.nearest("The bag costs more at the counter.")
    assert near == pytest.approx([np.cos(0.4), np.cos(0.3)], abs=1e-6)
    assert nearness.nearest("The bag.") == pytest.approx([np.cos(0.4), np.cos(1.1)], abs=1e-6)
    assert nearness.nearest("more of it").tolist() == [0.0, 0.0]
    nearness.learn(["The bag, the counter, a suitcase."], embed)
    assert embed.asked == [["suitcase", "airport", "bag", "costs", "counter"], ["suitcase"]], "each word once"


def test_repeated_words_are_counted_whatever_their_case() -> None:
    nearness = WordNearness("How heavy is a Suitcase at the airport?")
    assert nearness.asked == ["heavy", "suitcase", "airport"]
    assert nearness.repeated("SUITCASE, suitcase!") == pytest.approx(1 / 3)
    assert nearness.repeated("") == 0.0


def test_a_question_of_empty_words_asks_no_embedder() -> None:
    embed = Embedder()
    nearness = WordNearness("What is it?")
    nearness.learn(["The bag."], embed)
    assert embed.asked == []
    assert nearness.nearest("The bag.").tolist() == [0.0]
    assert nearness.repeated("The bag.") == 0.0


def test_words_are_cut_at_marks_and_keep_their_hyphens() -> None:
    assert content_words("Is the Wi-Fi_password “Ada's”?") == ["wi-fi", "password", "ada's"]


def test_a_number_is_near_to_itself_alone() -> None:
    embed = Embedder()
    nearness = WordNearness("What is 409 at the airport?")
    nearness.learn(["400 at the counter", "409 at the counter"], embed)
    assert nearness.mean("400 at the counter") == pytest.approx(np.cos(0.3) / 2, abs=1e-6)
    assert nearness.mean("409 at the counter") == pytest.approx((1 + np.cos(0.3)) / 2, abs=1e-6)
