"""Turns of writing and waiting, and the end of an answer that nobody reads to its end."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from naive.waiting import PATIENCE_S

from edge.apps.assistant.answer import NOT_FOUND, Answer
from edge.apps.assistant.assistant import AnswerStream, Texts, Turns, Writing
from edge.apps.assistant.pipelines import PIPELINES
from edge.errors import InputError

Open = Callable[..., AnswerStream]


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def ended() -> list[str]:
    """The notes of the writing code from when it was ended."""
    return []


@pytest.fixture
def open_stream(steps: Any, generator: Any, turns: Turns, ended: list[str]) -> Open:
    def make(
        count: int = 3, seconds: float = 0.0, done: Callable[[Answer], None] = lambda answer: None
    ) -> AnswerStream:
        def write(writing: Writing) -> Texts:
            writing.question = "q"
            try:
                for i in range(count):
                    time.sleep(seconds)
                    made._go_on()
                    yield f"word{i} "
            finally:
                ended.append("closed")

        made = steps(generator(str))
        return AnswerStream(write, made, turns, done)

    return make


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_stream_that_is_let_go_ends_at_once(open_stream: Open, ended: list[str]) -> None:
    answers: list[Answer] = []
    for _ in open_stream(done=answers.append):
        break
    assert ended == ["closed"], "not only when the garbage collector comes"
    assert [answer.text for answer in answers] == ["word0"]
    assert answers[0].stats.interrupted
    assert open_stream().answer.text == "word0 word1 word2", "and the next may begin"


def test_no_more_turns_after_the_end(open_stream: Open, turns: Turns, ended: list[str]) -> None:
    stream = open_stream()
    next(stream)
    turns.end()
    assert ended == ["closed"]
    assert stream.answer.text == "word0"
    assert stream.answer.stats.interrupted
    with pytest.raises(InputError, match="has been closed"):
        next(open_stream())
    turns.end()


def test_the_end_stops_an_answer_that_another_thread_reads(open_stream: Open, turns: Turns) -> None:
    stream = open_stream(count=10_000, seconds=0.01)
    begun = threading.Event()

    def read() -> None:
        for _ in stream:
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(PATIENCE_S)
    turns.end()
    reader.join(PATIENCE_S)
    assert not reader.is_alive()
    assert stream.answer.stats.interrupted


def test_the_end_stops_an_answer_that_another_thread_left(open_stream: Open, turns: Turns, ended: list[str]) -> None:
    stream = open_stream()
    reader = threading.Thread(target=lambda: next(stream))
    reader.start()
    reader.join(PATIENCE_S)
    assert ended == []
    turns.end()
    assert ended == ["closed"]


def test_who_waits_for_a_turn_is_told_that_there_is_none(open_stream: Open, turns: Turns) -> None:
    stream = open_stream()
    next(stream)
    told: list[str] = []

    def ask() -> None:
        try:
            next(open_stream())
        except InputError as error:
            told.append(str(error))

    waiting = threading.Thread(target=ask)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    turns.end()
    waiting.join(PATIENCE_S)
    assert told == ["the assistant has been closed"]


@pytest.mark.parametrize("end", ["close", "cancel"])
def test_who_waits_for_a_turn_can_be_cancelled(open_stream: Open, ended: list[str], end: str) -> None:
    stream = open_stream()
    next(stream)
    waits = open_stream()
    texts: list[str] = []
    waiting = threading.Thread(target=lambda: texts.extend(waits), daemon=True)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    threading.Thread(target=getattr(waits, end), daemon=True).start()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive(), "and does not wait for the other answer's end"
    assert texts == []
    assert ended == ["closed"], "nothing was written"
    assert waits.answer.text == ""
    assert waits.answer.stats.interrupted
    with pytest.raises(InputError, match="still being written"):  # it was not its turn to give away
        next(open_stream())
    assert stream.answer.text == "word0 word1 word2"


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("I am sorry, NOT IN THE DOCUMENTS.", False),
        ("This is not in the\ndocuments, I fear.", False),
        ("In spring [1]. Why is not in the documents.", True),
        ("In spring.", True),
    ],
)
def test_a_refusal_that_begins_like_an_answer_has_no_sources(
    steps: Any, generator: Any, turns: Turns, reply: str, found: bool
) -> None:
    made = steps(generator(lambda messages, documents: reply))
    question = "When does the river Ombra flood its valley?"
    stream = AnswerStream(lambda writing: PIPELINES["plain"](question, made), made, turns, lambda answer: None)  # type: ignore[arg-type,return-value]
    answer = stream.answer
    assert answer.text == reply
    assert answer.found is found
    assert bool(answer.citations) is found


def test_an_answer_without_a_word_is_none(open_stream: Open) -> None:
    answer = open_stream(count=0).answer
    assert (answer.text, answer.found, answer.stats.interrupted) == (NOT_FOUND, False, False)


def test_figures_of_an_answer_left_early_hold_its_generation(steps: Any, generator: Any, turns: Turns) -> None:
    question = "When does the river Ombra flood its valley?"
    made = steps(generator(lambda messages, documents: "In spring [1]. When snow melts, it does."))
    stream = AnswerStream(lambda writing: PIPELINES["plain"](question, made), made, turns, lambda answer: None)  # type: ignore[arg-type,return-value]
    assert next(stream).strip() == "In spring [1].", "it is shown by sentences"
    stream.close()
    assert stream.answer.stats.generations == 1
    assert stream.answer.stats.new_tokens == 4
