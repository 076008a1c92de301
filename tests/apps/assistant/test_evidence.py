"""Whether passages answer a question: signals of their units, and the model that was fitted on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from bench.evidence import errors, reliability

from edge.apps.assistant.answer import notices
from edge.apps.assistant.assistant import AnswerStream, Turns, Writing
from edge.apps.assistant.calibrating import JudgedUnit, fitted_on
from edge.apps.assistant.evidence import (
    SIGNALS,
    UnitJudge,
    UnitReading,
    Window,
    WordNearness,
    document_of,
    pair_name,
    signals,
)
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.question import content_words
from edge.apps.assistant.units import Unit
from edge.apps.collection.hits import Hit, Stages
from edge.errors import CorruptBlock
from edge.files.sealed import write_sealed
from edge.models import evidence
from edge.models.evidence import Evidence, Logistic, log_odds, save
from edge.models.packed import PackedModel

NAME = pair_name("tiny")
RESULTS = ((0.9, True), (0.3, False))


def window(relevance: float, cosine: float, passage: int = 0, **words: Any) -> Window:
    return Window(Unit("text", "sentence", 0, 4), passage, relevance, cosine, **words)


def test_signals_are_those_of_the_best_unit(hit: Callable[..., Hit]) -> None:
    hits = [
        hit(1, "a", stages=Stages(reranker=0.2)),
        hit(2, "b", stages=Stages(reranker=0.9)),
    ]
    windows = [window(0.5, 0.6, repeated=0.25, least_near=0.4), window(0.4, 0.2), window(0.01, 0.1, 1, least_near=0.9)]
    found = dict(zip(SIGNALS, signals(windows, hits), strict=True))
    assert found["passage"] == pytest.approx(log_odds(0.9)), "of the best passage, wherever the best unit stands"
    assert found["cosine_lead"] == pytest.approx(0.6 - 0.15)
    assert (found["least_near"], found["repeated"]) == (0.4, 0.25)
    assert found["unit"] == pytest.approx(log_odds(0.5)), "of the best unit"
    assert found["value"] == 0.0
    assert found["file_lead"] == 5.0, "both passages are of one file"
    other = [hits[0], hit(2, "b", file=2)]
    lead = signals([window(0.5, 0.6), window(0.5, 0.5, 1)], other)[SIGNALS.index("file_lead")]
    assert lead == pytest.approx(1.18), "the weight of a tenth of a cosine"
    assert signals([window(0.5, 0.6, value=-1)], hits)[SIGNALS.index("value")] == -1.0
    assert len(signals([], hits)) == len(SIGNALS)


def test_units_near_to_the_question_in_their_words_stand_above_short_ones() -> None:
    whole = Window(Unit("Your bag may weigh 23 kg, a second one costs 45 euros.", "item", 0, 4), 0, 0.01, 0.4, 0.6)
    short = Window(Unit("Two AA cells.", "sentence", 0, 4), 0, 0.05, 0.2, 0.3)
    assert whole.score > short.score, "though the reranker prefers what could stand below any question"


def model(**changes: Any) -> Evidence:
    values = {
        "signals": SIGNALS, "model": Logistic((0.0, 9.0) + (0.0,) * 6, (0.0, 0.1) + (0.0,) * 5, (0.1,) * 7),
        "threshold": 0.5, "embedder": "tiny", "examples": 10,
    }  # fmt: skip
    return Evidence(**{**values, **changes})


def test_a_model_is_stored_for_its_weights_and_signals_only(tmp_path: Path) -> None:
    abc, abd, nowhere = (
        cast(PackedModel, SimpleNamespace(path=path, fingerprint=name))
        for path, name in ((tmp_path, "abc"), (tmp_path, "abd"), (tmp_path / "nowhere", "abc"))
    )
    save(abc, {NAME: model()})
    save(abc, {"other": model(threshold=0.7)})
    assert evidence.load(abc, NAME, SIGNALS) == model()
    assert evidence.load(abd, NAME, SIGNALS) is None
    assert evidence.load(abc, NAME, SIGNALS[1:]) is None
    assert evidence.load(nowhere, NAME, SIGNALS) is None
    save(abd, {NAME: model()})
    assert evidence.load(abd, "other", SIGNALS) is None, "it was fitted on other weights"
    (tmp_path / evidence.FILE).write_text("{")
    with pytest.raises(CorruptBlock):
        evidence.load(abc, NAME, SIGNALS)
    write_sealed(tmp_path / evidence.FILE, {"fingerprint": "abc", "models": {NAME: {"signals": 1}}})
    with pytest.raises(CorruptBlock, match="fit it again"):
        evidence.load(abc, NAME, SIGNALS)


class Models:
    """A collection whose reranker and embedder say the same of every text."""

    def __init__(self, folder: Path, cosine: float) -> None:
        self.reranker = SimpleNamespace(model=SimpleNamespace(path=folder, fingerprint="abc"))
        self.embedder = SimpleNamespace(model=SimpleNamespace(name="tiny"))
        self.models = SimpleNamespace(floor=lambda: 0.0)
        self._cosine = cosine

    def relevance(self, query: str, texts: list[str]) -> list[float]:
        return [0.5] * len(texts)

    def embed_queries(self, texts: list[str]) -> np.ndarray:
        rows = np.zeros((len(texts), 2), np.float32)
        rows[0, 0] = 1
        rows[1:, 0] = np.where(["floods" in text for text in texts[1:]], self._cosine, 0.1)
        return rows


@pytest.mark.parametrize(("cosine", "found"), [(0.9, True), (0.1, False)])
def test_hits_answer_a_question_if_the_model_says_so(
    tmp_path: Path, hit: Callable[..., Hit], cosine: float, found: bool
) -> None:
    hits = [hit(1, "It floods in spring. Nobody works there.", stages=Stages(reranker=0.5))]
    models: Any = Models(tmp_path, cosine)
    assert UnitJudge(models).probability("when?", hits) is None
    save(models.reranker.model, {NAME: model()})
    judge = UnitJudge(models)
    judged = judge.probability("when?", hits)
    assert judged is not None
    assert (judged[0] >= judged[1]) is found
    assert judge.doubts("when?") is (judged[0] < judged[2])
    assert not judge.doubts("where?"), "it was not judged"
    assert UnitJudge(models).probability("when?", []) is None
    models.embedder.model.name = "another"
    assert UnitJudge(models).probability("when?", hits) is None


@pytest.mark.parametrize(
    ("judged", "least", "kept"),
    [(None, None, True), (None, 0.99, False), ((0.4, 0.5, 0.45), None, False), ((0.6, 0.5, 0.45), None, True),
     ((0.6, 0.5, 0.45), 0.7, False), ((0.4, 0.5, 0.45), 0.3, True)],
)  # fmt: skip
def test_passages_count_where_they_answer(
    steps: Any, generator: Any, library: Any, judged: Any, least: float | None, kept: bool
) -> None:
    library.judged = judged
    made = steps(generator(str), min_relevance=least)
    assert bool(made.retrieve("When does the river Ombra flood the mill?")) is kept
    assert made.needed == (least if least is not None else 0.1 if judged is None else 0.5)
    if judged is not None:
        assert made.rounds[0].best == judged[0]


@pytest.mark.parametrize(
    ("judged", "uncertain"),
    [(None, False), ((0.2, 0.3, 0.45), False), ((0.4, 0.3, 0.45), True), ((0.6, 0.3, 0.45), False)],
)
def test_an_answer_from_doubtful_passages_is_shown_with_a_warning(
    steps: Any, generator: Any, library: Any, judged: Any, uncertain: bool
) -> None:
    """A refusal is no answer, and without a fitted model nothing is known."""
    library.judged = judged
    made = steps(generator(lambda *given: "In spring [1]."), min_relevance=None)
    question = "When does the river Ombra flood the mill?"

    def write(writing: Writing) -> Iterator[str]:
        writing.question = question
        return PIPELINES["plain"](question, made)

    answer = AnswerStream(write, made, Turns(), lambda answer: None).answer
    assert answer.found == (judged != (0.2, 0.3, 0.45))
    assert answer.uncertain is uncertain
    assert answer.to_json()["uncertain"] is uncertain
    assert [line for line in notices(answer) if "read them before" in line] == list(notices(answer))[: int(uncertain)]


def test_a_fit_tells_right_quotations_from_others() -> None:
    """Also from wrong ones of the right passages."""
    rng = np.random.default_rng(0)
    examples = []
    for number in range(200):
        right = number % 2 == 0
        values = {name: 0.0 for name in SIGNALS} | {"cosine_lead": 0.4 * right + float(rng.normal(0, 0.15))}
        reading = UnitReading(tuple(values.values()), tuple(values.values()))
        there = number % 4 != 3
        examples.append(JudgedUnit("there" if there else "gone", there, right, reading, ((0.9, right), (0.3, False))))
    fitted = fitted_on(examples, "tiny")[pair_name("tiny")]
    rows = errors(fitted, examples)
    assert rows["gone"]["wrong"] < 0.5, "half of the quotations are right, so little is refused"
    assert rows["gone"]["certain"] < 0.1
    assert rows["there"]["certain"] < 0.05
    assert sum(e.right and e.reading.probability(fitted) >= fitted.threshold for e in examples) > 90
    results = fitted_on(examples, "tiny")[evidence.results_name("tiny")]
    told = list(reliability(results, examples).values())
    assert [(row["results"], round(row["answer"], 1)) for row in told] == [(200, 0.0), (200, 0.5)]
    shares = results.model.probability(evidence.result_signals([0.9, 0.3]))
    assert shares == pytest.approx([0.5, 0.0], abs=0.02), "half of the best results answer, and no other one"


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


def test_nearness_counts_from_the_floor_of_the_embedder() -> None:
    embed = Embedder()
    nearness = WordNearness("What does a suitcase do at the airport?", floor=0.7)
    nearness.learn(["bag counter"], embed)
    assert nearness.nearest("bag counter") == pytest.approx([(np.cos(a) - 0.7) / 0.3 for a in (0.4, 0.3)], abs=1e-5)


def test_a_number_is_near_to_itself_alone() -> None:
    embed = Embedder()
    nearness = WordNearness("What is 409 at the airport?")
    nearness.learn(["400 at the counter", "409 at the counter"], embed)
    assert nearness.mean("400 at the counter") == pytest.approx(np.cos(0.3) / 2, abs=1e-6)
    assert nearness.mean("409 at the counter") == pytest.approx((1 + np.cos(0.3)) / 2, abs=1e-6)


def test_a_passage_on_another_name_is_neither_evidence_nor_quoted(tmp_path: Path, hit: Callable[..., Hit]) -> None:
    other = hit(1, "The mill of Kell floods in spring.", file=1, stages=Stages(reranker=0.9))
    own = hit(2, "Ombra floods as well.", file=2, stages=Stages(reranker=0.5))
    judge = UnitJudge(Models(tmp_path, 0.9))  # type: ignore[arg-type]
    question = "When does the mill of Ombra flood?"
    reading = judge.reading(question, [other, own])
    assert (reading.signals[0], reading.named[0]) == (log_odds(0.9), log_odds(0.5))
    pairs = [document_of(other), document_of(own)]
    assert {window.passage for window in judge.windows(question, pairs)} == {1}
    assert {window.passage for window in judge.windows("When does it flood?", pairs)} == {0, 1}, "another question"


def test_the_worst_reading_counts() -> None:
    certain, doubtful = ((0.0, lead, *(0.0,) * 5) for lead in (0.4, -0.4))
    assert UnitReading(certain, certain).probability(model()) > 0.9
    for reading in (
        UnitReading(certain, doubtful),
        UnitReading(doubtful, certain),
        UnitReading(certain, certain, most=0.1),
    ):
        assert reading.probability(model()) <= 0.1


def test_questions_that_their_names_decide_do_not_blur_the_fit() -> None:
    """Their signals look like those of an answer."""
    rng = np.random.default_rng(0)
    examples = []
    for number in range(60):
        there = number % 2 == 0
        values = (*(0.0,) * 4, 2.0 * there - 1 + float(rng.normal(0, 0.5)), 0.0, 0.0)
        examples.append(JudgedUnit("there" if there else "gone", there, there, UnitReading(values, values), RESULTS))
    named = [JudgedUnit("other-name", False, False, UnitReading(e.reading.signals, e.reading.named, most=0.1), RESULTS)
             for e in examples if e.there]  # fmt: skip
    with_them, without = (fitted_on(found, "tiny")[pair_name("tiny")] for found in ([*examples, *named], examples))
    assert with_them.model.weights == pytest.approx(without.model.weights, rel=0.1)
