"""Models with random weights in published shapes, for measurements of time and memory, never of quality.

The weights come from a stream of random numbers that can be read from any position. So a pack and a Hugging Face
checkpoint of the same seed hold the same model, and both can be written without holding all weights in memory.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.models import rotary
from edge.models.architectures import family_of
from edge.models.family import Family, part_rows
from edge.models.manifest import DATA, TOKENIZER, Staging
from edge.models.pack import pack_weights
from edge.models.packed import PackedModel
from edge.models.spec import HeadSpec, ModelSpec, Precision
from making import random_tokenizer

Floats = npt.NDArray[np.float32]

_STREAM = 1 << 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A published model's shape: its config.json and its head."""

    config: Mapping[str, Any]
    head: HeadSpec


Config = dict[str, Any]


def _encoder(kind: str, layers: int, hidden: int, heads: int, vocab: int, positions: int, labels: int) -> Config:
    classes = {"bert": "Bert", "gte": "Gte", "mpnet": "MPNet", "xlm-roberta": "XLMRoberta"}
    roberta = kind == "xlm-roberta"
    return {
        "architectures": [classes[kind] + ("ForSequenceClassification" if labels else "Model")],
        "model_type": kind,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "hidden_act": "gelu",
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **({} if kind == "mpnet" else {"type_vocab_size": 1 if roberta else 2}),
        "layer_norm_eps": 1e-5 if roberta else 1e-12,
        "pad_token_id": 1 if roberta else 0,
        **({"position_embedding_type": "absolute"} if kind in ("bert", "xlm-roberta") else {}),
        **({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if labels else {}),
    }


def _jina(layers: int, hidden: int, heads: int, vocab: int, labels: int) -> Config:
    config = _encoder("bert", layers, hidden, heads, vocab, 8192, labels)
    return {**config, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}


def _decoder(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, vocab: int) -> Config:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": ffn,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    }


def _modern(layers: int, hidden: int, heads: int, ffn: int, vocab: int, labels: int) -> Config:
    return {
        "architectures": ["ModernBertForSequenceClassification" if labels else "ModernBertModel"],
        "model_type": "modernbert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": 8192,
        "global_attn_every_n_layers": 3,
        "pad_token_id": 0,
        "local_attention": 6,
        **({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if labels else {}),
    }


_CLASSIFIER = HeadSpec(kind="classifier")
_MODERN_CLASSIFIER = HeadSpec(kind="classifier", activation="gelu", normed=True)

SHAPES: dict[str, Shape] = {
    "bge-reranker-v2-m3": Shape(_encoder("xlm-roberta", 24, 1024, 16, 250002, 8194, 1), _CLASSIFIER),
    "ms-marco-minilm-l6": Shape(_encoder("bert", 6, 384, 12, 30522, 512, 1), _CLASSIFIER),
    "qwen3-reranker-0.6b": Shape(_decoder(28, 1024, 16, 8, 128, 3072, 151669), rotary.reranker_head()),
    "tiny-modernbert": Shape(_modern(4, 64, 4, 96, 4000, 1), _MODERN_CLASSIFIER),
    "tiny-mpnet": Shape(_encoder("mpnet", 3, 64, 4, 1500, 130, 1), _CLASSIFIER),
    "tiny-jina": Shape(_jina(3, 96, 6, 1500, 1), _CLASSIFIER),
    "tiny-jina-embedder": Shape(_jina(3, 96, 6, 1500, 0), HeadSpec("mean", normalize=True)),
    "tiny-gte": Shape(_encoder("gte", 3, 64, 4, 3000, 128, 1), _CLASSIFIER),
    "tiny-modernbert-embedder": Shape(_modern(4, 64, 4, 96, 4000, 0), HeadSpec("mean", normalize=True)),
    "tiny-bert": Shape(_encoder("bert", 3, 64, 4, 1500, 128, 1), _CLASSIFIER),
    "tiny-bert-embedder": Shape(_encoder("bert", 3, 64, 4, 1500, 128, 0), HeadSpec("mean", normalize=True)),
    "tiny-xlm-roberta": Shape(_encoder("xlm-roberta", 3, 64, 4, 3000, 130, 1), _CLASSIFIER),
    "tiny-qwen3": Shape(_decoder(3, 64, 4, 2, 32, 96, 4000), rotary.reranker_head()),
    "tiny-qwen3-embedder": Shape(_decoder(3, 64, 4, 2, 32, 96, 4000), rotary.embedder_head()),
}
"""The shapes by name; the `tiny` ones are for tests."""


class RandomWeights:
    """A checkpoint of random weights, with canonical names. The same seed gives the same values on every machine."""

    def __init__(self, family: Family, spec: ModelSpec, seed: int) -> None:
        self._seed = seed
        self._depth = spec.layers
        self._shapes = dict(_tensor_shapes(family, spec))
        self._table = family.table

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Floats:
        shape = self._shapes[name]
        rows, width = shape[0], math.prod(shape[1:])
        stop = rows if stop is None else stop
        step = max(1, _STREAM // width)
        mean, deviation = self._distribution(name, shape)
        values = np.empty((stop - start, width), np.float32)
        for first in range(start - start % step, stop, step):
            key = np.random.SeedSequence([self._seed, zlib.crc32(name.encode()), first // step])
            chunk = np.random.Generator(np.random.SFC64(key)).standard_normal((step, width), np.float32)
            low, high = max(first, start), min(first + step, stop)
            values[low - start : high - start] = chunk[low - first : high - first]
        values *= np.float32(deviation)
        values += np.float32(mean)
        return values.reshape(stop - start, *shape[1:])

    def _distribution(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Mean and standard deviation of a tensor's values. They are chosen so that activations stay of order one
        through all layers, attention is selective, and the scores of different documents differ."""
        norm = "norm" in name.lower() and name.endswith("weight")
        if norm:
            return (1.5, 0.1) if "q_norm" in name or "k_norm" in name else (1.0, 0.1)
        if len(shape) == 1:
            return 0.0, 0.02
        if name == self._table or "embeddings." in name:
            return 0.0, 0.05 if name == self._table else 0.02
        fan_in = 1 / math.sqrt(shape[1])
        if "query" in name or "key" in name:
            return 0.0, 2 * fan_in
        if "o_proj" in name or "down_proj" in name:
            # A decoder's residual stream grows with its depth.
            return 0.0, fan_in / math.sqrt(2 * self._depth)
        return 0.0, 2 * fan_in if name.startswith("classifier") else fan_in


def model_spec(shape: str, precision: Precision = "int8") -> ModelSpec:
    chosen = SHAPES[shape]
    return family_of(chosen.config).spec_from_config(chosen.config, chosen.head, precision)


def synth(shape: str, out_dir: str | Path, precision: Precision = "int8", seed: int = 0) -> PackedModel:
    """Packs a random model of a shape of `SHAPES`; an older pack in `out_dir` is replaced."""
    chosen = SHAPES[shape]
    family = family_of(chosen.config)
    spec = family.spec_from_config(chosen.config, chosen.head, precision)
    weights = RandomWeights(family, spec, seed)
    with Staging(out_dir) as staging:
        tokenizer = staging.path / TOKENIZER
        _write_tokenizer(tokenizer, spec)
        origin = {"synthetic": shape, "seed": str(seed)}
        pack_weights(staging, weights, family, spec, tokenizer=tokenizer, name=shape, sources={}, origin=origin)
    return PackedModel.open(out_dir)


def synth_checkpoint(shape: str, out_dir: str | Path, seed: int = 0) -> Path:
    """Writes the random model of `synth` as a Hugging Face folder (fp32), for use with transformers."""
    chosen = SHAPES[shape]
    family = family_of(chosen.config)
    spec = family.spec_from_config(chosen.config, chosen.head, "fp32")
    weights = RandomWeights(family, spec, seed)
    prefix = family.prefix if spec.head.scores else ""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    cursor = 0
    for name, size in weights.shapes.items():
        end = cursor + 4 * math.prod(size)
        own = name if name.startswith("classifier") else prefix + name
        header[own] = {"dtype": "F32", "shape": list(size), "data_offsets": [cursor, end]}
        cursor = end
    text = json.dumps(header).encode()
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**chosen.config, "dtype": "float32"}, indent=1))
    _write_tokenizer(folder / TOKENIZER, spec)
    _write_pooling(folder, spec.head)
    with (folder / DATA).open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, size in weights.shapes.items():
            step = max(1, 16 * _STREAM // math.prod(size[1:]))
            for start in range(0, size[0], step):
                file.write(weights.read(name, start, min(start + step, size[0])).data.cast("B"))
    return folder


def _tensor_shapes(family: Family, spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = spec.layer.hidden
    yield family.table, (spec.vocab, hidden)
    if family.positions is not None:
        yield family.positions, (spec.positions, hidden)
    for tensor in spec.embedding_tensors():
        if tensor.name not in family.absent:
            yield family.embed[tensor.name], tensor.shape
    for layer in range(spec.layers):
        for tensor in spec.layer.tensors():
            if not tensor.name.endswith(".scale"):
                parts = family.parts(tensor.name, layer)
                for part, rows in zip(parts, part_rows(spec.layer, tensor, len(parts)), strict=True):
                    yield part, tensor.shape if tensor.name == "distances" else (rows, *tensor.shape[:-1])
    if family.final_norm is not None:
        yield family.final_norm, (hidden,)
    if spec.head.kind == "classifier":
        for name, rows in ((family.dense, hidden), (family.out, 1)):
            yield f"{name}.weight", (rows, hidden)
            if rows == 1 or "dense.bias" not in family.absent:
                yield f"{name}.bias", (rows,)
        if family.dense_norm is not None:
            yield family.dense_norm, (hidden,)


def _write_tokenizer(path: Path, spec: ModelSpec) -> None:
    if spec.architecture in ("bert", "jina-bert", "mpnet"):
        random_tokenizer.wordpiece(path, spec.vocab)
    elif spec.architecture in ("gte", "xlm-roberta"):
        random_tokenizer.unigram(path, spec.vocab)
    else:
        random_tokenizer.byte_bpe(path, spec.vocab, append_end=not spec.head.scores)


def _write_pooling(folder: Path, head: HeadSpec) -> None:
    """Writes the files that describe the pooling in a sentence-transformers folder."""
    if head.scores:
        return
    modes = {"first-token": "cls_token", "mean": "mean_tokens", "last-token": "lasttoken"}
    names = ["Transformer", "Pooling", *(["Normalize"] if head.normalize else [])]
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
        for n, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{modes[head.kind]}": True}))
