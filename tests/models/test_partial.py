"""A tokenizer of the pieces in use gives the ids of the whole one, in a fraction of its memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import random_tokenizer
from making.synth import model_spec
from naive.program import printed
from tokenizers import Tokenizer

from edge.errors import CorruptBlock
from edge.models import tables
from edge.models.tables import PartialTokenizer, build
from edge.models.tokenizer import PairTokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "xlm-roberta-reranker" / "tokenizer.json"
TEXT = st.text(max_size=80) | st.lists(
    st.sampled_from(["cells", "energy", "mito", " ", "  ", "\n", "é", "東京", ".", "\u0301", "</s>", "<mask>", "▁"]),
    max_size=30,
).map("".join)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "vocabulary.npz"
    assert build(GOLDEN, path, smallest=0)
    return path


def ids(tokenizer: PartialTokenizer, text: str) -> list[int]:
    return [int(n) for n in tokenizer.ids[tokenizer.tokenizer.encode(text, add_special_tokens=False).ids]]


@given(texts=st.lists(TEXT, max_size=3), size=st.integers(1, 40))
def test_ids_equal_the_whole_tokenizer(table: Path, texts: list[str], size: int) -> None:
    whole, part = Tokenizer.from_file(str(GOLDEN)), PartialTokenizer(table)
    # Pieces that reach over the end of a slice are found, too.
    with mock.patch.object(tables, "_SLICE", size):
        part.provide(texts)
    for text in texts:
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids


def test_it_grows_and_starts_anew(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = Tokenizer.from_file(str(GOLDEN)), PartialTokenizer(table)
    sizes = []
    for text in ("cells", "energy", "cells energy"):
        part.provide([text])
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids
        sizes.append(len(part.ids))
    assert sizes[0] < sizes[1] == sizes[2] < whole.get_vocab_size()
    monkeypatch.setattr(tables, "_MOST_CHARS", 3 * (6 + tables._CHARS_PER_WORD))
    part.provide(["river floods"])
    assert len(part._words) == 2
    assert ids(part, "river floods") == whole.encode("river floods", add_special_tokens=False).ids


def test_pieces_of_the_same_checksum_are_told_apart(tmp_path: Path) -> None:
    """`plumless` and `buckeroo` have one CRC-32."""
    content = json.loads(GOLDEN.read_text(encoding="utf-8"))
    content["model"]["vocab"] += [["▁", -1.0], ["plumless", -2.0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert build(tmp_path / "tokenizer.json", tmp_path / "table.npz", smallest=0)
    whole, part = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), PartialTokenizer(tmp_path / "table.npz")
    before = len(content["model"]["vocab"])
    for text in ("buckeroo", "plumless"):
        part.provide([text])
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids
        assert (before - 1 in part.ids) == (text == "plumless")


def test_a_special_token_inside_a_word_starts_another(table: Path) -> None:
    whole = Tokenizer.from_file(str(GOLDEN))
    starts = [piece for piece in whole.get_vocab() if piece.startswith("▁") and len(piece) > 2]
    assert starts
    for piece in starts:
        part, text = PartialTokenizer(table), f"x</s>{piece[1:]}"
        part.provide([text])
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids


def test_an_unknown_character_costs_what_it_costs_in_the_whole_vocabulary(tmp_path: Path) -> None:
    """Two dear pieces beat an unknown character and a cheap piece only if unknown characters are dearer still, and
    their cost follows from the dearest piece of all, which the text does not use."""
    content = json.loads(GOLDEN.read_text(encoding="utf-8"))
    content["model"]["vocab"] += [["▁", -1.0], ["ЖЫ", -30.0], ["ЫЖЫ", -1.0], ["zzzz", -1000.0]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert build(tmp_path / "tokenizer.json", tmp_path / "table.npz", smallest=0)
    whole, part = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), PartialTokenizer(tmp_path / "table.npz")
    part.provide(["ЖЫЖЫ"])
    assert ids(part, "ЖЫЖЫ") == whole.encode("ЖЫЖЫ", add_special_tokens=False).ids


def test_other_tokenizers_are_left_whole(tmp_path: Path) -> None:
    for name in ("bert-reranker", "qwen3-reranker"):
        assert not build(GOLDEN.parents[1] / name / "tokenizer.json", tmp_path / "table.npz", smallest=0)
    assert not build(GOLDEN, tmp_path / "table.npz")
    assert not (tmp_path / "table.npz").exists()


def test_a_damaged_table_is_noticed(table: Path, tmp_path: Path) -> None:
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "vocabulary.npz").write_bytes(data)
    with pytest.raises(CorruptBlock, match=r"vocabulary\.npz is corrupt"):
        PartialTokenizer(tmp_path / "vocabulary.npz").provide(["cells make energy"])
    (tmp_path / "vocabulary.npz").write_bytes(data[:100])
    with pytest.raises(CorruptBlock):
        PartialTokenizer(tmp_path / "vocabulary.npz")


@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")
def test_pairs_take_a_fraction_of_the_memory(tmp_path: Path) -> None:
    random_tokenizer.unigram(tmp_path / "tokenizer.json", 250_002)
    spec = model_spec("bge-reranker-v2-m3")
    query, docs = "how do cells make energy?", ["Cells make energy in their mitochondria. " * 90, "", "naïve 東京"]
    whole = PairTokenizer(tmp_path / "tokenizer.json", spec).encode_pairs(query, docs, 512)
    assert build(tmp_path / "tokenizer.json", tmp_path / "vocabulary.npz")
    part = PairTokenizer(tmp_path / "tokenizer.json", spec)
    assert part.encode_pairs(query, docs, 512).tokens.tolist() == whole.tokens.tolist()
    program = f"""
        import random, string
        import numpy, tokenizers
        from pathlib import Path
        from edge.models.spec import HeadSpec, LayerSpec, ModelSpec
        from edge.models.tokenizer import PairTokenizer
        from edge.resident import ResidentWatch, anonymous_resident, small_pages
        small_pages()
        tokenizer = PairTokenizer(Path({str(tmp_path / "tokenizer.json")!r}), {spec!r})
        words = ["".join(random.choices(string.ascii_lowercase, k=6)) for _ in range(3000)]
        docs = [" ".join(random.choices(words, k=300)) for _ in range(60)]
        before = anonymous_resident()
        with ResidentWatch(0.001) as watch:
            for _ in range(3):
                tokenizer.encode_pairs("a query", docs, 512)
        print(tokenizer.tables.nbytes, watch.high_water - before)
    """
    announced, peak = map(int, printed(program, folder=tmp_path).split())
    assert peak < 30 << 20
    assert announced <= 20 << 20


def test_words_without_end_are_forgotten(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters are counted, not words: one word may be a whole text."""
    part = PartialTokenizer(table)
    monkeypatch.setattr(tables, "_MOST_CHARS", 1000)
    for number in range(20):
        part.provide([f"{number}" + "cells" * 60])
    assert sum(map(len, part._words)) <= 1000


@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")
def test_a_word_of_many_characters_takes_no_more_than_announced(tmp_path: Path) -> None:
    random_tokenizer.unigram(tmp_path / "tokenizer.json", 60_000)
    assert build(tmp_path / "tokenizer.json", tmp_path / "vocabulary.npz")
    program = f"""
        import random
        from pathlib import Path
        import numpy, tokenizers
        from edge.models.tables import PartialTokenizer
        from edge.resident import ResidentWatch, anonymous_resident, small_pages
        small_pages()
        random.seed(3)
        text = "".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(20_000))
        part = PartialTokenizer(Path({str(tmp_path / "vocabulary.npz")!r}))
        before = anonymous_resident()
        with ResidentWatch(0.001) as watch:
            part.provide([text])
        print(watch.high_water - before)
    """
    assert int(printed(program, folder=tmp_path)) < 16 << 20
