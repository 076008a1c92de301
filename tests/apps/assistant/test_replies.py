"""Replies of language models: read, streamed, and written by the generator."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.waiting import PATIENCE_S

from edge.apps.assistant import prompts, replies
from edge.apps.assistant.answer import CLOSEST, NOT_FOUND, Answer
from edge.apps.assistant.assistant import AnswerStream, Texts, Turns, Writing
from edge.apps.assistant.generator import QuotingGenerator
from edge.apps.assistant.pipelines import PIPELINES
from edge.apps.assistant.prompts import REFUSAL
from edge.apps.assistant.reading import ANSWER, EXACT, LIKELY, PassageReader
from edge.apps.assistant.replies import GeneratorClock, Refusal, Thinking
from edge.errors import InputError
from edge.runtimes.generation.base import Document, Message, Piece, Sampling
from edge.runtimes.reader import Span


def four_questions(reply: str) -> list[str]:
    return prompts.read_questions(reply, 4)


TOPICS = "Topics:\n1. builder of the bridge\n2. her birthplace"
LISTED = (
    "Here are the sub-questions:\n1. Who built the bridge?\n- Where was she born?\n"
    "3) who built the bridge?\n\nQ4: What is a mill?\n* And why?"
)
READ: list[tuple[Callable[..., Any], str, Any]] = [
    *((prompts.read_verdict, reply, True) for reply in ("yes", "Yes.", "Answer: yes")),
    *((prompts.read_verdict, reply, False) for reply in ("**No**", "no, it does not", "I think not")),
    *((prompts.read_verdict, reply, None) for reply in ("", "perhaps", "The answer to this is yes")),
    (prompts.read_support, "Fully", 1.0), (prompts.read_support, "partly supported", 0.5),
    (prompts.read_support, "not supported", 0.0), (prompts.read_support, "hm", None),
    (prompts.read_grade, "4 of 5", 4), (prompts.read_grade, "Grade: 5", 5),
    (prompts.read_grade, "10", None), (prompts.read_grade, "good", None),
    (lambda reply: prompts.read_questions(reply, 2), LISTED, ["Who built the bridge?", "Where was she born?"]),
    (four_questions, LISTED,
     ["Who built the bridge?", "Where was she born?", "What is a mill?", "And why?"]),
    (four_questions, TOPICS, ["builder of the bridge", "her birthplace"]),
    (four_questions, "...\n\n", []),
    (prompts.read_line, '\n  \n"Who built it?"\nI hope this helps.', "Who built it?"),
    (prompts.read_line, "Question: Who built it?", "Who built it?"), (prompts.read_line, " \n--\n", ""),
    (prompts.is_refusal, "Not in the documents.", True), (prompts.is_refusal, "The documents say so.", False),
]  # fmt: skip
"""Verdicts, support, grades, questions (without numbers, bullets, labels and repetitions), lines and refusals."""


@pytest.mark.parametrize(("read", "reply", "meaning"), READ)
def test_replies_are_read(read: Callable[..., Any], reply: str, meaning: Any) -> None:
    assert read(reply) == meaning


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


def test_only_the_generators_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0, 5, 105, 107, 207, 207))
    monkeypatch.setattr(replies, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    clock = GeneratorClock()
    assert len(list(clock.timed(Piece(text) for text in "ab"))) == clock.count == 2
    assert (clock.first, clock.seconds) == (5, 7)


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


QUESTION = "When does the river flood?"


class Models:
    """A reranker that finds given answers in passages, each with a probability. `None` for one that is foreign."""

    def __init__(self, *answers: tuple[str, float] | None, reads: bool = True, relevance: float = 0.0) -> None:
        self.models = SimpleNamespace(readable=self.readable, read=self.read, answering=self.answering)
        self.calls: list[str] = []
        self._answers = answers
        self._reads = reads
        self._relevance = relevance

    def readable(self, question: str, passages: Sequence[str]) -> list[bool] | None:
        self.calls.append(question)
        assert len(passages) == len(self._answers) or not self._reads
        return [answer is not None for answer in self._answers] if self._reads else None

    def read(self, question: str, texts: Sequence[str], units: Sequence[Sequence[tuple[int, int]]]) -> list[list[Span]]:
        return [[self._span(text, *place) for place in own] for text, own in zip(texts, units, strict=True)]

    def _span(self, text: str, start: int, end: int) -> Span:
        for answer, chance in filter(None, self._answers):
            words = answer if answer in text else " ".join(answer.split())  # a sentence is on one line
            at = text.find(words, start)
            if start <= at < end:
                return Span(at, at + len(words), chance)
        return Span(start, end, 0.0)

    def answering(self, signals: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
        chances = [round(1 / (1 + math.exp(-odds)), 6) for _, odds, _, _ in signals]
        return [(chance, chance, chance) for chance in chances]

    def relevance(self, question: str, passages: Sequence[str]) -> list[float]:
        return [self._relevance] * len(passages)


def said(models: Models, *texts: str, question: str = QUESTION) -> str:
    generator = QuotingGenerator(PassageReader(models))  # type: ignore[arg-type]
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    pieces = generator.stream([Message("user", question)], Sampling(), documents=documents)
    return "".join(piece.text for piece in pieces)


RIVER = "Ice floats. The river floods in spring. Bread needs flour."


@pytest.mark.parametrize(
    ("text", "answer", "shown"),
    [
        (RIVER, "in spring", "The river floods in spring. [1]"),
        ("The gate is open:\n- in spring\n- never in autumn", "spring", "in spring [1]"),
        ("| River | Floods |\n|---|---|\n| Ombra | spring |\n| Kell | autumn |", "spring",
         "River: Ombra, Floods: spring [1]"),
        ("# Flooding\n\nCall this:\n\n```python\nimport river\nriver.flood()\n```", "river.flood()",
         "import river\nriver.flood() [1]"),
        ("Home | Rivers | Contact", "Rivers", "Home | Rivers | Contact [1]"),
        ("The river Ombra floods its whole valley in the weeks of spring and\nin autumn. Ice floats.",
         "spring and\nin autumn",
         "The river Ombra floods its whole valley in the weeks of spring and in autumn. [1]"),
    ],
)  # fmt: skip
def test_the_unit_around_an_answer_is_shown_without_a_denial(text: str, answer: str, shown: str) -> None:
    assert said(Models((answer, 0.9)), text) == shown
    assert said(Models(("Ice", 0.2), (answer, EXACT)), "Ice floats.", text) == shown.replace("[1]", "[2]")


def test_a_unit_that_is_less_certain_is_shown_with_the_words_around_it() -> None:
    assert said(Models(("in spring", EXACT - 0.01)), RIVER) == (
        "Ice floats. The river floods in spring. [1] Bread needs flour."
    )


def test_the_same_passages_are_read_once_and_by_the_sentence_that_asks() -> None:
    models = Models(("in spring", 0.9))
    reader = PassageReader(models)  # type: ignore[arg-type]
    reader.read(QUESTION, [Document("1", RIVER)])
    asked = f"We moved to the valley in May. {QUESTION} Thanks!"
    for _ in range(2):
        list(QuotingGenerator(reader).stream([Message("user", asked)], Sampling(), documents=[Document("1", RIVER)]))
    assert models.calls == [QUESTION]
    reader.read("How long?", [Document("1", RIVER)])
    assert models.calls == [QUESTION, "How long?"]


@pytest.mark.parametrize(("relevance", "begins"), [(LIKELY, "Ice floats."), (LIKELY - 0.01, CLOSEST)])
def test_without_a_reader_the_best_passage_is_shown_in_part(relevance: float, begins: str) -> None:
    shown = said(Models(reads=False, relevance=relevance), f"{RIVER} Old {'ice ' * 60}goes.")
    assert shown.startswith(begins)
    assert "The river floods in spring. [1]" in shown
    assert "Old ice" not in shown


@pytest.mark.parametrize(("chance", "number"), [(ANSWER - 0.01, 1), (ANSWER, 2)])
def test_only_an_answer_is_shown_before_a_better_passage_in_an_unknown_language(chance: float, number: int) -> None:
    shown = said(Models(None, ("in spring", chance)), "Der Fluss steigt im Mai.", RIVER)
    assert f"[{number}]" in shown
    assert shown.startswith(CLOSEST) == (number == 1)


def test_a_passage_in_an_unknown_language_is_neither_certain_nor_refused() -> None:
    reading = PassageReader(Models(None)).read(QUESTION, [Document("1", "Der Fluss steigt im Mai.")])  # type: ignore[arg-type]
    assert not reading.is_answer
    assert reading.probability > 0
    assert said(Models(None), "Der Fluss steigt im Mai.") == f"{CLOSEST}\nDer Fluss steigt im Mai. [1]"
    long = f"{'Bald taut der Schnee. ' * 20}Der Fluss river steigt im Mai."
    assert "river" in said(Models(None), long, question="When does the river flood?"), "told by the words it shares"
    sure = PassageReader(Models(("Ice", 0.01))).read(QUESTION, [Document("1", RIVER)])  # type: ignore[arg-type]
    assert sure.probability == 0.01


def test_a_passage_in_an_unknown_language_hides_no_answer_of_another_one() -> None:
    """One line of code that is taken for a language made every answer beside it uncertain."""
    shown = said(Models(("in spring", EXACT), None), RIVER, "Der Fluss steigt im Mai.")
    assert shown == "The river floods in spring. [1]"
    shown = said(Models(None, ("in spring", EXACT)), "Der Fluss steigt im Mai.", RIVER)
    assert shown == "The river floods in spring. [2]"
    low = PassageReader(Models(("Ice", 0.01), None))  # type: ignore[arg-type]
    documents = [Document("1", RIVER), Document("2", "Der Fluss steigt im Mai.")]
    assert low.read(QUESTION, documents).probability == 0.01


def test_without_passages_nothing_is_said() -> None:
    assert said(Models()) == ""


@pytest.mark.parametrize("probability", [EXACT, ANSWER, ANSWER - 0.1])
def test_no_answer_is_longer_than_its_limit(probability: float) -> None:
    """The words before the passage count as well, and an answer that lost some says so."""
    documents = [Document("1", RIVER), Document("2", "The snow melts then.")]
    whole = 0
    for most in [10_000, *range(1, 30)]:
        generator = QuotingGenerator(PassageReader(Models(("in spring", probability), ("snow", 0.1))))  # type: ignore[arg-type]
        pieces = generator.stream([Message("user", QUESTION)], Sampling(max_tokens=most), documents=documents)
        words = len("".join(piece.text for piece in pieces).split())
        whole = whole or words
        stats = generator.stats
        assert stats is not None
        assert words <= max(most, 2), "a word and its citation are the least"
        assert stats.new_tokens == words
        assert stats.finish == ("stop" if words == whole else "length")
