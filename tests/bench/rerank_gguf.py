"""A GGUF file with the shape and vocabulary of a packed cross-encoder and random weights, for llama.cpp's server.

The weights differ from those of the packed model, so only speed and memory can be compared. The tokens of a text are
the same, because the file holds the same pieces with the same scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from making.random_gguf import BOOL, CONTROL, F32, I32, LIST, NORMAL, STRING, U32, UNKNOWN, GgufFile

from edge.errors import ModelError
from edge.models.packed import PackedModel

_FILE_TYPE = 7
"""GGUF's number for a file whose matrices are in Q8_0."""

_RANK = 4
"""llama.cpp's number for the pooling of rerankers."""

_CONTROLS = ("<s>", "<pad>", "</s>", "<mask>")


@dataclass(frozen=True, slots=True)
class RandomReranker(GgufFile):
    """The file of a model of the XLM-RoBERTa family, in Q8_0, with the vocabulary's pieces and their scores."""

    model: PackedModel
    pieces: tuple[tuple[str, float], ...]
    seed: int = 0

    @classmethod
    def of(cls, model: PackedModel) -> RandomReranker:
        """The file for a packed model."""
        vocabulary = json.loads(model.tokenizer_path.read_text(encoding="utf-8"))["model"]
        if model.spec.architecture != "xlm-roberta" or vocabulary["type"] != "Unigram":
            raise ModelError(f"llama.cpp's server is compared with models of the XLM-RoBERTa family, not {model.name}")
        return cls(model, tuple((piece, score) for piece, score in vocabulary["vocab"]))

    def metadata(self) -> Iterator[tuple[str, int, Any]]:
        """The key, type and value of every entry of the header."""
        layer = self.model.spec.layer
        kinds = [CONTROL if p in _CONTROLS else UNKNOWN if p == "<unk>" else NORMAL for p, _ in self.pieces]
        yield "general.architecture", STRING, "bert"
        yield "general.name", STRING, "random"
        yield "general.file_type", U32, _FILE_TYPE
        yield "bert.context_length", U32, self.model.spec.max_tokens
        yield "bert.embedding_length", U32, layer.hidden
        yield "bert.block_count", U32, self.model.spec.layers
        yield "bert.feed_forward_length", U32, layer.ffn
        yield "bert.attention.head_count", U32, layer.heads
        yield "bert.attention.layer_norm_epsilon", F32, layer.norm_eps
        yield "bert.attention.causal", BOOL, False
        yield "bert.pooling_type", U32, _RANK
        yield "tokenizer.ggml.model", STRING, "t5"
        yield "tokenizer.ggml.pre", STRING, "default"
        yield "tokenizer.ggml.tokens", LIST, (STRING, [piece for piece, _ in self.pieces])
        yield "tokenizer.ggml.scores", LIST, (F32, [score for _, score in self.pieces])
        yield "tokenizer.ggml.token_type", LIST, (I32, kinds)
        yield "tokenizer.ggml.token_type_count", U32, 1
        yield "tokenizer.ggml.add_space_prefix", BOOL, True
        yield "tokenizer.ggml.remove_extra_whitespaces", BOOL, True
        yield from ((f"tokenizer.ggml.{name}_token_id", U32, number) for name, number in _IDS.items())
        yield from ((f"tokenizer.ggml.add_{end}_token", BOOL, True) for end in ("bos", "eos"))

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
        """The name, shape and type of each tensor, and whether it is a norm."""
        layer = self.model.spec.layer
        hidden, wide = layer.hidden, layer.ffn
        yield "token_embd.weight", (hidden, len(self.pieces)), "Q8_0", False
        yield "position_embd.weight", (hidden, self.model.spec.max_tokens), "F32", False
        yield "token_types.weight", (hidden, 1), "F32", False
        yield from _norm("token_embd_norm", hidden)
        for number in range(self.model.spec.layers):
            block = f"blk.{number}"
            for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
                yield from _linear(f"{block}.{name}", hidden, hidden)
            yield from _norm(f"{block}.attn_output_norm", hidden)
            yield from _linear(f"{block}.ffn_up", hidden, wide)
            yield from _linear(f"{block}.ffn_down", wide, hidden)
            yield from _norm(f"{block}.layer_output_norm", hidden)
        yield from _linear("cls", hidden, hidden)
        yield "cls.output.weight", (hidden, 1), "F32", False
        yield "cls.output.bias", (1,), "F32", False


_IDS = {"bos": 0, "padding": 1, "eos": 2, "seperator": 2, "unknown": 3}
"""The ids of the special tokens. llama.cpp spells the separator's key like this."""


def _linear(name: str, width: int, out: int) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
    yield f"{name}.weight", (width, out), "Q8_0", False
    yield f"{name}.bias", (out,), "F32", False


def _norm(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...], str, bool]]:
    yield f"{name}.weight", (width,), "F32", True
    yield f"{name}.bias", (width,), "F32", False
