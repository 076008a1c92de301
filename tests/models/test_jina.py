"""JinaBERT and the published files of GTE and NomicBERT, whose code is not in transformers: naive twins give the
expected numbers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from making import synth as making
from safetensors.numpy import load_file, save_file

from edge.config import Config
from edge.errors import ModelError
from edge.models.architectures import family_of
from edge.models.pack import pack
from edge.models.spec import HeadSpec
from edge.models.tokenizer import PairTokenizer
from edge.runtimes.base import rotation, slopes
from edge.runtimes.embedder import Embedder
from edge.runtimes.engine import Tuning
from edge.runtimes.reranker import Reranker

TEXTS = [" ".join(f"word{(i * j) % 29}" for j in range(1, 4 + 9 * i)) for i in range(8)]
QUERY = "word7 word3 word11"
JINA = {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"}
Tensors = dict[str, np.ndarray]


def published_slopes(heads: int) -> list[float]:
    """The recursion of the paper's code, as published with the model."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]
    power = 2 ** math.floor(math.log2(heads))
    return published_slopes(power) + published_slopes(2 * power)[0::2][: heads - power]


def norm(x: np.ndarray, w: Tensors, name: str) -> np.ndarray:
    apart = x - x.mean(1, keepdims=True)
    return apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def twin(w: Tensors, config: dict[str, Any], ids: np.ndarray, types: np.ndarray) -> np.ndarray:
    """The last hidden states of one sequence in double precision, written from the paper and the published code."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    n, size = len(ids), hidden // heads
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][types]
    x = norm(x, w, "embeddings.LayerNorm")
    bias = -np.array(published_slopes(heads))[:, None, None] * np.abs(np.arange(n)[:, None] - np.arange(n))
    act = gelu if config["feed_forward_type"] == "geglu" else (lambda value: np.maximum(value, 0))
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (
            (x @ w[f"{at}attention.self.{name}.weight"].T + w[f"{at}attention.self.{name}.bias"])
            .reshape(n, heads, size)
            .transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(size) + bias
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        context = (powers / powers.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, hidden)
        out = context @ w[f"{at}attention.output.dense.weight"].T + w[f"{at}attention.output.dense.bias"]
        x = norm(x + out, w, f"{at}attention.output.LayerNorm")
        gate, plain = np.split(x @ w[f"{at}mlp.gated_layers.weight"].T, 2, axis=1)
        down = act(gate) * plain @ w[f"{at}mlp.wo.weight"].T + w[f"{at}mlp.wo.bias"]
        x = norm(x + down, w, f"{at}mlp.layernorm")
    return x


def described(folder: Path, **changes: Any) -> dict[str, Any]:
    """Changes config.json, and returns it."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return config


def doubled(folder: Path, prefix: str = "bert.") -> Tensors:
    tensors = load_file(folder / "model.safetensors")
    return {name.removeprefix(prefix): value.astype(np.float64) for name, value in tensors.items()}


@pytest.mark.parametrize("kind", ["geglu", "reglu"])
@pytest.mark.parametrize("runtime", ["numpy", "onnx"])
def test_vectors(tmp_path: Path, kind: str, runtime: str) -> None:
    folder = making.synth_checkpoint("tiny-jina-embedder", tmp_path / "checkpoint")
    config = described(folder, auto_map=JINA, feed_forward_type=kind, emb_pooler="mean", model_max_length=128)
    with pack(folder, tmp_path / "pack", "fp32") as model:
        batch = PairTokenizer(model.tokenizer_path, model.spec).encode_texts(TEXTS[:4])
    weights, rows = doubled(folder), np.split(batch.tokens, batch.starts[1:-1])
    expected = np.stack([twin(weights, config, ids, np.zeros(len(ids), int)).mean(0) for ids in rows])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    with Embedder(tmp_path / "pack", config=Config(memory=10**11, runtime=runtime)) as embedder:
        assert np.abs(embedder.embed(TEXTS[:4]) - expected).max() < 1e-5


def test_scores_streamed_and_resident(tmp_path: Path) -> None:
    folder = making.synth_checkpoint("tiny-jina", tmp_path / "checkpoint")
    config, weights = described(folder), doubled(folder)
    with pack(folder, tmp_path / "pack", "fp32") as model:
        batch = PairTokenizer(model.tokenizer_path, model.spec).encode_pairs(QUERY, TEXTS[:5], 128)
    expected = []
    for start, stop in zip(batch.starts, batch.starts[1:], strict=False):
        first = twin(weights, config, batch.tokens[start:stop], batch.types[start:stop])[0]
        pooled = np.tanh(first @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"])
        logit = pooled @ weights["classifier.weight"].T + weights["classifier.bias"]
        expected.append(1 / (1 + math.exp(-float(logit[0]))))
    scratch = Config(memory=10**11, scratch_dir=str(tmp_path / "scratch"))
    streaming = Tuning(chunk_tokens=1, buffers=2, offload=True, row_share=0.0)
    for settings in ({"config": Config(memory=10**11)}, {"config": scratch, "tuning": streaming}):
        with Reranker(tmp_path / "pack", **settings) as reranker:
            scores = [r.score for r in sorted(reranker.rank(QUERY, TEXTS[:5]), key=lambda r: r.index)]
        assert np.abs(np.array(scores) - expected).max() < 1e-5
    assert np.std(expected) > 1e-3


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16, 20])
def test_slopes(heads: int) -> None:
    assert np.allclose(slopes(heads), published_slopes(heads), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("shape", "extra"),
    [
        ("tiny-jina-embedder", "encoder.layer.1.attention.self.layer_norm_q.weight"),
        ("tiny-bert-embedder", "encoder.layer.0.attention.self.query.lora_A.weight"),
        ("tiny-gte", "gte.layers.2.self_attn.q_norm.weight"),
        ("tiny-modernbert-embedder", "layers.3.attn.Wqkv.bias"),
        ("tiny-qwen3-embedder", "layers.0.self_attn.q_proj.bias"),
    ],
)
def test_a_layer_with_other_tensors_is_refused(tmp_path: Path, shape: str, extra: str) -> None:
    folder = making.synth_checkpoint(shape, tmp_path / "checkpoint")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {extra: np.ones(4, np.float32)}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=extra.replace(".", r"\.")):
        pack(folder, tmp_path / "pack")


NOMIC = {
    "activation_function": "swiglu", "causal": False, "dense_seq_output": True, "fused_bias_fc": True,
    "layer_norm_epsilon": 1e-12, "max_trained_positions": 64, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "model_type": "nomic_bert", "n_embd": 32, "n_head": 4, "n_inner": 40, "n_layer": 2, "n_positions": 128,
    "parallel_block": False, "prenorm": False, "qkv_proj_bias": False, "rotary_emb_base": 500,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "scale_attn_weights": True, "use_rms_norm": False, "type_vocab_size": 2,
    "vocab_size": 450, "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}  # fmt: skip


def test_the_published_keys_of_nomic_bert() -> None:
    renamed = {
        "model_type": "nomic_bert", "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40,
        "num_hidden_layers": 2, "max_position_embeddings": 128, "rope_theta": 500, "layer_norm_eps": 1e-12,
        "type_vocab_size": 2, "vocab_size": 450,
    }  # fmt: skip

    def spec(config: dict[str, Any]) -> Any:
        return family_of(config).spec_from_config(config, HeadSpec("mean"), "fp32")

    assert spec(NOMIC) == spec(renamed)
    assert spec({**NOMIC, **renamed, "max_position_embeddings": 64}).max_tokens == 64
    for changes, key in (
        ({"hidden_size": 64}, "n_embd"),
        ({"rope_parameters": {"rope_theta": 10.0}}, "rope_theta"),
        ({"rotary_emb_fraction": 0.5}, "rotary_emb_fraction"),
        ({"qkv_proj_bias": True}, "qkv_proj_bias"),
        ({"num_experts": 8}, "num_experts"),
        ({"auto_map": {"AutoModel": "someone/nomic--modeling.NomicBertModel"}}, "auto_map"),
    ):
        with pytest.raises(ModelError, match=key):
            spec({**NOMIC, **changes})


def test_the_published_keys_and_angles_of_gte() -> None:
    published = {
        "model_type": "new", "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "hidden_act": "gelu",
        "num_hidden_layers": 2, "max_position_embeddings": 128, "rope_theta": 20000, "layer_norm_eps": 1e-12,
        "type_vocab_size": 1, "vocab_size": 450, "layer_norm_type": "layer_norm", "logn_attention_clip1": False,
        "logn_attention_scale": False, "pack_qkv": True, "position_embedding_type": "rope", "unpad_inputs": False,
        "rope_scaling": {"factor": 8.0, "type": "ntk"}, "use_memory_efficient_attention": False,
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    }  # fmt: skip
    layer = family_of(published).spec_from_config(published, HeadSpec("first-token"), "fp32").layer
    assert layer.rope_theta is not None
    # The published code: the base times the factor, and each frequency divided by factor ** (2 / size).
    frequencies = 1 / (20000 * 8.0) ** (np.arange(0, 16, 2) / 16) / 8.0 ** (2 / 16)
    cosines, _ = rotation(layer.rope_theta, 16, 100, layer.rope_factor)
    assert np.abs(cosines - np.cos(np.arange(100)[:, None] * frequencies)).max() < 1e-5
    plain = {key: value for key, value in published.items() if key != "rope_scaling"}
    assert family_of(plain).spec_from_config(plain, HeadSpec("mean"), "fp32").layer.rope_factor == 1
    for scaling in ({"type": "dynamic", "factor": 2.0}, {"type": "ntk", "factor": 0}, {"type": "ntk"}, "ntk", [1]):
        with pytest.raises(ModelError, match="rope_scaling"):
            family_of(published).spec_from_config({**published, "rope_scaling": scaling}, HeadSpec("mean"), "fp32")


@pytest.mark.parametrize("place", ["0_Transformer", "0_BERT"])
def test_a_transformer_in_a_folder_of_its_own(tmp_path: Path, place: str) -> None:
    """Older sentence-transformers: the checkpoint, its tokenizer and its settings lie in a module's folder."""
    folder = making.synth_checkpoint("tiny-bert-embedder", tmp_path / "checkpoint")
    pack(folder, tmp_path / "plain", "fp32").close()
    old = tmp_path / "old"
    (old / place).mkdir(parents=True)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = place
    (old / "modules.json").write_text(json.dumps(modules))
    shutil.copytree(folder / "1_Pooling", old / "1_Pooling")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.move(folder / name, old / place / name)
    (old / place / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": false}')
    with pack(old, tmp_path / "pack", "fp32") as model:
        assert model.spec.max_tokens == 20
        assert {f"{place}/config.json", f"{place}/model.safetensors", "modules.json"} <= set(model.sources)
    vectors = {}
    for name in ("pack", "plain"):
        with Embedder(tmp_path / name, config=Config(memory=10**11)) as embedder:
            vectors[name] = embedder.embed(TEXTS[:1])
    assert np.array_equal(vectors["pack"], vectors["plain"])
    (old / place / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "wonderful": 1}')
    with pytest.raises(ModelError, match=rf"{place}/sentence_bert_config\.json: wonderful"):
        pack(old, tmp_path / "pack")
    modules[0]["path"] = "../checkpoint"
    (old / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="points outside its folder"):
        pack(old, tmp_path / "pack")
