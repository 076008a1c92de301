"""The file that llama.cpp's server is measured with has the shape and the tokens of the packed model."""

from __future__ import annotations

from pathlib import Path

import pytest
from making.synth import synth

from bench.rerank_gguf import RandomReranker
from edge.errors import ModelError
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.generation.gguf_file import GGUFFile


def test_tokens_equal_those_of_the_packed_model(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    with synth("tiny-xlm-roberta", tmp_path / "pack", "int8") as model:
        path = RandomReranker.of(model).write(tmp_path / "random.gguf")
        text = "how do cells make energy, and what is an acid"
        batch = PairTokenizer(model.tokenizer_path, model.spec).encode_texts([text])
    loaded = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    assert loaded.tokenize(text.encode()) == batch.tokens.tolist()


def test_the_shape_is_that_of_the_packed_model(tmp_path: Path) -> None:
    with synth("tiny-xlm-roberta", tmp_path / "pack", "int8") as model:
        header = GGUFFile.open(RandomReranker.of(model).write(tmp_path / "random.gguf"))
        assert header.architecture == "bert"
        assert header.value("block_count") == model.spec.layers
        assert header.value("embedding_length") == model.spec.layer.hidden


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    with synth("tiny-bert", tmp_path / "pack", "int8") as model, pytest.raises(ModelError, match="XLM-RoBERTa"):
        RandomReranker.of(model)
