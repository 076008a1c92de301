"""Tokenizers that are charged, partial or cut: the ids are those of the whole one."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from making import random_tokenizer
from making.synth import SHAPES, model_spec, synth
from naive.program import printed
from naive.waiting import PATIENCE_S
from tokenizers import Tokenizer

from edge.budget import MemoryBudget
from edge.errors import BudgetExceeded, CorruptBlock
from edge.models import clipping, tables
from edge.models.architectures import family_of
from edge.models.clipping import Clip, inseparable
from edge.models.packed import PackedModel
from edge.models.spec import ModelSpec
from edge.models.tables import PartialTokenizer, build
from edge.models.tokenizer import PairTokenizer, Vocabulary

LIMIT = 64 << 20
DOCS = ["the river floods its valley", "a bridge of grey stone"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackedModel]:
    with synth("tiny-bert", tmp_path_factory.mktemp("vocabulary") / "model") as made:
        yield made


@pytest.fixture
def budget() -> MemoryBudget:
    return MemoryBudget(LIMIT, part=True)


@pytest.fixture
def vocabulary(model: PackedModel, budget: MemoryBudget) -> Iterator[Vocabulary]:
    made = Vocabulary(model, budget, max_tokens=32)
    made.give_way()
    yield made
    made.close()


def test_it_tokenizes_as_its_tokenizer_does(model: PackedModel, vocabulary: Vocabulary) -> None:
    naive = PairTokenizer(model.tokenizer_path, model.spec, sha256=model.tokenizer_sha256)
    for _ in range(2):
        found, expected = vocabulary.pairs("river", DOCS), naive.encode_pairs("river", DOCS, 32)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        found, expected = vocabulary.texts(DOCS), naive.encode_texts(DOCS, max_tokens=32)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        assert vocabulary.length("grey " * 100, 40) == 40
        assert vocabulary.drop(), "the second round loads it again"


def test_it_is_charged_while_it_is_loaded(budget: MemoryBudget, vocabulary: Vocabulary) -> None:
    held = budget.used
    assert held >= vocabulary.nbytes > 0
    assert vocabulary.drop()
    assert budget.used == held - vocabulary.nbytes
    assert not vocabulary.drop(), "there is nothing left to give"
    vocabulary.texts(DOCS)
    with budget.reserve("other", budget.free + vocabulary.nbytes), pytest.raises(BudgetExceeded):
        vocabulary.texts(DOCS)
    vocabulary.texts(DOCS)
    assert budget.used == held
    vocabulary.close()
    vocabulary.close()
    assert budget.used == held - vocabulary.nbytes


def test_it_does_not_give_way_under_another_threads_hands(vocabulary: Vocabulary) -> None:
    tokenizing, done = threading.Event(), threading.Event()

    def hold() -> None:
        with vocabulary._lock:
            tokenizing.set()
            done.wait(PATIENCE_S)

    other = threading.Thread(target=hold)
    other.start()
    assert tokenizing.wait(PATIENCE_S)
    assert not vocabulary.drop()
    done.set()
    other.join()
    assert vocabulary.drop()


def test_texts_that_must_be_encoded_whole_or_are_many_are_leased_or_refused(
    model: PackedModel, budget: MemoryBudget
) -> None:
    """One word of a million letters is one token, and only its end shows that."""
    vocabulary = Vocabulary(model, budget, max_tokens=32)
    vocabulary.give_way()
    held = budget.used
    with pytest.raises(BudgetExceeded, match="tokenizing"):
        vocabulary.texts(["x" * 10**6])
    with budget.reserve("other", budget.free - (1 << 20)), pytest.raises(BudgetExceeded, match="tokenizing"):
        vocabulary.texts(["river"] * 60_000)
    assert budget.used == held, "nothing stays leased, and the tables were not dropped while they were in use"
    assert len(vocabulary.texts(["river"] * 60_000)) == 60_000
    wide = MemoryBudget(1 << 36, part=True)
    roomy = Vocabulary(model, wide, max_tokens=32)
    roomy.give_way()
    assert len(roomy.texts(["x" * 10**6]).tokens) == 3
    roomy.close()
    vocabulary.close()


WHOLE = Path(__file__).parents[1] / "golden" / "xlm-roberta-reranker" / "tokenizer.json"
TEXT = st.text(max_size=80) | st.lists(
    st.sampled_from(["cells", "energy", "mito", " ", "  ", "\n", "é", "東京", ".", "\u0301", "</s>", "<mask>", "▁"]),
    max_size=30,
).map("".join)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "vocabulary.npz"
    assert build(WHOLE, path, smallest=0)
    return path


def ids(tokenizer: PartialTokenizer, text: str) -> list[int]:
    return [int(n) for n in tokenizer.ids[tokenizer.tokenizer.encode(text, add_special_tokens=False).ids]]


@given(texts=st.lists(TEXT, max_size=3), size=st.integers(1, 40))
def test_ids_equal_the_whole_tokenizer(table: Path, texts: list[str], size: int) -> None:
    whole, part = Tokenizer.from_file(str(WHOLE)), PartialTokenizer(table)
    # Pieces that reach over the end of a slice are found, too.
    with mock.patch.object(tables, "_SLICE", size):
        part.provide(texts)
    for text in texts:
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids


def test_it_grows_and_starts_anew(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = Tokenizer.from_file(str(WHOLE)), PartialTokenizer(table)
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
    monkeypatch.setattr(tables, "_MOST_CHARS", 1000)
    for number in range(20):
        part.provide([f"{number}" + "cells" * 60])
    assert sum(map(len, part._words)) <= 1000, "characters are counted, not words: one word may be a whole text"


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        # `plumless` and `buckeroo` have one CRC-32.
        ([["▁", -1.0], ["plumless", -2.0]], ["buckeroo", "plumless"]),
        # Two dear pieces beat an unknown character and a cheap piece only if unknown characters are dearer still, and
        # their cost follows from the dearest piece of all, which the text does not use.
        ([["▁", -1.0], ["ЖЫ", -30.0], ["ЫЖЫ", -1.0], ["zzzz", -1000.0]], ["ЖЫЖЫ"]),
    ],
)
def test_pieces_are_told_apart_and_cost_what_they_cost_in_the_whole_vocabulary(
    tmp_path: Path, pieces: list[Any], texts: list[str]
) -> None:
    content = json.loads(WHOLE.read_text(encoding="utf-8"))
    content["model"]["vocab"] += pieces
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert build(tmp_path / "tokenizer.json", tmp_path / "table.npz", smallest=0)
    whole, part = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), PartialTokenizer(tmp_path / "table.npz")
    # A special token inside a word starts another one.
    starts = [f"x</s>{piece[1:]}" for piece in whole.get_vocab() if piece.startswith("▁") and len(piece) > 2]
    for text in (*texts, *starts):
        part.provide([text])
        assert ids(part, text) == whole.encode(text, add_special_tokens=False).ids
        if "plumless" in texts[1:]:
            assert (len(content["model"]["vocab"]) - 1 in part.ids) == (text != "buckeroo")


def test_a_damaged_table_is_noticed(table: Path, tmp_path: Path) -> None:
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "vocabulary.npz").write_bytes(data)
    with pytest.raises(CorruptBlock, match=r"vocabulary\.npz is corrupt"):
        PartialTokenizer(tmp_path / "vocabulary.npz").provide(["cells make energy"])
    (tmp_path / "vocabulary.npz").write_bytes(data[:100])
    with pytest.raises(CorruptBlock):
        PartialTokenizer(tmp_path / "vocabulary.npz")
    for name in ("bert-reranker", "qwen3-reranker"):  # other tokenizers are left whole
        assert not build(GOLDEN / name / "tokenizer.json", tmp_path / "table.npz", smallest=0)
    assert not build(WHOLE, tmp_path / "table.npz")
    assert not (tmp_path / "table.npz").exists()


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
        from edge.models.tables import PartialTokenizer
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
        random.seed(3)
        text = "".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(20_000))
        part = PartialTokenizer(Path({str(tmp_path / "vocabulary.npz")!r}))
        before = anonymous_resident()
        with ResidentWatch(0.001) as watch:
            part.provide([text])
        print(watch.high_water - before)
    """
    announced, peak, word = map(int, printed(program, folder=tmp_path).split())
    assert word < 16 << 20, "one of many characters"
    assert peak < 30 << 20
    assert announced <= 20 << 20


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
@example(text="cells" * 15 + "ᄀ", most=12, reach=1, lead="")  # a word that is unknown only as a whole
@example(text="x" * 60, most=12, reach=1, lead="")
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
