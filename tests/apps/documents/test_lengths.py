from __future__ import annotations

import importlib.resources
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.apps.documents.chunking import MOST_PER_CHARACTER, estimate_pieces

TEXTS = {
    "prose": "The river leaves its bed in spring, when the snow in the mountains melts; the roads are impassable then, "
    "and nobody in the village can say for how long it will last this year. ",
    "german": "Der Fluss tritt im Frühjahr über die Ufer, wenn der Schnee in den Bergen schmilzt, und die Straßen "
    "werden für die Dorfbewohner unpassierbar. ",
    "russian": "Река выходит из берегов весной, когда тает снег в горах, и дороги становятся непроходимыми. ",
    "chinese": "河流在春天泛滥，因为山上的雪融化了，村民们无法通过道路。",
    "korean": "봄에 산의 눈이 녹으면 강이 범람하고 마을 사람들은 길을 지날 수 없게 됩니다. ",
    "html": '<div class="nav-item"><a href="https://example.org/a/b.html?x=1&y=2">Link</a></div>\n',
    "numbers": "1997-08-23T12:00:00Z 8.2, 13.75, 1000000; 0x1f9a 192.168.17.255\n",
}


@pytest.fixture(scope="session")
def pieces() -> object:
    """The bundled reranker's tokenizer, uncut: the vocabulary that the rule is fitted to."""
    from tokenizers import Tokenizer

    models = importlib.resources.files("edge.models") / "bundled"
    (path,) = Path(str(models)).glob("*/tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", [*TEXTS, "code"])
def test_the_estimate_is_close_enough_for_a_chunk_to_fit_an_embedder(kind: str, pieces: object) -> None:
    """220 estimated pieces must be fewer than 254 real ones, and not so few that chunks become small."""
    if kind == "code":
        text = (Path(sysconfig.get_path("stdlib")) / "textwrap.py").read_text("utf-8")
    else:
        text = TEXTS[kind] * 10
    assert callable(pieces)
    assert 0.8 < pieces(text) / estimate_pieces(text) < 254 / 220


@given(st.text())
def test_no_text_has_more_pieces_than_stated(text: str) -> None:
    assert 0 <= estimate_pieces(text) <= MOST_PER_CHARACTER * len(text)


@given(st.lists(st.text(st.characters(exclude_categories=("Z", "C")), min_size=1)))
def test_words_add_up(words: list[str]) -> None:
    assert estimate_pieces(" ".join(words)) == pytest.approx(sum(map(estimate_pieces, words)))
