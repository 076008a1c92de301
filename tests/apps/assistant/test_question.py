"""Questions as they are understood, and the units that may answer them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.pipelines import INTERVAL, PIPELINES
from edge.apps.assistant.question import LONGEST, check_question, courtesy, judged_question, refers_back
from edge.apps.assistant.retrieval import Retrieval
from edge.apps.assistant.units import WORDS, units, windows
from edge.apps.documents.kinds import HEADING, SENTENCE
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
        ("What about bread?", False),
        ("until when?", True),
        ("For how long?", True),
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
    assert "".join(filter(str.isalnum, judged_question(question))) in "".join(filter(str.isalnum, question))
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
    ("text", "begins"),
    [
        ("thanks", "You are welcome"), ("Thank you very much!", "You are welcome"), ("Vielen Dank", "You are welcome"),
        ("ok, thanks", "You are welcome"), ("hello", "Hello"), ("Guten Tag", "Ask"), ("Hi there!", "Hello"),
        ("help", "Ask"), ("OK.", "Ask"), ("yes please", "Ask"), ("bye", "Goodbye"),
        *((text, "") for text in ("", "?", "bridge", "who is Ada?", "thanks, and the deposit?", "hello world program",
                                  "why?", "help desk number", "and how much?", "is it good?", "what is it for",
                                  "until when?")),
    ],
)  # fmt: skip
def test_a_text_that_asks_nothing_gets_a_reply_and_a_question_none(text: str, begins: str) -> None:
    assert courtesy(text).startswith(begins)
    assert bool(courtesy(text)) == bool(begins)


WRAPPED = """Running Single Tests
We can pass the name of any test function to cargo test in
order to run only that test:
$ cargo test one_hundred
   Compiling adder v0.1.0 (file:///projects/adder)
running 1 test
test tests::one_hundred ... ok

Only the test with the name one_hundred ran; the other two in there
Tests did not match."""


def kinds(text: str) -> list[tuple[str, str]]:
    return [(unit.kind, unit.text) for unit in units(text)]


def quoted(text: str) -> list[str]:
    return [unit.text for unit in units(text) if unit.quotable]


def test_wrapped_lines_are_joined_and_headings_stand_alone() -> None:
    found = kinds(WRAPPED)
    assert found[0] == ("heading", "Running Single Tests")
    assert found[1] == (
        "sentence",
        "We can pass the name of any test function to cargo test in order to run only that test:",
    )
    assert found[2] == ("code", "$ cargo test one_hundred")
    assert found[-1][1] == "Only the test with the name one_hundred ran; the other two in there Tests did not match."


def test_code_is_a_unit_of_its_own_and_keeps_its_lines() -> None:
    text = (
        "The loop counts down to zero and then it ends.\nfor (i = 9; i; i--) {\n    step(i);\n}\n\n"
        "To count up, write this instead of the loop above:\n    i += 1;\n\n"
    )
    assert quoted(text) == [
        "The loop counts down to zero and then it ends.",
        "for (i = 9; i; i--) {\n    step(i);\n}",
        "To count up, write this instead of the loop above:",
        "i += 1;",
    ]
    lines = "".join(f"step({i});\n" for i in range(30))
    assert [text.count("\n") for text in quoted(lines)] == [11, 11, 5]


@pytest.mark.parametrize(
    "line",
    [
        "Home | Products | Support | Contact",
        "You are here: Home > Visit > Opening hours",
        "[Home](/) / [News](/news)",
        "- [Products](products.html)",
        "[![build](https://ci.example/b.svg)](https://ci.example)",
        "[Install](#install) · [Usage](#usage)",
        "A B C D E F G H I J K",
        "Previous page | Next page",
        "[Impressum] [Datenschutz] [Login]",
    ],
)
def test_menus_are_not_quoted(line: str) -> None:
    text = f"{line}\n\nThe museum opens at nine on weekdays.\n"
    assert kinds(text)[0][0] == "navigation"
    assert quoted(text) == ["The museum opens at nine on weekdays."]


@pytest.mark.parametrize(
    "line", ["Range: 5 | 10 | 15 metres.", "The price is 5 > 3, says he.", "See the page - it is long - and the other."]
)
def test_sentences_with_bars_are_no_menus(line: str) -> None:
    assert kinds(line)[0][0] != "navigation"


def test_labels_do_not_continue_the_line_before() -> None:
    text = (
        "Batteries: collection boxes in every supermarket and in the town hall of the city\n"
        "Glass: containers by colour, blue counts as green"
    )
    assert len(quoted(text)) == 2


def test_a_lone_question_mark_ends_no_sentence() -> None:
    text = "Rust provides the operator ? to make this easier."
    assert quoted(text) == ["Rust provides the operator `?` to make this easier."]


@given(st.text(alphabet="aB .:?\n-(){};$1|#\"'= \t", max_size=120))
def test_nothing_is_invented_and_units_stand_where_they_are_said_to(text: str) -> None:
    last = 0
    for unit in units(text):
        assert last <= unit.start < unit.end <= len(text)
        last = unit.start
        if "`" not in unit.text and ":" not in unit.text:
            assert {*filter(str.isalnum, unit.text)} <= {*text}


OPTIONS = """SYNOPSIS
     tmux [-V]

     -n, --line-number
             Prefix each line of output with its number.

     -r
             Read all files under each directory.
"""


def shown(text: str) -> list[str]:
    return [window.text for window in windows(units(text))]


def test_an_option_is_shown_with_what_it_does() -> None:
    assert shown(OPTIONS) == [
        "-n, --line-number\nPrefix each line of output with its number.",
        "-r\nRead all files under each directory.",
    ]


def test_windows_of_a_long_section_overlap_and_have_its_heading() -> None:
    text = "# Rent\n\n" + " ".join(f"In month {n} the rent is due at once, says the contract." for n in range(20))
    found = windows(units(text))
    assert len(found) > 2
    for window, following in pairwise(found):
        assert window.text.startswith("Rent\n")
        assert sum(len(unit.text.split()) for unit in window.units) <= WORDS
        assert window.units[-1] in following.units, "what is cut in one window is whole in the next"


def test_a_heading_of_more_words_than_a_window_is_read_as_a_sentence() -> None:
    """Some documents set whole paragraphs as headings, and each window would begin with all of it."""
    for count, kind in ((WORDS, "heading"), (WORDS + 1, "sentence")):
        heading = " ".join(f"word{n}" for n in range(count))
        text = f"{heading}\n\nThe rent is due at once."
        above, below = units(text, ((HEADING + 1, len(heading)), (SENTENCE, len(text))))
        assert (above.kind, below.heading) == (kind, heading if kind == "heading" else "")


def test_menus_and_empty_sections_are_not_shown() -> None:
    assert shown("Home | Rivers | Contact\n\n# Floods\n\n# Rivers\n\nThe river floods.") == [
        "Rivers\nThe river floods."
    ]
    assert shown("# Floods") == ["Floods"]
    many = shown("\n\n".join(f"# The flood of year {n}" for n in range(100)))
    assert max(len(text.split()) for text in many) <= WORDS
    assert shown("y = f(x)\n\nz = g(y)\n") == ["y = f(x)\nz = g(y)"]
    assert shown("") == []


@given(st.text(alphabet="aB .:?\n-#(){};$1|\"'= \t", max_size=200))
def test_every_unit_that_is_no_menu_is_in_a_window(text: str) -> None:
    """Headings are, unless nothing stands below them."""
    found = windows(units(text))
    every = [unit for unit in units(text) if unit.kind != "navigation"] or units(text)
    held = {unit for window in found for unit in window.shown}
    assert held <= set(every)
    assert {unit for unit in every if unit.kind != "heading"} <= held
    assert bool(found) == bool(every)
    for window in found:
        assert list(window.shown) == sorted(window.shown, key=lambda unit: unit.start)
