"""What a question asks: its asking sentence behind a text, its kind of value, and texts that ask nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.pipelines import INTERVAL, PIPELINES
from edge.apps.assistant.question import (
    LONGEST,
    asked_value,
    check_question,
    courtesy,
    judged_question,
    refers_back,
)  # fmt: skip
from edge.apps.assistant.retrieval import Retrieval
from edge.errors import InputError
from edge.scheduling.predictor import Seconds

QUESTION = "When does the river Ombra flood its valley?"
MAIL = "Dear Anna,\n\nwe came to the mill on Monday. Bread and flour were there, the baker was not.\n\n"


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("who built the bridge", "who built the bridge"),
        ("bridge", "bridge"),
        (f"{MAIL}{QUESTION}", QUESTION),
        (f"{MAIL}when does the river flood?\nThanks a lot,\nBob", "when does the river flood?"),
        (f"{QUESTION} {MAIL}", QUESTION),
        (f"{MAIL}Who came? {QUESTION}", QUESTION),
        (f"{MAIL}Tell me when the river floods. Many thanks!", "Tell me when the river floods."),
        ("The bridge is old. Who built it?", "The bridge is old. Who built it?"),
        ("It rains. The bridge is old. Who built it? And when?", "The bridge is old. Who built it? And when?"),
        (
            "The bridge is old. Who wrote the old book that says how the town of Kell was built?",
            "Who wrote the old book that says how the town of Kell was built?",
        ),
        ("What is the U.S. national anthem?", "What is the U.S. national anthem?"),
        ("How many punts did Ted Ginn Jr. return?", "How many punts did Ted Ginn Jr. return?"),
        ('Who says "why?" in the play?', 'Who says "why?" in the play?'),
        ("The ratio is 1.1. Is that much for a river of its length in a valley?",
         "Is that much for a river of its length in a valley?"),
        ("The letter was long, and went on over the end of a line, as\nits writer had time. Where is the town of Kell?",
         "Where is the town of Kell?"),
        ("今天下雨。桥是谁建的？", "桥是谁建的？"),
        ("Thanks. Bob.", "Thanks. Bob."),
    ],
)  # fmt: skip
def test_the_sentence_that_asks_is_judged_by(question: str, asked: str) -> None:
    assert judged_question(question) == asked


@pytest.mark.parametrize(
    ("question", "refers"),
    [
        ("and how long does it last?", True),
        ("Who built them?", True),
        ("why?", True),
        ("What about bread?", True),
        ("until when?", True),
        ("For how long?", True),
        ("and at what time exactly?", True),
        ("who is Ada?", False),
        ("...", False),
        ("who built the bridge over the Ombra?", False),
        ("why does the river flood in spring every year?", False),
        ("flour", False),
    ],
)
def test_what_refers_back(question: str, refers: bool) -> None:
    assert refers_back(question) is refers


@given(st.text(alphabet="aB .?!\n\"'1。？", max_size=80))
def test_the_gist_is_made_of_the_question(question: str) -> None:
    assert "".join(judged_question(question).split()) in "".join(question.split())
    assert judged_question(judged_question(question).strip()).strip() != "" or not question.strip()


@pytest.mark.parametrize("name", ["plain", "hyde", "subquestion", "iter-retgen", "flare", "piperag"])
def test_every_pipeline_judges_a_long_question_by_its_asking_sentence(
    steps: Any, generator: Any, library: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = {"subquestion": "...", "piperag": "word " * 2 * INTERVAL}  # no parts; long enough to search again
    said = generator(lambda messages, documents: replies.get(name, "In spring [1]."))
    said.sure = lambda word: math.log(0.5)
    made = steps(said, name, min_relevance=0.5, rounds=2)
    monkeypatch.setattr(made, "expect", lambda prompt, passages=(): Seconds(100.0))
    list(PIPELINES[name](MAIL + QUESTION, made))
    assert {judged.partition("?")[0] + "?" for judged, _, _ in library.calls("rerank")} == {QUESTION}
    assert made.rounds[0].passages, "no passage has half of the words of the mail"


def test_a_long_question_is_looked_for_as_a_whole_and_by_its_asking_sentence() -> None:
    assert Retrieval.asked(QUESTION) == Retrieval.of(QUESTION)
    assert Retrieval.asked(MAIL + QUESTION) == Retrieval(MAIL + QUESTION, (QUESTION, MAIL + QUESTION))


def test_what_cannot_be_judged_by_is_refused() -> None:
    def check(question: str, judged: bool = True) -> None:
        check_question(question, judged=judged)

    check(MAIL * 50 + QUESTION)
    check("bridge " * (LONGEST // 7))
    check(f"{'b' * LONGEST}. Who built it?")
    check("boiler " * 5000, judged=False)
    with pytest.raises(InputError, match=r"has 34,999 characters.*at most: ask it in one shorter sentence"):
        check("boiler " * 5000)
    for question in ("", " \n"):
        with pytest.raises(InputError, match="is empty"):
            check(question)
    for question in ("🎉", "???"):
        with pytest.raises(InputError, match="holds no word"):
            check(question)


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("How much did the boat cost?", "price"), ("What is the rent?", "price"), ("Wie viel kostet es?", "price"),
        ("How many keys are there?", "number"), ("How much is there?", "number"), ("Wie lange dauert es?", "number"),
        ("When does it open?", "time"), ("and until when?", "time"), ("Which day is it?", "time"),
        ("Wann endet die Frist?", "time"), ("Combien coûte le vélo ?", "price"), ("¿Cuándo empieza el curso?", "time"),
        ("Quante bottiglie ci sono?", "number"), ("A che ora parte il treno?", "time"), ("¿Cuánto cuesta?", "price"),
        ("What happens when it costs more?", "price"), ("Who pays?", None),
        ("What do I do when a pole breaks?", None), ("bridge", None), ("", None),
    ],
)  # fmt: skip
def test_the_kind_of_value_asked_for(question: str, kind: str | None) -> None:
    assert asked_value(question) == kind


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("thanks", "You are welcome"), ("Thank you very much!", "You are welcome"), ("Vielen Dank", "You are welcome"),
        ("ok, thanks", "You are welcome"), ("hello", "Hello"), ("Guten Tag", "Ask"), ("Hi there!", "Hello"),
        ("help", "Ask"), ("OK.", "Ask"), ("yes please", "Ask"), ("bye", "Goodbye"),
    ],
)  # fmt: skip
def test_a_text_that_asks_nothing_gets_a_reply(text: str, begins: str) -> None:
    assert courtesy(text).startswith(begins)


@pytest.mark.parametrize(
    "text",
    ["", "?", "bridge", "who is Ada?", "thanks, and the deposit?", "hello world program", "why?", "help desk number",
     "and how much?", "is it good?", "what is it for", "until when?"],
)  # fmt: skip
def test_a_question_gets_none(text: str) -> None:
    assert courtesy(text) == ""
