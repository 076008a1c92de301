"""Ctrl-C while an answer is written, and between answers: the output then, and the work that goes on."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

from edge.apps.assistant import ask
from edge.apps.assistant.answer import Answer
from edge.apps.assistant.ask import shown
from edge.apps.assistant.assistant import AnswerStream, Conversation, Texts, Turn, Turns, Writing
from edge.apps.store.failures import Health
from edge.apps.verbs.home import OwnHome
from edge.apps.verbs.requests import Ask
from edge.errors import ModelError

Told = Callable[[], None]


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """As in a terminal: a shell that runs the tests in the background may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def broken() -> None:
    raise ModelError("the server broke off")


class FakeAssistant:
    """Says `word0 word1 ...`, and lets something happen after some of them."""

    def __init__(self, steps: Any, happens: dict[int, Told], passages: Sequence[Any] = ()) -> None:
        self.collection = self
        self._steps = steps
        self._happens = happens
        self._passages = passages
        self._turns = Turns()

    def stream(self, question: str) -> AnswerStream:
        return self._stream(question, (), lambda turn: None)

    def chat(self, *, options: Any = None) -> Conversation:
        return Conversation(self._stream)

    def health(self) -> Health:
        return Health()

    def _stream(self, question: str, turns: Sequence[Turn], keep: Callable[[Turn], None]) -> AnswerStream:
        made = self._steps()
        made.given = self._passages

        def write(writing: Writing) -> Texts:
            writing.question = question
            for at in range(4):
                self._happens.get(at, lambda: None)()
                made._go_on()
                yield f"word{at} "

        def done(answer: Answer) -> None:
            keep(Turn(question, question, answer))

        return AnswerStream(write, made, self._turns, done)


@pytest.fixture
def assistant(steps: Any, generator: Any, hit: Any) -> Callable[[dict[int, Told]], FakeAssistant]:
    return lambda happens: FakeAssistant(lambda: steps(generator(str)), happens, [hit(1, "Word.")])


@pytest.fixture
def ask_it(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs `edge ask` with an assistant of our own."""

    def run(made: FakeAssistant, *arguments: str) -> Any:
        @contextmanager
        def opened(self: OwnHome, asked: Ask) -> Iterator[FakeAssistant]:
            yield made

        monkeypatch.setattr(OwnHome, "assistant", opened)
        return CliRunner().invoke(ask.ask, ["q", *arguments], standalone_mode=False)

    return run


def test_interrupted_before_its_first_word_an_answer_has_no_sources(assistant: Any, ask_it: Any) -> None:
    result = ask_it(assistant({0: ctrl_c}))
    assert (result.stdout, result.return_value) == ("", ask.INTERRUPTED)
    assert "1.md" in ask_it(assistant({1: ctrl_c})).stdout


@pytest.mark.parametrize(("happens", "kind"), [(broken, ModelError), (lambda: [ctrl_c(), ctrl_c()], KeyboardInterrupt)])
def test_what_follows_a_broken_answer_stands_on_a_line_of_its_own(
    assistant: Any, capsys: pytest.CaptureFixture[str], happens: Told, kind: type[BaseException]
) -> None:
    with pytest.raises(kind):
        shown(assistant({1: happens}).stream("q"))
    assert capsys.readouterr().out == "word0 \n"


def test_passages_left_out_are_told(assistant: Any, ask_it: Any, steps: Any, generator: Any) -> None:
    made = steps(generator(str))
    told = FakeAssistant(lambda: made, {0: lambda: made.trace.count("assistant.dropped", 2)})
    result = ask_it(told, "--json", "--stats")
    assert json.loads(result.stdout)["stats"]["dropped"] == 2
    assert "edge: 2 passages were left out, since the context of fake does not hold more" in result.stderr
    assert "; 2 passages left out" in result.stderr
    assert "left out" not in ask_it(assistant({})).stderr


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The lines that somebody types at a terminal; an item that can be called is called instead."""

    def script(*lines: str | Told) -> None:
        left = list(lines)

        def read(prompt: str) -> str:
            if not left:
                raise EOFError
            line = left.pop(0)
            if isinstance(line, str):
                return line
            line()
            raise AssertionError("nothing happened")

        monkeypatch.setattr("builtins.input", read)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)

    return script


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (ctrl_c, "Ctrl-D or /quit ends"),
        (lambda: b"caf\xe9".decode("utf-8"), "edge: what was typed is not valid UTF-8 (byte 3)"),
    ],
)
def test_what_goes_wrong_at_the_prompt_gives_a_fresh_line(
    assistant: Any, typed: Any, capsys: pytest.CaptureFixture[str], happens: Told, said: str
) -> None:
    typed(happens, "q")
    ask._talk(assistant({}), False, False)
    printed = capsys.readouterr()
    assert said in printed.err
    assert "word3" in printed.out, "the conversation goes on"


def test_a_second_ctrl_c_ends_the_answer_and_not_the_conversation(
    assistant: Any, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    happens: dict[int, Told] = {1: lambda: [ctrl_c(), ctrl_c()]}  # type: ignore[dict-item,func-returns-value]
    typed("first question", "/why")
    ask._talk(assistant(happens), False, False)
    printed = capsys.readouterr()
    assert printed.out.startswith("word0 \n")
    assert "edge: interrupted" in printed.err
    assert "question   first question" in printed.out, "what was said is part of the conversation"


def test_without_a_terminal_a_second_ctrl_c_ends_it_all(assistant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_lines", lambda: iter(["q", "q"]))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    with pytest.raises(KeyboardInterrupt):
        ask._talk(assistant({1: lambda: [ctrl_c(), ctrl_c()]}), False, False)
