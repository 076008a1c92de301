"""Token ids equal those of the model's own use in Hugging Face; only documents are cut."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import random_tokenizer, synth
from naive.program import printed
from tokenizers import Tokenizer

from edge.errors import CorruptBlock, InputError, ModelError
from edge.models import clipping
from edge.models.architectures import detect_head, family_of
from edge.models.checkpoint import Checkpoint, read_json
from edge.models.clipping import Clip
from edge.models.rotary import reranker_head
from edge.models.spec import HeadSpec, ModelSpec
from edge.models.tokenizer import PairTokenizer, TokenBatch

GOLDEN = Path(__file__).parents[1] / "golden"
RERANKERS = ["bert-reranker", "xlm-roberta-reranker", "qwen3-reranker"]
EMBEDDERS = ["bert-embedder", "qwen3-embedder"]

TEXT = st.text(max_size=200) | st.lists(
    st.sampled_from(
        ["cells", "energy", " ", "  ", "\n", "é", "東京", ".", ">", ":", "'s", "12", "\u0301", "</s>", "[SEP]"]
    ),
    max_size=60,
).map("".join)
VALID = TEXT.filter(lambda text: text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def spec_of(name: str) -> ModelSpec:
    config = read_json(GOLDEN / name / "config.json")
    family = family_of(config)
    with Checkpoint(GOLDEN / name) as checkpoint:
        head = detect_head(GOLDEN / name, family, family.canonical(checkpoint.shapes))
    return family.spec_from_config(config, head, "fp32")


def load(name: str) -> PairTokenizer:
    return PairTokenizer(GOLDEN / name / "tokenizer.json", spec_of(name))


def reference(name: str) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(GOLDEN / name / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def sequences(batch: TokenBatch) -> list[list[int]]:
    starts = batch.starts
    return [[*batch.prefix.tolist(), *batch.tokens[start:end].tolist()] for start, end in itertools.pairwise(starts)]


@pytest.mark.parametrize("name", [*RERANKERS, *EMBEDDERS])
def test_ids_equal_the_golden_ones(name: str) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text(encoding="utf-8"))
    for kind, texts in (("text", expected.get("texts")), ("query", expected.get("queries"))):
        if texts is not None:
            batch = load(name).encode_texts(texts, query=kind == "query", max_tokens=expected["max_tokens"])
            assert sequences(batch) == expected[f"{kind}_ids"]
    if name in EMBEDDERS:
        return
    batch = load(name).encode_pairs(expected["query"], expected["docs"], expected["max_tokens"])
    assert sequences(batch) == expected["ids"]
    assert not batch.query_cut
    assert (len(batch.prefix) > 0) == (name == "qwen3-reranker")


@pytest.mark.parametrize("name", RERANKERS[:2])
@given(query=VALID.filter(str.strip), docs=st.lists(VALID, max_size=4), limit=st.integers(8, 60))
@settings(max_examples=60)
def test_encoder_pairs_equal_only_second(name: str, query: str, docs: list[str], limit: int) -> None:
    batch = load(name).encode_pairs(query, docs, limit)
    tokenizer = reference(name)
    special = tokenizer.num_special_tokens_to_add(is_pair=True)
    query_size = len(tokenizer.encode(query, add_special_tokens=False).ids)
    assert batch.query_cut == (query_size > (limit - special) // 2)
    if batch.query_cut:
        assert all(length <= limit for length in batch.lengths)
        return
    tokenizer.enable_truncation(limit, strategy="only_second")
    encodings = [tokenizer.encode(query, doc) for doc in docs]
    assert sequences(batch) == [encoding.ids for encoding in encodings]
    if name == "bert-reranker":
        assert batch.types.tolist() == [kind for encoding in encodings for kind in encoding.type_ids]
    else:
        assert batch.types is None


@given(query=VALID.filter(str.strip), docs=st.lists(VALID, max_size=4), limit=st.integers(260, 500))
@settings(max_examples=60)
def test_templated_pairs_equal_the_model_card(query: str, docs: list[str], limit: int) -> None:
    """The card tokenizes template, body and suffix apart, cuts the body and joins the ids."""
    batch = load("qwen3-reranker").encode_pairs(query, docs, limit)
    tokenizer = reference("qwen3-reranker")
    head = reranker_head()
    opening, user = head.prefix.split("<Instruct>")
    prefix, suffix = tokenizer.encode(opening).ids, tokenizer.encode(head.suffix).ids
    room = limit - len(prefix) - len(suffix)
    got = sequences(batch)
    for doc, ids in zip(docs, got, strict=True):
        assert len(ids) <= limit
        assert ids[-len(suffix) :] == suffix
        if not batch.query_cut:
            body = tokenizer.encode(f"<Instruct>{user}{query}{head.infix}{doc}").ids
            assert ids == prefix + body[:room] + suffix


def test_a_long_query_keeps_half_whatever_the_documents() -> None:
    query = "cells make energy " * 100
    for name, limit, special in (("bert-reranker", 33, 3), ("xlm-roberta-reranker", 34, 4)):
        tokenizer = load(name)
        alone, together = (
            tokenizer.encode_pairs(query, [""], limit),
            tokenizer.encode_pairs(query, ["", "sugar " * 90], limit),
        )
        assert alone.query_cut
        assert together.query_cut
        assert together.lengths.tolist() == [special + 15, limit]
        assert sequences(alone)[0] == sequences(together)[0]
    qwen = load("qwen3-reranker")
    batch = qwen.encode_pairs(query, ["sugar " * 400, "x"], 300)
    assert batch.query_cut
    assert sequences(batch)[0][: len(batch.prefix)] == batch.prefix.tolist()
    assert len(sequences(batch)[0]) == 300
    template = len(qwen.encode_pairs("x", ["x"], 300).prefix)
    assert len(batch.prefix) - template <= (300 - template) // 2


def test_a_query_of_few_tokens_and_many_characters() -> None:
    """The length of the query's beginning is not taken for that of the whole query."""
    query = "\n" * 40 + " energy" * 300
    whole = load("qwen3-reranker").encode_pairs(query, ["cells " * 200], 300)
    with mock.patch.object(clipping, "_CHARS_PER_TOKEN", 1):
        batch = load("qwen3-reranker").encode_pairs(query, ["cells " * 200], 300)
    assert batch.query_cut
    assert sequences(batch) == sequences(whole)
    assert batch.lengths[0] + len(batch.prefix) == 300


def test_texts_longer_than_the_model_are_cut() -> None:
    for name in EMBEDDERS:
        tokenizer = load(name)
        batch = tokenizer.encode_texts(["energy " * 2000, "energy"])
        assert batch.lengths[0] == tokenizer.spec.max_tokens
        assert sequences(batch)[0][-1] == sequences(batch)[1][-1]  # the end token stays
        assert batch.lengths[0] == tokenizer.encode_texts(["energy " * 2000], max_tokens=10**6).lengths[0]
    marked = replace(load("bert-embedder").spec, head=HeadSpec("mean", query_prefix="how ", document_prefix="the "))
    plain, tokenizer = load("bert-embedder"), PairTokenizer(GOLDEN / "bert-embedder" / "tokenizer.json", marked)
    assert sequences(tokenizer.encode_texts(["cells"], query=True)) == sequences(plain.encode_texts(["how cells"]))
    assert sequences(tokenizer.encode_texts(["cells"])) == sequences(plain.encode_texts(["the cells"]))


@pytest.mark.parametrize("name", [*RERANKERS, *EMBEDDERS])
def test_long_documents_are_cut_before_they_are_tokenized(name: str) -> None:
    """The clip changes no id, and spares tokenizing the text that the model does not read."""
    tokenizer = reference(name)
    spec = replace(spec_of(name), max_tokens=400)
    own = PairTokenizer(GOLDEN / name / "tokenizer.json", spec)
    rng = np.random.default_rng(0)
    words = ["Cells", "make", "energy,", "in", "the", "oxygen.", "—", "東京", "x" * 300, " ", "\n", "  ", "É", "q"]
    for _ in range(5):
        text = " ".join(rng.choice(words, 4000))
        expected = tokenizer.encode(text, add_special_tokens=False).ids[:150]
        assert next(own._many([text], 150)).tolist() == expected
    assert len(Clip("word " * 10**6, 100).text) < 1000
    assert Clip("x" * 10**6, 100).text == "x" * 10**6
    assert len(Clip("x" * 10**6, 100, inseparable=()).text) < 1000


def test_no_clip_parts_a_run_of_spaces(tmp_path: Path) -> None:
    content = json.loads((GOLDEN / "qwen3-reranker" / "tokenizer.json").read_text(encoding="utf-8"))
    content["model"]["vocab"]["ĠĠ"] = 1000
    content["model"]["merges"].append(["Ġ", "Ġ"])
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    own = PairTokenizer(tmp_path / "tokenizer.json", spec_of("qwen3-reranker"))
    whole = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for length in range(1, 40):
        text = "." * length + "   ab   cd   .   ef" * 4
        with mock.patch.object(clipping, "_CHARS_PER_TOKEN", 1):
            for most in range(length, length + 9):
                assert next(own._many([text], most)).tolist() == whole.encode(text).ids[:most]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny packed reranker."""
    folder = tmp_path_factory.mktemp("tiny") / "pack"
    synth.synth("tiny-bert", folder).close()
    return folder


def test_the_library_starts_no_threads(tmp_path: Path, tiny: Path) -> None:
    """And warns of none after a fork."""
    program = f"""
        import os, psutil
        from edge.models import clipping
        from edge.models.packed import PackedModel
        from edge.models.tokenizer import PairTokenizer
        model = PackedModel.open({str(tiny)!r})
        before = psutil.Process().num_threads()
        tokenizer = PairTokenizer(model.tokenizer_path, model.spec)
        tokenizer.encode_pairs("q", ["document " * 50] * 500)
        assert psutil.Process().num_threads() == before, (psutil.Process().num_threads(), before)
        pid = os.fork() if hasattr(os, "fork") else 0
        tokenizer.encode_pairs("q", ["document " * 50] * 500)
        if pid:
            os.waitpid(pid, 0)
    """
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["bert-reranker", "qwen3-reranker"])
def test_text_that_cannot_be_used(name: str) -> None:
    tokenizer = load(name)
    for query in ("", "  \n"):
        with pytest.raises(InputError, match="the query is empty"):
            tokenizer.encode_pairs(query, ["a"])
    with pytest.raises(InputError, match="the query is not valid Unicode: character 2"):
        tokenizer.encode_pairs("ab\ud800", ["a"])
    with pytest.raises(InputError, match="the query is not valid Unicode: character 100001"):
        tokenizer.encode_pairs("é" * 100_001 + "\ud800", ["a"])
    with pytest.raises(InputError, match="document 1 is not valid Unicode"):
        tokenizer.encode_pairs("q", ["a", "\udc80"])
    with pytest.raises(InputError, match="document 0 is bytes, text is needed"):
        tokenizer.encode_pairs("q", [b"a"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="text 1 is not valid Unicode"):
        tokenizer.encode_texts(["a", "\ud800b"])
    with pytest.raises(InputError, match="leave no room"):
        tokenizer.encode_pairs("q", ["a"], 4)
    assert len(tokenizer.encode_pairs("q", [])) == 0


def test_a_text_without_tokens_and_files_that_are_no_tokenizers(tmp_path: Path) -> None:
    spec = replace(spec_of("qwen3-reranker"), head=HeadSpec("last-token"))
    with pytest.raises(InputError, match="text 1 has no tokens"):
        PairTokenizer(GOLDEN / "qwen3-reranker" / "tokenizer.json", spec).encode_texts(["a", ""])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        PairTokenizer(tmp_path / "tokenizer.json", spec).tables.ready()
    with pytest.raises(CorruptBlock, match="does not match its sha256"):
        PairTokenizer(tmp_path / "tokenizer.json", spec, sha256="00").tables.ready()


@pytest.mark.skipif(sys.platform != "linux", reason="reads RssAnon")
def test_many_short_documents_take_what_is_reserved(tmp_path: Path, tiny: Path) -> None:
    program = f"""
        import numpy, tokenizers
        from edge.budget import MemoryBudget
        from edge.models.packed import PackedModel
        from edge.models.tokenizer import PairTokenizer
        from edge.resident import ResidentWatch, anonymous_resident, small_pages
        small_pages()
        most = 0
        class Watched(MemoryBudget):
            def _resize(self, lease, nbytes, **options):
                global most
                super()._resize(lease, nbytes, **options)
                most = max(most, self.used)
        model = PackedModel.open({str(tiny)!r})
        tokenizer = PairTokenizer(model.tokenizer_path, model.spec, budget=Watched(1 << 40, part=True))
        docs = [chr(97 + n % 26) * (n % 6 + 2) for n in range(200_000)]
        tokenizer.encode_pairs("a query", docs[:100])
        before = anonymous_resident()
        with ResidentWatch(0.001) as watch:
            tokenizer.encode_pairs("a query", docs)
        print(watch.high_water - before, most)
    """
    grown, most = map(int, printed(program, folder=tmp_path).split())
    assert grown < most + (7 << 20), "a group of texts is never reserved"


def test_release_gives_the_memory_back(tmp_path: Path) -> None:
    """In a process of its own, where nothing else moves the measurement."""
    path = tmp_path / "tokenizer.json"
    random_tokenizer.wordpiece(path, 30522)
    program = f"""
        from pathlib import Path
        from edge.models.spec import HeadSpec, LayerSpec, ModelSpec
        from edge.models.tokenizer import PairTokenizer
        from edge.resident import anonymous_resident
        tokenizer = PairTokenizer(Path({str(path)!r}), {synth.model_spec("ms-marco-minilm-l6")!r})
        estimate = tokenizer.tables.nbytes
        import tokenizers, numpy
        before = anonymous_resident()
        first = tokenizer.encode_pairs("a query", ["a document"]).tokens.tolist()
        assert tokenizer.tables.loaded
        held = tokenizer.tables.nbytes
        assert 0.5 * estimate < held < 2 * estimate, (estimate, held)
        grown = anonymous_resident() - before
        assert abs(grown - held) < 3 << 20, (grown, held)
        tokenizer.tables.release()
        assert not tokenizer.tables.loaded
        assert anonymous_resident() - before < held / 4, anonymous_resident() - before
        assert tokenizer.encode_pairs("a query", ["a document"]).tokens.tolist() == first
    """
    printed(program, folder=tmp_path)
