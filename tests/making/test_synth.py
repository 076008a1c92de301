"""Random models are reproducible, equal as pack and as checkpoint, and their scores say something."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from edge.models.pack import pack
from making import random_tokenizer
from making.synth import SHAPES, synth, synth_checkpoint

TINY = [name for name in SHAPES if name.startswith("tiny")]
TEXT = (
    "Semantic search finds documents by meaning rather than by keywords. An embedding model turns text into vectors, "
    "and a reranker reads the query and every candidate together before the best few are shown to the user."
)


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_pack_and_checkpoint_are_the_same_model(tmp_path: Path, name: str, precision: str) -> None:
    synth(name, tmp_path / "direct", precision, seed=3).close()  # type: ignore[arg-type]
    checkpoint = synth_checkpoint(name, tmp_path / "checkpoint", seed=3)
    with pack(checkpoint, tmp_path / "packed", precision) as model:  # type: ignore[arg-type]
        assert model.spec.head == SHAPES[name].head
        model.verify()
    for file in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "direct" / file).read_bytes() == (tmp_path / "packed" / file).read_bytes()


@pytest.mark.parametrize(("name", "size"), [("wordpiece", 30522), ("unigram", 40_000), ("byte_bpe", 40_000)])
def test_made_up_vocabularies(tmp_path: Path, name: str, size: int) -> None:
    path = tmp_path / "tokenizer.json"
    if name == "byte_bpe":
        random_tokenizer.byte_bpe(path, size, append_end=True)
    else:
        getattr(random_tokenizer, name)(path, size)
    tokenizer = Tokenizer.from_file(str(path))
    assert tokenizer.get_vocab_size(with_added_tokens=True) == size
    ids = tokenizer.encode(TEXT).ids
    assert max(ids) < size
    words = len(TEXT.split())
    assert words <= len(ids) < 3 * words
    unknown = tokenizer.token_to_id("[UNK]") or tokenizer.token_to_id("<unk>")
    assert unknown not in ids
    specials = {
        "wordpiece": {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103},
        "unigram": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": size - 1},
        "byte_bpe": {"<|endoftext|>": size - 26, "<|im_start|>": size - 25, "</think>": size - 1},
    }[name]
    assert {token: tokenizer.token_to_id(token) for token in specials} == specials
    if name == "byte_bpe":
        assert None not in (tokenizer.token_to_id("yes"), tokenizer.token_to_id("no"))
        assert ids[-1] == size - 26
