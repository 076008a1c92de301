"""`open_generator`: one word says which generator is opened."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.assistant.generator import open_generator
from edge.budget import MemoryBudget
from edge.config import Config
from edge.errors import ConfigError, ModelError
from edge.runtimes.generation.base import Piece, Stopping
from edge.runtimes.generation.extractive import ExtractiveGenerator
from edge.text.control_characters import CONTROL


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(1 << 33)


@pytest.mark.parametrize("spec", ["", "extractive"])
def test_sentences_without_a_model(budget: MemoryBudget, spec: str) -> None:
    generator = open_generator(spec, budget, Config(), score=lambda _, texts: [0.0] * len(texts))
    assert isinstance(generator, ExtractiveGenerator)
    assert not generator.follows_instructions
    with pytest.raises(ConfigError, match="scores sentences"):
        open_generator(spec, budget, Config())


def test_server(budget: MemoryBudget) -> None:
    pytest.importorskip("httpx")
    generator = open_generator("http://127.0.0.1:8080/v1#small", budget, Config(context=999, llm_key="secret"))
    assert (generator.name, generator.context) == ("small", 999)
    generator.close()
    with pytest.raises(ConfigError, match="not this machine"):
        open_generator("https://example.com/v1", budget, Config())
    open_generator("https://example.com/v1", budget, Config(llm_remote=True)).close()


def test_model_file(budget: MemoryBudget, gguf: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    generator = open_generator(gguf(), budget, Config(threads=1, scratch_dir=str(tmp_path), context=512))
    assert (generator.name, generator.context) == (gguf().name, 512)
    generator.close()
    with pytest.raises(ModelError, match="there is no file"):
        open_generator("llama3", budget, Config())


TEXTS = st.text(alphabet="ab.é🙂\n", max_size=40)
STOPS = st.lists(st.text(alphabet="ab.é🙂\n", min_size=1, max_size=4), max_size=3)


def run(tokens: list[bytes], stop: list[str]) -> tuple[list[Piece], int]:
    """Pieces, and how many tokens were taken before the answer ended."""
    stopping = Stopping(stop)
    pieces: list[Piece] = []
    for number, data in enumerate(tokens):
        pieces += stopping.push(data, number, -float(number))
        if stopping.stopped:
            return pieces, number + 1
    pieces += stopping.finish()
    return pieces, len(tokens)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def naive(text: str, stop: list[str]) -> str:
    found = [at for at in (text.find(string) for string in stop) if at >= 0]
    return text[: min(found)] if found else text


@given(TEXTS, STOPS, st.lists(st.integers(0, 160), max_size=20))
def test_equals_the_twin_however_tokens_are_cut(text: str, stop: list[str], places: list[int]) -> None:
    """Also where a token ends inside a character or inside a stop string."""
    pieces, _ = run(cut(text.encode(), places), stop)
    assert "".join(piece.text for piece in pieces) == naive(text, stop)


@given(st.lists(st.binary(max_size=4), max_size=12))
def test_every_token_gives_one_piece_and_bytes_that_are_no_text_are_marked(tokens: list[bytes]) -> None:
    pieces, _ = run(tokens, [])
    assert "".join(piece.text for piece in pieces) == CONTROL.sub("", b"".join(tokens).decode(errors="replace"))
    given_ = [(piece.token, piece.logprob) for piece in pieces if piece.token is not None]
    assert given_ == [(number, -float(number)) for number in range(len(tokens))]


@given(TEXTS, STOPS, st.lists(st.integers(0, 160), max_size=20))
def test_stops_at_the_token_that_completes_the_string(text: str, stop: list[str], places: list[int]) -> None:
    tokens = cut(text.encode(), places)
    _, taken = run(tokens, stop)
    read = b"".join(tokens[:taken]).decode(errors="ignore")
    before = b"".join(tokens[: taken - 1]).decode(errors="ignore")
    assert naive(before, stop) == before
    assert taken == len(tokens) or naive(read, stop) != read


def test_text_is_held_back_only_while_it_may_begin_a_stop_string() -> None:
    stopping = Stopping(("\nUser:",))
    assert [piece.text for piece in stopping.push(b"Yes", 0, None)] == ["Yes"]
    assert list(stopping.push(b".\nUs", 1, None)) == []
    assert [piece.text for piece in stopping.push(b"ual", 2, None)] == [".\nUs", "ual"]
    assert list(stopping.push(b"\nUser", 3, None)) == []
    assert [piece.text for piece in stopping.push(b": more", 4, None)] == []
    assert stopping.stopped
    assert list(stopping.finish()) == []
    stopping = Stopping(("END",))
    pieces = [*stopping.push(b"all E", 7, -0.5), *stopping.push(b"ND of it", 8, -0.6)]
    assert (pieces, stopping.stopped) == ([Piece("all ", 7, -0.5)], True), "the piece in which it begins is cut"
    assert list(stopping.push_text("more", None, None)) == []


def test_what_steers_a_terminal_is_dropped() -> None:
    """Before stop strings are looked for, so that none is put together by it; the token stays, with its probability."""
    tokens = ["\x1b[31mred", "\x00", "\ta\r\n", "\x9b2J\x07b\x7f", "E\x08N", "D more"]
    pieces, taken = run([token.encode() for token in tokens], ["END"])
    assert [piece.text for piece in pieces] == ["[31mred", "", "\ta\n", "2Jb"]
    assert [piece.token for piece in pieces] == [0, 1, 2, 3]
    assert taken == len(tokens)
