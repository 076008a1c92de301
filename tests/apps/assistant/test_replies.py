"""Reading the replies of models, in the forms they really use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.prompts import REFUSAL
from edge.apps.assistant.replies import GeneratorClock, Refusal, Thinking
from edge.runtimes.generation.base import Piece


@pytest.mark.parametrize(
    ("reply", "meaning"),
    [
        ("yes", True), ("Yes.", True), ("**No**", False), ("no, it does not", False), ("Answer: yes", True),
        ("I think not", False), ("", None), ("perhaps", None), ("The answer to this is yes", None),
    ],
)  # fmt: skip
def test_verdicts(reply: str, meaning: bool | None) -> None:
    assert prompts.read_verdict(reply) is meaning


@pytest.mark.parametrize(
    ("reply", "value"), [("Fully", 1.0), ("partly supported", 0.5), ("not supported", 0.0), ("hm", None)]
)
def test_support(reply: str, value: float | None) -> None:
    assert prompts.read_support(reply) == value


def test_grades_outside_the_scale_are_none() -> None:
    assert prompts.read_grade("4 of 5") == 4
    assert prompts.read_grade("Grade: 5") == 5
    assert prompts.read_grade("10") is None
    assert prompts.read_grade("good") is None


def test_questions_lose_numbers_bullets_labels_and_repetitions() -> None:
    reply = (
        "Here are the sub-questions:\n1. Who built the bridge?\n- Where was she born?\n"
        "3) who built the bridge?\n\nQ4: What is a mill?\n* And why?"
    )
    assert prompts.read_questions(reply, 4) == [
        "Who built the bridge?", "Where was she born?", "What is a mill?", "And why?",
    ]  # fmt: skip
    assert prompts.read_questions(reply, 2) == ["Who built the bridge?", "Where was she born?"]


def test_questions_without_question_marks_are_still_questions() -> None:
    assert prompts.read_questions("Topics:\n1. builder of the bridge\n2. her birthplace", 4) == [
        "builder of the bridge", "her birthplace",
    ]  # fmt: skip
    assert prompts.read_questions("...\n\n", 4) == []


def test_one_line_is_the_first_with_words() -> None:
    assert prompts.read_line('\n  \n"Who built it?"\nI hope this helps.') == "Who built it?"
    assert prompts.read_line("Question: Who built it?") == "Who built it?"
    assert prompts.read_line(" \n--\n") == ""


def test_refusals_are_recognized_in_any_case() -> None:
    assert prompts.is_refusal("Not in the documents.")
    assert not prompts.is_refusal("The documents say so.")


@given(st.text(max_size=200))
def test_no_reply_is_too_odd(reply: str) -> None:
    assert prompts.read_verdict(reply) in (True, False, None)
    assert len(prompts.read_questions(reply, 3)) <= 3
    assert "\n" not in prompts.read_line(reply).strip()


def reply_of(*pieces: str) -> str:
    thinking = Thinking()
    found = [piece for text in pieces for piece in thinking.feed(Piece(text))] + thinking.finish()
    return "".join(piece.text for piece in found)


@pytest.mark.parametrize(
    ("written", "reply"),
    [
        ("<think>It may be [2].</think>\n\nYes [1].", "Yes [1]."),
        ("\n<think>\n</think> Yes.", " Yes."),
        ("<think></think>", ""),
        ("<think>And so on", ""),
        ("<thin ice> is cold", "<thin ice> is cold"),
        ("<thi", "<thi"),
        ("Yes. <think>no</think>", "Yes. <think>no</think>"),
        ("<think>a</think><think>b</think>", "<think>b</think>"),
        (" Yes", " Yes"),
        ("", ""),
    ],
)
def test_a_thought_before_the_reply_is_left_out(written: str, reply: str) -> None:
    assert reply_of(written) == reply
    assert reply_of(*written) == reply, "character by character"


def test_whether_it_has_ended() -> None:
    thinking = Thinking()
    states = []
    for text in ("<th", "ink>", "hm", "</think>", "So"):
        thinking.feed(Piece(text))
        states.append(thinking.under_way)
    assert states == [False, True, True, False, False]


def test_tokens_keep_their_probability() -> None:
    thinking = Thinking()
    assert thinking.feed(Piece("<", 1, -0.5)) == []
    assert thinking.feed(Piece("b>", 2, -0.25)) == [Piece("<", 1, -0.5), Piece("b>", 2, -0.25)]
    assert thinking.feed(Piece(" c", 3, -1.0)) == [Piece(" c", 3, -1.0)]


def read_in_pieces(pieces: Sequence[str]) -> tuple[str, bool]:
    refusal = Refusal()
    shown = "".join([refusal.feed(piece) for piece in pieces])
    return ("", True) if refusal.said else (shown + refusal.finish(), False)


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({min(place, len(text)) for place in places})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


PLACES = st.lists(st.integers(0, 60), max_size=8)


@given(PLACES, st.sampled_from([REFUSAL, f'"{REFUSAL}."', f" {REFUSAL.lower()}\n", f"**{REFUSAL}** at all"]))
def test_a_refusal_is_never_shown(places: list[int], reply: str) -> None:
    assert read_in_pieces(cut(reply, places)) == ("", True)


@given(PLACES, st.text(max_size=60) | st.sampled_from(["Not in the middle.", "NOT", "Not in the doc"]))
def test_an_answer_is_shown_whole(places: list[int], reply: str) -> None:
    if REFUSAL not in " ".join(reply.split()).upper():
        assert read_in_pieces(cut(reply, places)) == (reply, False)


@pytest.mark.parametrize("reply", ["It is 4 m long.", "Notes say so."])
def test_an_answer_is_shown_as_soon_as_it_differs(reply: str) -> None:
    assert Refusal().feed(reply) == reply


def test_only_the_generators_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(replies, "time", SimpleNamespace(perf_counter=lambda: now))
    closed = []

    def answer() -> Iterator[Piece]:
        try:
            passes(5)
            yield Piece("a")
            passes(2)
            yield Piece("b")
            yield Piece("c")
        finally:
            closed.append(True)

    clock = GeneratorClock()
    for piece in clock.timed(answer()):
        passes(100)
        if piece.text == "b":
            break
    assert clock.count == 2
    assert (clock.first, clock.seconds) == (5, 7)
    clock = GeneratorClock()
    assert len(list(clock.timed(answer()))) == clock.count == 3
    assert closed
