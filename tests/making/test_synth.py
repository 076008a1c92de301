"""Random models are reproducible, equal as pack and as checkpoint, and their scores say something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edge.errors import InputError, ModelError
from edge.models.architectures import family_of
from edge.models.pack import pack
from making import random_tokenizer
from making.synth import SHAPES, RandomWeights, synth, synth_checkpoint

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


def test_the_seed_decides(tmp_path: Path) -> None:
    prints = []
    for number, seed in enumerate((0, 0, 1)):
        with synth("tiny-bert", tmp_path / str(number), "int8", seed) as model:
            prints.append(model.load(model.layer_blocks[0])["qkv.weight"])
    np.testing.assert_array_equal(prints[0], prints[1])
    assert not np.array_equal(prints[0], prints[2])


def test_random_rows_do_not_depend_on_how_they_are_read() -> None:
    shape = SHAPES["bge-reranker-v2-m3"]
    family = family_of(shape.config)
    source = RandomWeights(family, family.spec_from_config(shape.config, shape.head, "fp32"), 0)
    whole = source.read(family.table, 100, 300)
    for start, stop in ((100, 101), (163, 230), (299, 300)):
        np.testing.assert_array_equal(source.read(family.table, start, stop), whole[start - 100 : stop - 100])
    assert len(np.unique(whole[:, 0])) == len(whole)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bge-reranker-v2-m3", 568e6),
        ("qwen3-reranker-0.6b", 596e6),
        ("ms-marco-minilm-l6", 22.7e6),
        ("bge-small-en-v1.5", 33.4e6),
    ],
)
def test_shapes_have_the_published_size(name: str, parameters: float) -> None:
    shape = SHAPES[name]
    spec = family_of(shape.config).spec_from_config(shape.config, shape.head, "int8")
    assert spec.parameters() == pytest.approx(parameters, rel=0.01)


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


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None, True])
def test_a_seed_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, seed: Any) -> None:
    for make in (synth, synth_checkpoint):
        with pytest.raises(InputError, match="the seed of random weights is a whole number of at least 0, not"):
            make("tiny-bert", tmp_path / "out", seed=seed)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_precision(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="precision 'int2' is not known; choose one of fp32, fp16, int8"):
        synth("tiny-bert", tmp_path / "out", "int2")  # type: ignore[arg-type]


def test_an_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no shape 'gpt-5'; known: bge-reranker-v2-m3"):
        synth("gpt-5", tmp_path / "pack")


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-xlm-roberta", "tiny-qwen3"])
def test_transformers_runs_it_and_scores_differ(tmp_path: Path, name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = synth_checkpoint(name, tmp_path / name)
    causal = name == "tiny-qwen3"
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSequenceClassification
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    with torch.inference_mode():
        logits = []
        for doc in [*TEXT.split(". "), "water", "the house by the sea"]:
            output = model(torch.tensor([tokenizer.encode("what is search?", doc).ids])).logits
            assert torch.isfinite(output).all()
            yes = tokenizer.token_to_id("yes")
            logits.append(output[0, -1, yes].item() if causal else output.item())
    assert np.std(logits) > 0.05
