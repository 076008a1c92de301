"""Text laid out for picking sentences, and the sentences that are picked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.prose import prose
from edge.apps.assistant.sentences import PickedSentences
from edge.runtimes.generation.base import Document, Message, Sampling
from edge.runtimes.generation.sentences import sentences

WRAPPED = """Running Single Tests
We can pass the name of any test function to cargo test in
order to run only that test:
$ cargo test one_hundred
   Compiling adder v0.1.0 (file:///projects/adder)
running 1 test
test tests::one_hundred ... ok

Only the test with the name one_hundred ran; the other two in there
Tests did not match."""


def test_wrapped_lines_are_joined_and_headings_stand_alone() -> None:
    units = prose(WRAPPED).split("\n\n")
    assert units[0] == "Running Single Tests"
    assert units[1] == (
        "We can pass the name of any test function to cargo test in order to run only that test: "
        "`cargo test one_hundred`"
    )
    assert units[-1] == "Only the test with the name one_hundred ran; the other two in there Tests did not match."


def test_code_is_left_out_unless_a_sentence_leads_up_to_it() -> None:
    text = (
        "The loop counts down to zero and then it ends.\nfor (i = 9; i; i--) {\n    step(i);\n}\n\n"
        "To count up, write this instead of the loop above:\n    i += 1;\n\n"
        "Longer programs are shown elsewhere, such as this one:\n    a();\n    b();\n\n    c();\n    d();\nAnd so on."
    )
    assert prose(text).split("\n\n") == [
        "The loop counts down to zero and then it ends.",
        "To count up, write this instead of the loop above: `i += 1;`",
        "Longer programs are shown elsewhere, such as this one:",
        "And so on.",
    ]


def test_items_of_a_list_stand_alone() -> None:
    text = "- flour, as much as two hands can hold at once\n- water\n2. salt and a lot of patience, says the baker"
    assert prose(text).split("\n\n") == text.split("\n")


def test_rows_of_a_table_stand_alone() -> None:
    rows = ["| the tool that is compared here with others | its mean time until a first word |", "| ours | 0.72 s |"]
    text = "\n".join(
        ["These are the times that were measured:", rows[0], "|---|:-:|", rows[1], "They were measured once."]
    )
    assert prose(text).split("\n\n") == [
        "These are the times that were measured:", *rows, "They were measured once.",
    ]  # fmt: skip


def test_a_passage_without_sentences_is_left_line_by_line() -> None:
    assert prose("x = 1\n\ny = f(x)\n").split("\n\n") == ["x = 1", "y = f(x)"]
    assert prose("dentist: Tuesday 14:00") == "dentist: Tuesday 14:00"


def test_a_lone_question_mark_ends_no_sentence() -> None:
    assert sentences(prose("Rust provides the operator ? to make this easier.")) == [
        "Rust provides the operator `?` to make this easier."
    ]


@given(st.text(alphabet="aB .:?\n-(){};$1| \t", max_size=120))
def test_nothing_is_invented(text: str) -> None:
    words = set(prose(text).replace("`", "").split())
    assert words <= set(text.split()) | {"."}
    assert bool(prose(text).strip()) == bool(text.strip())


SCORES = {
    "The river floods in spring.": 0.8,
    "It rises for a week.": 0.7,
    "When does the river flood?": 0.9,
    "The snow melts then.": 0.5,
    "Bread needs flour.": 0.1,
    "In spring.": 0.6,
    "Floods of the river in spring": 0.7,
}


class Judge:
    """Sentences as good as `SCORES` says, passages as good as their best sentence."""

    def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
        return [max(score for known, score in SCORES.items() if known in text) for text in texts]


def picked(*texts: str) -> str:
    generator = PickedSentences(Judge())  # type: ignore[arg-type]
    documents = [Document(str(i), text) for i, text in enumerate(texts)]
    pieces = generator.stream([Message("user", "when?")], Sampling(), documents=documents)
    return "".join(piece.text for piece in pieces)


def test_the_best_sentences_are_picked_with_their_passages() -> None:
    assert picked("The river floods in spring. It rises for a week.", "The snow melts then. Bread needs flour.") == (
        "The river floods in spring. [1] It rises for a week. [1] The snow melts then. [2]"
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("When does the river flood? The river floods in spring.", "The river floods in spring. [1]"),
        ("In spring. The river floods in spring.", "The river floods in spring. [1]"),
        ("Floods of the river in spring\n\nThe river floods in spring.", "The river floods in spring. [1]"),
        ("The river floods in spring. Bread needs flour.", "The river floods in spring. [1]"),
    ],
)
def test_questions_fragments_and_what_is_much_worse_are_left_out(text: str, answer: str) -> None:
    assert picked(text) == answer


def test_sentences_are_judged_by_the_sentence_that_asks() -> None:
    asked: list[str] = []

    class Noting(Judge):
        def relevance(self, query: str, texts: Sequence[str]) -> list[float]:
            asked.append(query)
            return super().relevance(query, texts)

    message = Message("user", "We moved to the valley in May. When does the river flood? Thanks!")
    documents = [Document("1", "The river floods in spring.")]
    list(PickedSentences(Noting()).stream([message], Sampling(), documents=documents))  # type: ignore[arg-type]
    assert asked == ["When does the river flood?"]
