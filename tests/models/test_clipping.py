"""Texts without spaces are cut anywhere, and the ids kept are those of the whole text."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making import random_tokenizer
from making.synth import SHAPES
from naive.program import printed
from tokenizers import Tokenizer

from edge.models import clipping
from edge.models.architectures import family_of
from edge.models.clipping import Clip, inseparable
from edge.models.spec import ModelSpec
from edge.models.tables import build
from edge.models.tokenizer import PairTokenizer

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = ["bert-reranker", "xlm-roberta-reranker", "qwen3-reranker"]
_PARTS = (
    "cells energy x xxx 9 \" { ' 'r e 東 京都 é e\u0301 \u0301 각 가 \u11a8 ᄀ 。 ﷺ ¨ 🙂 🙂\u200d🙂 กำ [SEP] </s> "
    "<mask> <|im_end|> </think> [ SEP] \x01 ß İ ▁"
)
UNSPACED = st.lists(st.sampled_from([*_PARTS.split(" "), "\n", "\u3000", " ", "  "]), min_size=20, max_size=120).map(
    "".join
)


def spec_of(kind: str) -> ModelSpec:
    shape = SHAPES[kind]
    return family_of(shape.config).spec_from_config(shape.config, shape.head, "fp32")


def load(path: Path) -> PairTokenizer:
    # Nothing of the description matters here.
    return PairTokenizer(path, spec_of("tiny-bert"))


def whole(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def first(tokenizer: PairTokenizer, text: str, most: int, reach: int = 1, lead: str = "") -> list[int]:
    """The first ids, found with clips that are too short at first."""
    with mock.patch.object(clipping, "_CHARS_PER_TOKEN", reach), mock.patch.object(clipping, "_GROWTH", 2):
        return next(tokenizer._many([text], most, lead)).tolist()


@pytest.fixture(scope="module", params=[*NAMES, "partial"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param != "partial":
        return GOLDEN / request.param / "tokenizer.json"
    folder = tmp_path_factory.mktemp("partial")
    content = (GOLDEN / "xlm-roberta-reranker" / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(content)
    assert build(folder / "tokenizer.json", folder / "vocabulary.npz", smallest=0)
    return folder / "tokenizer.json"


@given(text=UNSPACED, most=st.integers(1, 40), reach=st.integers(1, 3), lead=st.sampled_from(["", " ", "cell"]))
@settings(max_examples=250)
@example(text="cells" + "[SEP]" * 30, most=12, reach=1, lead="")
@example(text="e" * 40 + "\u0301" * 40, most=30, reach=1, lead="")
@example(text="'r" * 40 + "e", most=30, reach=1, lead="")
def test_ids_equal_those_of_the_whole_text(path: Path, text: str, most: int, reach: int, lead: str) -> None:
    expected = whole(path).encode(lead + text, add_special_tokens=False).ids[:most]
    assert first(load(path), text, most, reach, lead) == expected


@pytest.mark.parametrize("length", range(30, 60))
def test_a_beginning_that_depends_on_the_end(tmp_path: Path, length: int) -> None:
    """Of pieces that cost the same, and of merges of one letter, which come first depends on how many remain."""
    content = json.loads((GOLDEN / "xlm-roberta-reranker" / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"] += [["▁", -1.0], ["q", -9.0], ["qq", -9.5], ["qqq", -1.0], ["▁qq", -0.5]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    for text in ("q" * length, "q" * length + "qqx" * length):
        expected = whole(path).encode(text, add_special_tokens=False).ids
        for most in (1, 4, 9):
            assert first(load(path), text, most) == expected[:most]


def test_a_word_that_is_unknown_only_as_a_whole() -> None:
    """WordPiece knows the beginning's pieces, but gives the word up for one character at its end."""
    path = GOLDEN / "bert-reranker" / "tokenizer.json"
    for text in ("cells" * 15 + "ᄀ", "x" * 60 + "x" * 60, "x" * 60):
        expected = whole(path).encode(text, add_special_tokens=False).ids
        assert first(load(path), text, 12) == expected[:12]


def test_a_text_without_spaces_is_cut() -> None:
    path = GOLDEN / "qwen3-reranker" / "tokenizer.json"
    tokens = inseparable(whole(path))
    assert tokens is not None
    for text in ("東京都" * 9999, '{"k":12},' * 9999, "</think>" * 9999, "a 東" + "京" * 9999):
        clip = Clip(text, 100, inseparable=tokens)
        assert clip.open
        assert 200 < len(clip.text) < 1000
        assert clip.text.count("<") == clip.text.count(">"), "no special token is parted"
    assert not Clip("word " * 9999, 100, inseparable=tokens).open


def parts(name: str, **changes: Any) -> Tokenizer:
    content = json.loads((GOLDEN / name / "tokenizer.json").read_text(encoding="utf-8"))
    return Tokenizer.from_str(json.dumps({**content, **changes}))


def test_other_tokenizers_are_cut_at_words_only() -> None:
    """Nothing is assumed about unknown patterns, or about tokens that normalisation brings forth."""
    for name in NAMES:
        assert inseparable(parts(name)) is not None
    pattern = {"type": "Split", "pattern": {"Regex": "a+(?=.*b)"}, "behavior": "Isolated", "invert": False}
    assert inseparable(parts("qwen3-reranker", pre_tokenizer=pattern)) is None
    assert inseparable(parts("qwen3-reranker", pre_tokenizer={"type": "Sequence", "pretokenizers": [pattern]})) is None
    replace = {"type": "Replace", "pattern": {"Regex": "a.*b"}, "content": "c"}
    assert inseparable(parts("bert-reranker", normalizer=replace)) is None
    assert inseparable(parts("bert-reranker", normalizer={**replace, "pattern": {"Regex": " {2,}"}})) is not None
    added = {"id": 1, "content": "x", "lstrip": False, "special": False}
    for flags in itertools.product((False, True), repeat=3):
        token = {**added, **dict(zip(("single_word", "rstrip", "normalized"), flags, strict=True))}
        assert (inseparable(parts("bert-reranker", added_tokens=[token])) is None) == any(flags)


@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "qwen3"])
def test_a_long_text_takes_no_more_memory_than_a_group(tmp_path: Path, kind: str) -> None:
    write = {"bert": random_tokenizer.wordpiece, "xlm-roberta": random_tokenizer.unigram}.get(kind)
    if write is not None:
        write(tmp_path / "tokenizer.json", 8000)
    else:
        random_tokenizer.byte_bpe(tmp_path / "tokenizer.json", 8000, append_end=False)
    program = f"""
        import random
        from pathlib import Path
        import numpy, tokenizers
        from edge.models.spec import HeadSpec, LayerSpec, ModelSpec
        from edge.models.tokenizer import PairTokenizer
        from edge.resident import ResidentWatch, anonymous_resident, small_pages
        small_pages()
        random.seed(3)
        tokenizer = PairTokenizer(Path({str(tmp_path / "tokenizer.json")!r}), {spec_of(f"tiny-{kind}")!r})
        texts = ['["a"' + ',{{"k":12,"v":[1,2,3]}}' * 50_000,
                 "".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(200_000))]
        next(tokenizer._many(["a b"], 9))
        before = anonymous_resident()
        with ResidentWatch(0.001) as watch:
            for ids in tokenizer._many(texts, 512):
                pass
        print(watch.high_water - before)
    """
    # A whole text of these takes 30 to 400 MB.
    assert int(printed(program, folder=tmp_path)) < 10 << 20
