"""`ReplayGenerator` gives the tokens that `Recorder` wrote, when they are due."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import InputError, ModelError, StorageError
from edge.runtimes.generation.base import Document, GenerationStats, Message, Piece, Sampling
from making.recording import Recorder, Speed
from making.replay import ReplayGenerator

AT_ONCE = Speed(float("inf"), float("inf"))
SLOW = Speed(1e9, 1e-3)
HEADER = {"format": "edge-replay/1", "name": "model", "context": 100, "prefill": 1e9, "decode": 1e9}


class Echo:
    """Answers with the last message, a letter at a time."""

    name = "echo"
    context = 100
    follows_instructions = True

    def __init__(self) -> None:
        self.stats: GenerationStats | None = None

    def count(self, text: str) -> int:
        return len(text)

    def stream(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        documents: Sequence[Document] = (),
        cancel: threading.Event | None = None,
    ) -> Iterator[Piece]:
        text = messages[-1].content
        for number, letter in enumerate(text):
            yield Piece(letter, number, -0.25 * number)
        finish = "cancelled" if "stop" in text else "length"
        self.stats = GenerationStats(40 + len(documents), 0, len(text), 0.1, 0.2, finish=finish)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


def ask(text: str) -> list[Message]:
    return [Message("system", "s"), Message("user", text)]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def test_what_was_recorded_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    recorder = Recorder(Echo(), path, speed=Speed(2000, 50))
    for text in ("héllo", "stop", "wörld"):
        assert "".join(piece.text for piece in recorder.stream(ask(text), Sampling())) == text
    assert recorder.stats is not None
    assert recorder.count("abc") == 3
    recorder.close()

    replay = ReplayGenerator(path)
    assert (replay.name, replay.context, replay.speed) == ("echo", 100, Speed(2000, 50))
    assert replay.seconds(ask("wörld")) == 40 / 2000 + 5 / 50
    replay = ReplayGenerator(path, speed=AT_ONCE)
    for text in ("wörld", "héllo", "wörld"):  # in any order, as often as wanted
        pieces = list(replay.stream(ask(text), Sampling(), documents=[Document("any", "thing")]))
        assert pieces == [Piece(letter, None, -0.25 * number) for number, letter in enumerate(text)]
    stats = replay.stats
    assert stats is not None
    assert (stats.prompt_tokens, stats.new_tokens, stats.finish) == (40, 5, "stop")
    with pytest.raises(InputError, match="no answer to 'stop' among its 2"):  # it was cancelled, so it is no answer
        replay.stream(ask("stop"), Sampling())


def test_answers_by_turn_and_of_fixed_length(tmp_path: Path) -> None:
    lines = [HEADER, *({"text": text, "tokens": 3, "prompt_tokens": 7} for text in ("abcdefgh", "xy"))]
    path = write(tmp_path / "r.jsonl", *lines)
    for _ in range(2):
        replay = ReplayGenerator(path)
        assert [piece.text for piece in replay.stream(ask("anything"), Sampling())] == ["ab", "cde", "fgh"]
        assert [piece.text for piece in replay.stream(ask("else"), Sampling())] == ["", "x", "y"]
        with pytest.raises(InputError, match="2 answers, and all have been given; a new ReplayGenerator begins"):
            replay.stream(ask("more"), Sampling())


def test_longest_answer(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, {"text": "abcdef", "tokens": 6, "prompt_tokens": 1})
    replay = ReplayGenerator(path)
    assert len(list(replay.stream(ask("q"), Sampling(max_tokens=4)))) == 4
    assert replay.stats is not None
    assert replay.stats.finish == "length"


def test_time_passes_as_stated(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, {"text": "abcde", "tokens": 5, "prompt_tokens": 100})
    replay = ReplayGenerator(path, speed=Speed(2000, 100))
    list(replay.stream(ask("q"), Sampling()))
    assert replay.stats is not None
    assert replay.stats.ttft_s >= 100 / 2000 + 1 / 100
    assert replay.stats.seconds >= 100 / 2000 + 5 / 100


def test_work_between_two_tokens_delays_the_second(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, {"text": "abcde", "tokens": 5, "prompt_tokens": 1})
    replay = ReplayGenerator(path, speed=Speed(1e9, 50))
    for _ in replay.stream(ask("q"), Sampling()):
        time.sleep(0.02)
    assert replay.stats is not None
    assert replay.stats.seconds >= 5 / 50 + 5 * 0.02


def test_what_was_read_of_each_answer_is_given_again_by_turn(tmp_path: Path) -> None:
    """The same question twice, with other documents; an answer of which not everything was wanted; and none at all."""
    path = tmp_path / "trace.jsonl"
    recorder = Recorder(Echo(), path)
    recorder.asked = "q1"
    assert len(list(recorder.stream(ask("same"), Sampling()))) == 4
    list(recorder.stream(ask("same"), Sampling(), documents=[Document("d", "text")]))
    with closing(recorder.stream(ask("wörld"), Sampling())) as begun:
        assert [next(begun).text, next(begun).text] == ["w", "ö"]
    list(recorder.stream(ask(""), Sampling()))
    recorder.close()
    replay = ReplayGenerator(path, speed=AT_ONCE)
    first = list(replay.stream(ask("same"), Sampling()))
    assert first == [Piece(letter, None, -0.25 * number) for number, letter in enumerate("same")]
    assert replay.stats is not None
    assert replay.stats.finish == "length"
    list(replay.stream(ask("same"), Sampling()))
    assert replay.stats.prompt_tokens == 41
    assert [piece.text for piece in replay.stream(ask("wörld"), Sampling())] == ["w", "ö"]
    assert list(replay.stream(ask("anything"), Sampling())) == []
    assert '"for": "q1"' in path.read_text("utf-8")


def test_cancelled_while_it_waits(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEADER, {"text": "abc", "tokens": 3, "prompt_tokens": 1})
    cancel = threading.Event()
    threading.Timer(0.05, cancel.set).start()
    replay = ReplayGenerator(path, speed=SLOW)
    assert list(replay.stream(ask("q"), Sampling(), cancel=cancel)) == []
    assert replay.stats is not None
    assert (replay.stats.finish, replay.stats.new_tokens) == ("cancelled", 0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no answers"),
        ([HEADER], "has no answers"),
        (["not json"], "line 1"),
        ([{**HEADER, "context": "many"}], "line 1"),
        ([{**HEADER, "decode": -1}], "line 1: speeds are above 0"),
        ([[]], "line 1"),
        ([{"format": "other"}], "line 1: its format is 'other'"),
        ([HEADER, {"text": "a", "tokens": 0, "prompt_tokens": 1}], "line 2: an answer of 0 tokens"),
        ([HEADER, {"text": "a", "tokens": 2**60, "prompt_tokens": 1}], "line 2: an answer of 1152"),
        ([HEADER, {"text": "a", "prompt_tokens": 1}], "line 2"),
        ([HEADER, {"text": "abc", "letters": [1, 1], "prompt_tokens": 1}], "line 2: the lengths of its tokens"),
        ([HEADER, {"text": "abc", "letters": [4, -1], "prompt_tokens": 1}], "line 2: the lengths of its tokens"),
        ([HEADER, {"text": "abc", "letters": [1, 2], "logprobs": [1], "prompt_tokens": 1}], "line 2"),
        ([HEADER, {"text": "a", "tokens": 1, "prompt_tokens": 1, "finish": "never"}], "line 2: an answer that ended"),
        ([HEADER, {"messages": [{"who": "me"}], "text": "a", "tokens": 1, "prompt_tokens": 1}], "line 2"),
        ([HEADER, {"pieces": [["a", None]], "prompt_tokens": 1}, "[1"], "line 3"),
        (
            [
                HEADER,
                {"pieces": [["a", None]], "prompt_tokens": 1},
                {"messages": [], "pieces": [["a", None]], "prompt_tokens": 1},
            ],
            "name no messages",
        ),
        ([{"format": "edge-replay/1"}, {"text": "a", "tokens": 1, "prompt_tokens": 1}], "without speeds"),
    ],
)
def test_bad_recordings(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ReplayGenerator(write(tmp_path / "r.jsonl", *lines))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


KEYS = st.sampled_from(
    [
        "text",
        "tokens",
        "letters",
        "logprobs",
        "finish",
        "prompt_tokens",
        "pieces",
        "messages",
        "context",
        "name",
        "prefill",
        "decode",
    ]
)


@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON))
def test_no_line_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, object], line: dict[str, object]
) -> None:
    path = write(tmp_path_factory.mktemp("replay") / "r.jsonl", {**HEADER, **header}, line)
    with suppress(ModelError):
        ReplayGenerator(path)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        ReplayGenerator(tmp_path / "none.jsonl")
    with pytest.raises(StorageError, match="cannot be written"):
        Recorder(Echo(), tmp_path / "none" / "r.jsonl")
    with pytest.raises(InputError, match="above 0"):
        Speed(0, 1)
